"""`airflow-eos status --watch` on a real terminal, into a pipe, and over a store that goes away."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.commands import status as watching
from airflow_eos.errors import ConfigurationError, StoreError

ENTER, LEAVE, CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


def checkpoint(tmp_path: Path) -> Path:
    for path, text in {
        "metadata": '{"id":"6a1c9b3e-0000-4000-8000-000000000000"}',
        "offsets/0": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"in":{"0":9}}',
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def commit(place: Path) -> None:
    (place / "commits").mkdir()
    (place / "whole").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (place / "whole").rename(place / "commits/0")


def watch(place: Path, *more: str) -> list[str]:
    program = ["-c", "from airflow_eos.cli import main; main()"]
    return [sys.executable, *program, "status", str(place), "--watch", "--interval=0.1", *more]


def read_until(fd: int, wanted: bytes, seen: bytes = b"", within_s: float = 300.0) -> bytes:
    """What was read, the terminal's colours and breaks left in."""
    ends = time.monotonic() + within_s
    while wanted not in seen and time.monotonic() < ends:
        if select.select([fd], [], [], 0.1)[0]:
            try:
                seen += os.read(fd, 65536)
            except OSError:  # the program has closed its terminal
                return seen
    return seen


def test_a_watch_shows_what_changes_and_ctrl_c_gives_the_terminal_back(tmp_path):
    place = checkpoint(tmp_path)
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        watch(place),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        seen = read_until(ours, b"no batch yet")
        assert ENTER in seen
        assert b"no batch yet" in seen
        commit(place)
        later = read_until(ours, b"batch 0, ")
        assert b"batch 0, " in later
        assert LEAVE not in seen + later
        running.send_signal(signal.SIGINT)
        last = read_until(ours, b"no sign of life", read_until(ours, LEAVE))
        assert running.wait(120) == 0
    finally:
        running.kill()
        os.close(ours)
    assert LEAVE in last
    assert CURSOR in last
    assert b"Traceback" not in last
    assert b"batch 0, " in last[last.index(LEAVE) :], "what was seen last stays"


def test_a_watch_for_programs_prints_one_line_a_look(tmp_path):
    place = checkpoint(tmp_path)
    running = subprocess.Popen(watch(place, "--json"), stdout=subprocess.PIPE)
    assert running.stdout is not None
    try:
        first = json.loads(running.stdout.readline())
        commit(place)
        later = first
        while later["progress"]["batch_in_flight"] == 0:
            later = json.loads(running.stdout.readline())
        running.send_signal(signal.SIGINT)
        assert running.wait(120) == 0
    finally:
        running.kill()
        running.stdout.close()
    assert first["progress"]["latest_committed_batch"] is None
    assert later["progress"]["latest_committed_batch"] == 0
    assert later["looked_at_ms"] > first["looked_at_ms"]


def test_a_store_that_is_away_for_a_moment_does_not_end_a_watch(capsys):
    answers = iter([{"n": 1}, StoreError("the store is away"), {"n": 2}, KeyboardInterrupt()])

    def look() -> Any:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    watching.watch_status(look, every_s=0.0, as_json=True)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each.get("n", each.get("error")) for each in told] == [1, "the store is away", 2]


def test_what_is_wrong_from_the_start_ends_a_watch_at_once():
    def look() -> dict[str, int]:
        raise ConfigurationError("no checkpoint here")

    with pytest.raises(ConfigurationError, match="no checkpoint here"):
        watching.watch_status(look, every_s=0.0, as_json=True)
