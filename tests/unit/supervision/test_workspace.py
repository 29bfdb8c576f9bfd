"""The private folder: what a task that was killed leaves behind does not outlive the next start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from airflow_eos.supervision.packaging import Secrets, private_folder, remove_leftovers

CHECKPOINT = "s3a://lake/checkpoints/orders"
# A task that has handed over its secrets and now runs, until it is killed.
TASK = """
import sys, time
from airflow_eos.supervision.packaging import Secrets, private_folder
with private_folder(sys.argv[1]) as folder:
    Secrets(kafka={"sasl.password": "hunter-two"}, storage={}).hand_over(folder)
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def task():
    started = []

    def start(checkpoint: str = CHECKPOINT) -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", TASK, checkpoint], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process, Path(process.stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_password_that_a_killed_task_left_is_gone_at_the_next_start(task):
    killed, left = task()
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert (left / "kafka.json").exists(), "SIGKILL leaves nobody to clean up"

    with private_folder(CHECKPOINT) as folder:
        remove_leftovers(folder, CHECKPOINT)
        assert not left.exists()
        assert folder.exists()


def test_a_task_that_lives_keeps_its_folder(task):
    _, in_use = task()
    with private_folder(CHECKPOINT) as folder:
        remove_leftovers(folder, CHECKPOINT)
        assert (in_use / "kafka.json").exists()


def test_another_pipelines_folder_is_left_alone(task):
    """Its app may have outlived its task, and still read the package that lies there."""
    killed, left = task("s3a://lake/checkpoints/others")
    killed.kill()
    killed.wait()
    with private_folder(CHECKPOINT) as folder:
        remove_leftovers(folder, CHECKPOINT)
        assert left.exists()


def test_a_link_that_somebody_planted_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    with private_folder(CHECKPOINT) as folder:
        (tmp_path / f"{folder.name}-planted").symlink_to(precious)
        remove_leftovers(folder, CHECKPOINT)
    assert precious.exists()


def test_what_is_handed_over_is_not_shown():
    assert "hunter" not in repr(Secrets(kafka={"a": "hunter"}, storage={"b": "hunter"}))
