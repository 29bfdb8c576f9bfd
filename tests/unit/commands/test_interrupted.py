"""A command that is ended early, by Ctrl-C, `kill` or a closed terminal, leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

APP = """
import os, pathlib, time
pathlib.Path(os.environ["STARTED"]).write_text(str(os.getpid()))
time.sleep(600)
"""


def until(condition, within_s=300.0):
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_command_that_is_ended_takes_its_folder_and_its_children_along(tmp_path, how):
    app, started, temporary = tmp_path / "app.py", tmp_path / "started", tmp_path / "tmp"
    app.write_text(APP)
    temporary.mkdir()
    command = ["rehearse", str(tmp_path), "--app", str(app), "--submit", sys.executable]
    running = subprocess.Popen(
        [sys.executable, "-m", "airflow_eos", *command],
        env=os.environ | {"TMPDIR": str(temporary), "STARTED": str(started)},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        until(lambda: started.exists() and started.read_text())
        assert list(temporary.iterdir())
        running.send_signal(how)
        said = running.communicate(timeout=300)[1]
    finally:
        running.kill()
    assert running.returncode == 128 + how
    assert b"Traceback" not in said
    until(lambda: gone(int(started.read_text())))
    assert list(temporary.iterdir()) == []
