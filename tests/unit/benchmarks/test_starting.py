"""The clock of ``benchmarks.starting`` begins with the operator, and its log stops nobody."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.starting import await_ready

PROCESS = """
import sys
print("almost ready"); print("x" * 200_000); print("ready", flush=True)
for word in sys.stdin:
    print("y" * 200_000); print("the end", flush=True)
"""


def started(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def test_lines_before_it_are_no_sign_and_a_log_that_is_long_blocks_nobody(tmp_path):
    with (tmp_path / "log").open("wb") as log, started(PROCESS) as process:
        drain = await_ready(process, log)
        assert process.poll() is None, "it waits for its word"
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.wait(120) == 0
        drain.join()
    assert b"the end" in (tmp_path / "log").read_bytes()


def test_a_process_that_ends_before_it_is_ready_gives_no_figure(tmp_path):
    with (
        (tmp_path / "log").open("wb") as log,
        started("print('no')") as process,
        pytest.raises(SystemExit, match="ended without"),
    ):
        await_ready(process, log)
