"""One try of a streaming app: recover, start, watch, start again, drain.

Free of Airflow, so that a test can drive it with a clock of its own. What it starts and what it
asks are given as functions.
"""

from __future__ import annotations

import logging
import socket
import time
from typing import TYPE_CHECKING, Protocol

from airflow_eos.checkpoint.liveness import read_heartbeat, request_drain
from airflow_eos.errors import AppFailedError, AppStoppedError, EosError
from airflow_eos.sinks.restarts import Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from airflow_eos.checkpoint.liveness import Heartbeat
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.sinks.restarts import RestartStrategy

log = logging.getLogger(__name__)

_POLL_S = 0.5


class Submission(Protocol):
    """A started app, as :class:`airflow_eos.hooks.spark.SparkSubmission` is one."""

    @property
    def running(self) -> bool:
        """Whether the driver is still there."""

    @property
    def failure(self) -> BaseException | None:
        """Why it failed, once it has ended."""

    def start(self) -> None:
        """Start it; returns at once."""

    def kill(self) -> None:
        """End it without asking."""


class StreamRun:
    """Runs one streaming app until it finishes in order, fails for good, or is stopped.

    Args:
        store: the checkpoint of the app.
        submit: makes a new submission, not yet started.
        recover: called before each start; raises where the app may not start.
        strategy: how often, and how far apart, the app is started again.
        drain_timeout: how long a stopped app may take to end its batch before it is killed.
        sleep, clock: seconds; a test gives its own.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        submit: Callable[[], Submission],
        recover: Callable[[], None],
        strategy: RestartStrategy,
        drain_timeout: timedelta,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._submit = submit
        self._recover = recover
        self._strategy = strategy
        self._drain_timeout = drain_timeout
        self._sleep = sleep
        self._clock = clock
        self._current: Submission | None = None
        self._started_at_ms = 0
        self._stopped_because: str | None = None

    def until_finished(self) -> int:
        """Run the app; returns how many restarts it took.

        Raises:
            AppFailedError: it failed, and the restart strategy says: not again.
            AppStoppedError: :meth:`stop` was called meanwhile.
            EosError: whatever ``recover`` raised; the app was then not started.
        """
        try:
            return self._restart_until_finished()
        except BaseException:
            # An execution timeout or Ctrl-C ends the task here: the app must not be left alone.
            self.stop("the task ended early")
            raise

    def stop(self, reason: str) -> None:
        """Ask the app to drain, wait, and kill it only if it does not; harmless when it has ended.

        Runs inside a signal handler of the main thread, so it takes no lock and polls. The
        request is written first: if Airflow ends this process meanwhile, the app still drains.
        """
        self._stopped_because = reason
        if not self._app_runs():
            return
        log.info("Stopping (%s): the running batch ends first", reason)
        deadline = self._clock() + self._drain_timeout.total_seconds()
        while self._app_runs() and self._clock() < deadline and self._ask_to_drain(reason):
            self._sleep(_POLL_S)
        if self._current is not None and self._app_runs():
            log.warning("Not drained within %s: killing the app", self._drain_timeout)
            self._current.kill()

    def owns(self, heartbeat: Heartbeat | None) -> bool:
        """Whether the driver that beat last is one that we started, and is known to have ended."""
        return (
            heartbeat is not None
            and self._current is not None
            and not self._current.running
            and heartbeat.started_at_ms >= self._started_at_ms
            and heartbeat.host == socket.gethostname()
        )

    def _restart_until_finished(self) -> int:
        failures: list[Failure] = []
        while (problem := self._run_once()) is not None:
            failures.append(Failure(self._started_at_ms / 1000, self._clock()))
            delay = self._strategy.delay(failures)
            if delay is None:
                raise AppFailedError(
                    f"The app failed {len(failures)} times, and the restart strategy allows no "
                    f"further restart ({self._strategy}). The last time: {problem}"
                )
            delay_s = delay.total_seconds()
            log.warning("Restart %d in %g s: %s", len(failures), delay_s, problem)
            self._pause(delay_s)
        return len(failures)

    def _run_once(self) -> str | None:
        """Recover, start the app and wait for its end; returns what went wrong, if anything."""
        self._recover()
        self._raise_if_stopped()
        submission = self._submit()
        self._started_at_ms = int(self._clock() * 1000)
        self._current = submission
        submission.start()
        if self._stopped_because:  # a signal came between the two lines above
            self.stop(self._stopped_because)
        while submission.running:
            self._sleep(_POLL_S)
        self._raise_if_stopped()
        return self._problem(submission)

    def _problem(self, submission: Submission) -> str | None:
        """Exit status 0 alone proves nothing: the driver must have said that it stopped."""
        if submission.failure is not None:
            return str(submission.failure)
        heartbeat = read_heartbeat(self._store)
        if heartbeat is None or not self.owns(heartbeat):
            return (
                f"it exited with 0, but wrote no heartbeat to {self._store.location}/eos. Is this "
                "the checkpoint_location that the app gives to start_exactly_once?"
            )
        if heartbeat.phase != "stopped":
            return (
                f"it exited with 0, but its last heartbeat (batch {heartbeat.batch_id}) says "
                f"{heartbeat.phase!r}, expected 'stopped': the query ended by accident."
            )
        return None

    def _app_runs(self) -> bool:
        return self._current is not None and self._current.running

    def _ask_to_drain(self, reason: str) -> bool:
        """Write the request; again and again, because a driver that starts removes old ones."""
        try:
            request_drain(self._store, requested_by="airflow", reason=reason)
        except EosError:
            log.exception("The drain request could not be written: the app has to be killed")
            return False
        return True

    def _pause(self, seconds: float) -> None:
        """Sleep in short pieces, so that a stop need not wait for the delay to end."""
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0:
            self._raise_if_stopped()
            self._sleep(min(left, _POLL_S))
        self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self._stopped_because:
            raise AppStoppedError(
                f"The app was stopped: {self._stopped_because}. Nothing is lost; the next try "
                "resumes from the checkpoint."
            )
