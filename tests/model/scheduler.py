"""Processes that stop before every call to the outside, so that a test chooses who goes on.

A process is a greenlet. Whatever it does between two external calls nobody else can see, so one
place to stop for each call gives every interleaving there is. A process that is never resumed is
paused (SIGSTOP); one that is crashed is unwound without being allowed another call (SIGKILL).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, TypeVar, cast

from greenlet import GreenletExit, getcurrent, greenlet

T = TypeVar("T")


class Fault(enum.Enum):
    """What goes wrong with one external call."""

    NONE = "none"
    LOST = "lost reply"
    """It was done, and the caller never hears of it."""
    REFUSED = "refused"
    """It was not done; the caller cannot tell that from the other."""


class Process(greenlet):  # type: ignore[misc]
    """One process of the world; ``doing`` is the external call that it will make when resumed."""

    def __init__(self, name: str, body: Callable[[], Any], accepts: tuple[type[Exception], ...]):
        super().__init__(self._run)
        self.name = name
        self.doing = "start"
        self.ready: Callable[[], bool] = lambda: True
        self.result: Any = None
        self.error: Exception | None = None
        self.crashed = False
        self.given_up = False
        """Its executor counts as lost, though it may go on."""
        self.looked_at: int | None = None
        """When the driver of a task had begun to look; see the judge."""
        self._body = body
        self._accepts = accepts

    def _run(self, _fault: Fault) -> None:
        try:
            self.result = self._body()
        except self._accepts as error:
            self.error = error

    @property
    def alive(self) -> bool:
        return not self.dead and not self.crashed

    @property
    def runnable(self) -> bool:
        return self.alive and self.ready()

    def resume(self, fault: Fault = Fault.NONE) -> None:
        """Make the call it stands before, and go on to the next one."""
        self.parent = getcurrent()
        self.switch(fault)

    def crash(self) -> None:
        if self.alive:
            self.crashed = True
            self.parent = getcurrent()
            self.throw(GreenletExit)

    def about_to(self, doing: str) -> Fault:
        """Stop here until resumed."""
        if self.crashed:
            raise GreenletExit
        self.doing = doing
        assert self.parent is not None
        return cast("Fault", self.parent.switch())

    def wait_until(self, ready: Callable[[], bool], doing: str) -> None:
        self.ready = ready
        self.about_to(doing)
        self.ready = lambda: True


def current() -> Process | None:
    """The process that runs; None where the test itself looks at the world."""
    running = getcurrent()
    return running if isinstance(running, Process) else None


def external(doing: str, operation: Callable[[], T], no_answer: Callable[[], Exception]) -> T:
    """One call to the outside, with whatever fault the scheduler has for it."""
    process = current()
    if process is None:
        return operation()
    fault = process.about_to(doing)
    if fault is Fault.REFUSED:
        raise no_answer()
    try:
        return operation()
    finally:
        if fault is Fault.LOST:
            raise no_answer()


class Scheduler:
    """All processes there ever were, and how to move one of them."""

    def __init__(self) -> None:
        self.processes: list[Process] = []

    def spawn(
        self, name: str, body: Callable[[], Any], accepts: tuple[type[Exception], ...]
    ) -> Process:
        process = Process(name, body, accepts)
        self.processes.append(process)
        return process

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.alive]

    @property
    def runnable(self) -> list[Process]:
        return [process for process in self.processes if process.runnable]

    def run(self, *processes: Process) -> None:
        """Run without faults until these have ended; others they wait for run as well."""
        while any(process.alive for process in processes):
            chosen = next((p for p in processes if p.runnable), None) or self.runnable[-1]
            chosen.resume()

    def crash_all(self) -> None:
        for process in self.alive:
            process.crash()
