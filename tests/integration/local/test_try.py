"""``airflow-eos try`` and ``new``: the main thing seen without Airflow, on real parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.wheel import build_sdist, build_wheel, install, run

PROGRAM = str(Path(sys.executable).with_name("airflow-eos"))


@pytest.mark.parametrize(
    "kind", ["windows", *(pytest.param(k, marks=pytest.mark.examples) for k in ("map", "upsert"))]
)
def test_a_new_pipeline_is_killed_recovered_and_every_row_is_there_once(tmp_path, kind):
    made = subprocess.run(
        [PROGRAM, "new", "orders", "--kind", kind, "--into", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    tried = subprocess.run(
        [PROGRAM, "try", str(tmp_path / "orders")], capture_output=True, text=True, timeout=600
    )
    said = " ".join(tried.stdout.split())
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert "Readers have 0 rows" in said
    assert "lost 0, duplicated 0" in said


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
