"""A process that is stopped at a place stands there, whichever thread came to it."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
import time

from airflow_eos.core.failpoints import failpoint


def test_not_a_step_is_made_after_the_place_where_a_process_is_stopped():
    """By a signal to the process, half of the drivers went on for a while.

    In a process of its own: this one has threads, whose locks a fork would take along.
    """
    ended = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr


def stop_at_the_place() -> None:
    steps = mmap.mmap(-1, 1)  # shared with the child
    for _ in range(30):
        child = os.fork()
        if child == 0:
            os.environ["EOS_FAILPOINTS"] = "here=stop"
            threading.Thread(target=pass_by, args=(steps,), daemon=True).start()
            time.sleep(600)
        try:
            _, status = os.waitpid(child, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            time.sleep(0.01)
            assert steps[0] == 0
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def pass_by(steps: mmap.mmap) -> None:
    failpoint("here")
    steps[0] = 1


if __name__ == "__main__":
    stop_at_the_place()
