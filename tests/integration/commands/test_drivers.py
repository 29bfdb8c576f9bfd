"""The commands to a running driver, and the one that starts a driver: each a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, newest_term, read_heartbeat, read_state
from airflow_eos.core.checkpoint.standby import standbys
from tests.integration.commands.conftest import Command

pytestmark = pytest.mark.proof

APP = Path(__file__).with_name("copying.py")


def until(condition: Callable[[], object], within_s: float = 300.0) -> None:
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.1)


@contextmanager
def driver(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen(
        [sys.executable, str(APP), str(folder), *options],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    try:
        yield running
    finally:
        running.kill()
        running.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/0.json").write_text(json.dumps({"key": "a", "value": "1"}))
    return tmp_path


def test_a_pipeline_is_handed_over_and_drained(folder: Path, command: Command) -> None:
    checkpoint = str(folder / "checkpoint")
    store = CheckpointStore.open(checkpoint)
    with driver(folder, "standby") as old:
        until(lambda: read_heartbeat(store) and read_state(store).latest_commit == 0)
        with driver(folder, "standby") as new:
            until(lambda: standbys(store))
            command("handover", checkpoint, "--wait", "200 seconds")
            assert old.wait(60) == 0
            assert newest_term(store) == 2
            command("drain", checkpoint, "--wait", "200 seconds")
            assert new.wait(60) == 0


def test_a_new_version_is_rehearsed(folder: Path, command: Command) -> None:
    with driver(folder) as first:
        assert first.wait(300) == 0
    asked = [str(folder / "checkpoint"), "--app", str(APP), "--batches", "1", "--json"]
    told = command("rehearse", *asked, "--submit", sys.executable, "--", str(folder))
    [compared] = json.loads(told.stdout)["compared"]
    assert (compared["output"], compared["verdict"]) == ("rows", "same")
