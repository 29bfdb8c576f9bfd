"""Drivers and recoveries as processes, forked from a server that has imported everything already.

An interpreter with Arrow and the Kafka clients takes a second to start; a fork of one that has
them takes ten milliseconds. The server has no threads and no connection.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil

from tests.chaos.settings import DriverSettings

_ROOT = Path(__file__).parents[2]
_starting = threading.Lock()


def _context() -> multiprocessing.context.ForkServerContext:
    paths = [str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.chaos.preload"])
    return context


class Process:
    """A driver or a recovery, with what belongs to it; ``signal`` reaches that too if told so."""

    pid: int
    settings: DriverSettings

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        raise NotImplementedError

    def signal(self, name: str, *, group: bool) -> None:
        raise NotImplementedError

    def wait(self, timeout_s: float) -> int | None:
        raise NotImplementedError

    def executors(self) -> list[psutil.Process]:
        """Those of its processes that run tasks."""
        raise NotImplementedError

    def end(self) -> None:
        """SIGKILL it and all that belongs to it, stopped or not, and wait until it is gone."""
        self.signal("KILL", group=True)
        self.wait(10)
        running.discard(self)

    def stopped(self) -> bool:
        """Whether it or one of its children stands still."""
        try:
            family = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
            return any(each.status() == psutil.STATUS_STOPPED for each in family)
        except psutil.NoSuchProcess:
            return False


running: set[Process] = set()


class Forked(Process):
    """One of the loop engine, with the workers that it forked (its process group)."""

    def __init__(self, target: Callable[[DriverSettings], None], settings: DriverSettings) -> None:
        self.settings = settings
        with _starting:
            self._process: ForkServerProcess = _context().Process(target=target, args=(settings,))
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        running.add(self)

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def signal(self, name: str, *, group: bool) -> None:
        number = signal.Signals[f"SIG{name}"]
        try:
            if group:
                os.killpg(self.pid, number)
            elif self.exit_code is None:
                os.kill(self.pid, number)
        except ProcessLookupError:
            return

    def executors(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []

    def wait(self, timeout_s: float) -> int | None:
        self._process.join(timeout_s)
        return self.exit_code


def end_everything() -> None:
    """For a harness that is told to stop: nothing that it started goes on."""
    for started in list(running):
        started.end()


def wait_until(condition: Callable[[], bool], timeout_s: float, *, every_s: float = 0.01) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True
