"""One app, as the try that runs it knows it, and the rules that it is run by."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from airflow_eos.errors import AppFailedError, EosError
from airflow_eos.supervision.ending import Patience, Process, ended
from airflow_eos.supervision.stopping import Manager, end_by_force

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from airflow_eos.checkpoint import CheckpointStore
    from airflow_eos.sinks.restarts import Failure, RestartStrategy
    from airflow_eos.supervision.ending import Ended
    from airflow_eos.supervision.pulse import Pulse
    from airflow_eos.supervision.stopping import Cancel

log = logging.getLogger(__name__)

_GONE_S = 0.5


class Submission(Protocol):
    """A started app, as :class:`airflow_eos.hooks.spark.SparkSubmission` is one."""

    @property
    def running(self) -> bool:
        """Whether its process is still there: the driver's, or the one that submits it."""

    @property
    def failure(self) -> BaseException | None:
        """Why it failed, once it has ended."""

    @property
    def detached(self) -> bool:
        """Whether the driver runs elsewhere and outlives the process (deploy mode cluster)."""

    def start(self) -> None:
        """Start it; returns at once."""

    def kill(self) -> None:
        """End it without asking."""


@dataclass(slots=True)
class App:
    """The app of this try. ``process`` is None where another process has started it."""

    submission: str
    process: Submission | None
    since_s: float
    began_s: float
    given_up: bool = False
    """Whether this try has let go of it, and looks for another."""

    @property
    def known(self) -> Process | None:
        """What our own process says of it; None where only its heartbeat tells.

        A ``spark-submit`` that has handed its driver over says nothing any more. One that failed
        to may have done so all the same: its reply was lost.
        """
        if self.process is None:
            return None
        running = self.process.running  # asked once, and first: what it failed with is known then
        failure = self.process.failure
        if self.process.detached and not running and failure is None:
            return None
        return Process(running, failure, self.process.detached)

    @property
    def runs_here(self) -> bool:
        """Whether a process of this machine is there, that this try has started."""
        return self.process is not None and self.process.running

    @property
    def is_child(self) -> bool:
        """Whether its driver is a child of this process, or is just being submitted by one."""
        process = self.process
        return process is not None and (process.running or not process.detached)

    def may_live(self, pulse: Pulse, patience: Patience, clock: Callable[[], float]) -> bool:
        """Whether it may still be running; where nobody can tell, it may."""
        if self.is_child:
            return self.process is not None and self.process.running
        try:
            seen = pulse.look()
        except EosError:
            return True
        return ended(seen, self.submission, None, patience, clock() - self.since_s) is None

    def end_process(self, how: Ended, pause: Callable[[float], None]) -> None:
        """Kill its own process where that is there although the app has ended: it hangs."""
        if self.process is None:
            return
        if self.process.running:
            log.warning("The app's process is still there, and is killed: %s", how)
            self.process.kill()
        while self.process.running:
            pause(_GONE_S)

    def kill(self, store: CheckpointStore, reason: str, manager: Manager) -> None:
        """End it, wherever it is. One that is no child is asked, too: it may be out of reach."""
        if self.is_child and self.process is not None:
            self.process.kill()
            return
        log.warning("Killing the app: %s", end_by_force(store, self.submission, reason, manager))


@dataclass(frozen=True, slots=True)
class Rules:
    """How an app is run.

    Attributes:
        strategy: how often, and how far apart, the app is started again.
        patience: when silence is an end.
        drain_timeout: how long a stopped app may take to end its batch before it is killed.
        cancel: what becomes of the app when it is stopped.
        hand_over: return as soon as the driver was seen, and let somebody else watch it.
        manager: what the app is submitted to, which alone is asked to end its driver.
    """

    strategy: RestartStrategy
    drain_timeout: timedelta
    patience: Patience = field(default_factory=lambda: Patience(60.0, 600.0))
    cancel: Cancel = "drain"
    hand_over: bool = False
    manager: Manager = field(default_factory=Manager)

    def pause_after(self, failures: Sequence[Failure], how: Ended) -> float:
        """Seconds to wait before the next start, after the last of ``failures``.

        Raises:
            AppFailedError: there is to be none.
        """
        delay = self.strategy.delay(failures)
        if delay is None:
            raise AppFailedError(
                f"The app failed {len(failures)} times, and the restart strategy allows no "
                f"further restart ({self.strategy}). The last time: {how}"
            )
        return delay.total_seconds()
