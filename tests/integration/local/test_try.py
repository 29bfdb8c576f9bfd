"""``airflow-eos try`` and ``new``: the main thing seen without Airflow, on real parts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.jvm import spark_submit_opts
from tests.support.wheel import build_sdist, build_wheel, install, run

PROGRAM = str(Path(sys.executable).with_name("airflow-eos"))


@pytest.mark.proof
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "kind",
    ["map", *(pytest.param(k, marks=pytest.mark.examples) for k in ("windows", "upsert", "lake"))],
)
def test_a_new_pipeline_is_killed_recovered_and_every_row_is_there_once(tmp_path, kind):
    made = subprocess.run(
        [PROGRAM, "new", "orders", "--kind", kind, "--into", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    tried = subprocess.run(
        [PROGRAM, "try", str(tmp_path / "orders")],
        env={**os.environ, "SPARK_SUBMIT_OPTS": spark_submit_opts()},
        capture_output=True,
        text=True,
        timeout=1100,
    )
    said = " ".join(tried.stdout.split())
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert "Readers have 0 rows" in said
    assert "lost 0, duplicated 0" in said
    if kind == "lake":
        assert said.count("2026-01-0") == 7, "the query has a line for each day"


@pytest.mark.proof
@pytest.mark.parametrize(
    "how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.proof)]
)
def test_a_trial_that_is_ended_early_leaves_no_process_and_no_folder(tmp_path, how):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    trial = subprocess.Popen(
        [PROGRAM, "try"],
        env={**os.environ, "TMPDIR": str(temporary), "SPARK_SUBMIT_OPTS": spark_submit_opts()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 300
        # Spark runs, and has begun its checkpoint.
        while not list(temporary.glob("airflow-eos-try-*/killed/checkpoint/metadata")):
            assert trial.poll() is None, trial.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        children = psutil.Process(trial.pid).children(recursive=True)
        trial.send_signal(how)
        said = trial.communicate(timeout=300)[1]
    finally:
        trial.kill()
    assert (trial.returncode, b"Traceback" in said) == (128 + how, False)
    _, alive = psutil.wait_procs(children, timeout=120)
    assert [each.cmdline() for each in alive] == []
    assert list(temporary.iterdir()) == []


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_the_wheel_alone_kills_an_app_recovers_it_and_counts_every_row(tmp_path):
    """A minute or two, ten on a machine at load 25: a broker, and Spark three times."""
    for folder in ("sdist", "wheel", "here"):
        (tmp_path / folder).mkdir()
    wheel = build_wheel(build_sdist(tmp_path / "sdist"), tmp_path / "wheel")
    installed = install(wheel, tmp_path)
    said = run(installed / "airflow-eos", "try", cwd=tmp_path / "here", timeout=1700)
    assert "lost 0, duplicated 0" in " ".join(said.split())
