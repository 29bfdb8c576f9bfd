"""The demo as a user sees it: interrupted, without Java, and to its end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from airflow_eos.errors import LocalEnvironmentError
from demo.adopted import require_same
from demo.leftovers import end_every_process_with, end_worker_of, processes_with
from tests.support.beats import heartbeat

DEMO = [str(Path(sys.executable).with_name("airflow-eos")), "demo"]


def left_in(folder):
    """What a run has forgotten; the lock of Numba's cache is the user's, not of a run."""
    found = [each.name for each in folder.glob("airflow-eos-*")]
    return [name for name in found if not name.startswith("airflow-eos-compiling-")]


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*DEMO, *arguments],
        env={**os.environ, "TMPDIR": str(folder), "COLUMNS": "120", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_text(demo: subprocess.Popen[str], wanted: str) -> str:
    """Read what the demo prints until it has said this; its own deadlines end a wait in vain."""
    said = ""
    assert demo.stdout is not None
    for line in demo.stdout:
        said += line
        if wanted in said:
            return said
    raise AssertionError(f"the demo ended without {wanted!r}:\n{said}")


@pytest.mark.proof
def test_processes_are_told_apart_by_their_environment_and_ended_with_their_children():
    command = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '100'])"]
    ours = subprocess.Popen(command, env={**os.environ, "EOS_TEST": "one"})
    other = subprocess.Popen(["sleep", "100"], env={**os.environ, "EOS_TEST": "one-more"})
    try:
        while len(processes_with("EOS_TEST=one")) < 2:
            time.sleep(0.05)

        end_every_process_with("EOS_TEST=one")

        assert ours.wait(120) == -signal.SIGKILL
        assert processes_with("EOS_TEST=one") == set()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.proof
def test_the_worker_is_killed_and_what_its_task_has_started_lives(tmp_path):
    """As in the fifth act: a worker's task runs spark-submit, which runs the driver."""
    said = tmp_path / "driver"
    program = f"import os, time; open({str(said)!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    for _ in ("submit", "task", "worker"):
        program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}])"
    environment = {**os.environ, "EOS_TEST": tmp_path.name}
    ours = subprocess.Popen([sys.executable, "-c", program], env=environment)
    try:
        while not (said.exists() and said.read_text()):
            time.sleep(0.05)

        end_worker_of(int(said.read_text()))

        assert ours.wait(120) == -signal.SIGKILL
        left = processes_with(f"EOS_TEST={tmp_path.name}")
        assert int(said.read_text()) in left
        assert len(left) == 2, "spark-submit and the driver"
    finally:
        end_every_process_with(f"EOS_TEST={tmp_path.name}")


def test_an_app_that_had_ended_is_told_apart_from_one_that_was_started_beside_it():
    app = heartbeat(application_id="app-1")
    require_same(app, app)
    with pytest.raises(LocalEnvironmentError, match=r"app-1 had ended \(stopped\) before"):
        require_same(app, heartbeat("stopped", application_id="app-1"))
    with pytest.raises(LocalEnvironmentError, match=r"has started app-2 beside app-1"):
        require_same(app, heartbeat(application_id="app-2"))


@pytest.mark.proof
def test_without_java_the_demo_says_one_clear_sentence(tmp_path):
    demo = start(tmp_path, JAVA_HOME=str(tmp_path / "nowhere"))
    said, _ = demo.communicate(timeout=300)

    assert demo.returncode == 2
    assert "found no java" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize(
    ("number", "said_last"),
    [
        (signal.SIGTERM, "Wrote 200,000 orders"),  # while Airflow's processes start
        (signal.SIGINT, "Started the DAG eos_orders_etl"),  # while the app does
    ],
    ids=["on-the-stage", "in-the-play"],
)
def test_interrupted_nothing_is_left_running(tmp_path, number, said_last):
    demo = start(tmp_path)
    wait_for_text(demo, said_last)
    [work] = tmp_path.glob("airflow-eos-demo-*")
    home = f"AIRFLOW_HOME={work.resolve() / 'airflow'}"
    workers, found = titled(demo), processes_with(home)
    assert found
    assert {each.pid for each in workers if lives(each)} <= found

    demo.send_signal(number)
    said, _ = demo.communicate(timeout=300)

    assert demo.returncode == 130, said
    assert (processes_with(home), [each for each in workers if lives(each)]) == (set(), [])
    assert left_in(tmp_path) == []


def titled(demo: subprocess.Popen[str]) -> list[psutil.Process]:
    """Airflow's processes below it that have given themselves a title, as its workers do."""
    found = []
    for each in psutil.Process(demo.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if " ".join(each.cmdline()).startswith("airflow "):
                found.append(each)
    return found


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.demo
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("source", ["spark", "arrow"])
def test_four_deaths_and_a_lost_worker_and_every_row_exactly_once(tmp_path, source):
    demo = start(tmp_path, "--source", source)
    killer = threading.Timer(3400, demo.kill)  # it gives up by itself before
    killer.start()
    try:
        said, _ = demo.communicate()
    finally:
        killer.cancel()

    assert demo.returncode == 0, said
    assert "Its next try took over the app that it found, and started none" in said
    assert re.search(r"lost 0, duplicated 0, reordered 0", said)
    assert left_in(tmp_path) == []
