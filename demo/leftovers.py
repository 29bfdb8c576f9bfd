"""Ends processes that others started for the demo, found by their environment or their parents."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

_END_S = 60.0


def end_every_process_with(entry: str) -> None:
    """Kill each process of this user that has ``NAME=value`` in its environment, by its pid.

    Repeats until none is left, because a process may start another meanwhile, and a busy machine
    takes its time to end one.
    """
    deadline = time.monotonic() + _END_S
    while (found := processes_with(entry)) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def end_worker_of(driver: int) -> None:
    """Kill the task that has started spark-submit and its driver, but first the task's worker.

    So no process is left to tell Airflow that the task has ended.
    """
    task = _parent(_parent(driver))
    worker = _parent(task)  # the worker supervises the task
    for each in (worker, task):
        os.kill(each, signal.SIGKILL)


def _parent(pid: int) -> int:
    asked = ["ps", "-o", "ppid=", "-p", str(pid)]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


def processes_with(entry: str) -> set[int]:
    """Return the pids of the processes, other than this one, whose environment has ``entry``."""
    shows_environment = "e" if sys.platform == "linux" else "E"
    listed = subprocess.run(
        ["ps", f"xww{shows_environment}", "-o", "pid=,command="],
        capture_output=True,
        text=True,
        errors="replace",
        check=True,
    )
    found = set()
    for line in listed.stdout.splitlines():
        pid, _, rest = line.strip().partition(" ")
        if entry in rest.split(" ") and int(pid) != os.getpid():
            found.add(int(pid))
    return found
