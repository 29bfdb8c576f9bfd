"""One try of a streaming app: find the one that lives or start one, watch, start again, stop.

Free of Airflow, so that a test can drive it with a clock of its own. What it starts and what it
asks are given as functions. What it decides is in ``adoption.py`` and ``ending.py``.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from airflow_eos.checkpoint import read_heartbeat
from airflow_eos.checkpoint.heartbeat import Replacement, driver_of, note_restart
from airflow_eos.errors import AppRefusedError, AppStoppedError, EosError
from airflow_eos.sinks.restarts import Failure
from airflow_eos.supervision.app import App
from airflow_eos.supervision.ending import NOT_ITS_OWN, End, Ended
from airflow_eos.supervision.finding import Finder
from airflow_eos.supervision.pulse import Pulse, is_refusal
from airflow_eos.supervision.stopping import ask_to_drain, require_not_drained
from airflow_eos.supervision.watch_app import Outcome
from airflow_eos.supervision.watching import CHILD_LOOK_S, LOOK_S, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_eos.checkpoint import CheckpointStore, Heartbeat, StartedBy
    from airflow_eos.supervision.app import Rules, Submission
    from airflow_eos.supervision.ending import Process

log = logging.getLogger(__name__)

_POLL_S = 0.5


class StreamRun:
    """Runs one streaming app until it finishes in order, fails for good, or is stopped.

    Args:
        store: the checkpoint of the app.
        us: the task; each start gets a ``submission`` of its own.
        submit: makes a new submission for that start, not yet run.
        recover: called before each start; raises where the app may not start.
        met: called with the first heartbeat of each app that is watched.
        reopen: opens the checkpoint with the keys of now, where it refuses those of before.
        rules: see there.
        sleep, clock: seconds (``clock`` since the epoch); a test gives its own.
    """

    def __init__(
        self,
        store: CheckpointStore,
        us: StartedBy,
        *,
        submit: Callable[[StartedBy], Submission],
        recover: Callable[[], None],
        met: Callable[[Heartbeat], None] = lambda _: None,
        reopen: Callable[[], CheckpointStore] | None = None,
        rules: Rules,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._us, self._rules = us, rules
        self._submit, self._recover = submit, recover
        self._sleep, self._clock = sleep, clock
        self._pulse = Pulse(store, every_s=CHILD_LOOK_S, reopen=reopen, clock=clock)
        self._finder = Finder(us, self._pulse, rules, self._pause, clock)
        self._watcher = Watcher(
            self._pulse, rules, met=met, still_wanted=self._still_wanted, sleep=sleep, clock=clock
        )
        self._app: App | None = None
        self._failures: list[Failure] = []
        self._stopped_because: str | None = None

    def until_finished(self, before: Outcome | None = None) -> Outcome:
        """Find the app or start it, and see it through.

        Args:
            before: the end of the app, as somebody else has seen it who watched it for us.

        Raises:
            AppFailedError: it failed, and the restart strategy says: not again.
            AppStoppedError: :meth:`stop` was called meanwhile.
            ForeignDriverError: another task runs it.
            EosError: whatever ``recover`` raised; the app was then not started.
        """
        try:
            app = None if before is None else self._left_by(before)
            return self._restart_until_finished(app)
        except BaseException as error:
            # An execution timeout or Ctrl-C ends the task here: the app must not be left alone. For
            # all that we know it is well where we may not look.
            if not is_refusal(error):
                self.stop("the task ended early")
            raise

    def _left_by(self, before: Outcome) -> App | None:
        """Count the end that was seen. Where none was, the app to watch on, if it is the newest.

        It may have ended since, as it was asked to, and nothing is to be started then.
        """
        self._failures = list(before.failures)
        app, how = App(before.submission, None, self._clock(), before.began_s), before.ended
        if how is None:
            while (seen := self._pulse.look_if_it_answers(refused=True)) is None:
                self._pause(LOOK_S)
            self._app = app if seen.is_of(app.submission) else None
            return self._app
        if how.end not in NOT_ITS_OWN:
            self._app, app.given_up = app, True
            self._clear_away(app, how)
            self._after(how, app)
        return None

    def stop(self, reason: str) -> None:
        """Ask the app to drain, wait, and kill it only if it does not; harmless when it has ended.

        Runs inside a signal handler of the main thread, so it takes no lock and polls. The
        request is written first: if Airflow ends this process meanwhile, the app still drains.
        """
        self._stopped_because = reason
        pulse = Pulse(self._store, every_s=_POLL_S, clock=self._clock)
        app = self._app
        if app is None or app.given_up:
            found = self._finder.another(pulse, app.submission if app is not None else None)
            app = None if found is None else App(found, None, self._clock(), self._clock())
        if app is None or not app.may_live(pulse, self._rules.patience, self._clock):
            return
        if self._rules.cancel == "leave":
            log.info("The app goes on by itself (%s); the next try takes it over", reason)
            return
        if self._rules.cancel == "drain":
            log.info("Stopping (%s): the running batch ends first", reason)
            deadline = self._clock() + self._rules.drain_timeout.total_seconds()
            while self._clock() < deadline:
                asked = ask_to_drain(self._store, app.submission, reason)
                if not asked and app.is_child:  # which can be killed for sure
                    break
                self._sleep(_POLL_S)
                if not app.may_live(pulse, self._rules.patience, self._clock):
                    return
            log.warning("Not drained within %s: killing the app", self._rules.drain_timeout)
        app.kill(self._store, reason, self._rules.manager)

    @property
    def _store(self) -> CheckpointStore:
        return self._pulse.store

    @property
    def leaves_a_child(self) -> bool:
        """Whether what this try has started goes on, from files of this machine."""
        return self._app is not None and self._app.runs_here

    def is_dead(self, heartbeat: Heartbeat | None) -> bool:
        """Whether the driver that beat last was seen to have ended, or to be silent."""
        return heartbeat is not None and heartbeat == self._finder.found_dead

    def _restart_until_finished(self, app: App | None) -> Outcome:
        app = app or self._found() or self._started()
        while True:
            how = self._watcher.until_ended(app)
            if how is not None:
                app.end_process(how, self._pause)
            if how is None or how.in_order:
                return Outcome(app.submission, how, tuple(self._failures), app.began_s)
            app.given_up = True
            if how.end in NOT_ITS_OWN:
                log.warning("The app was %s", how)
                newer = self._found()  # of this task: there is never a third
                if newer is None and how.end is End.CALLED_OFF:  # no failure
                    newer = self._started()
                if newer is not None:
                    app = newer
                    continue
            self._clear_away(app, how)
            self._after(how, app)
            app = self._found() or self._started()

    def _clear_away(self, app: App, how: Ended) -> None:
        """Let nothing of an app go on that was given up."""
        submitted = app.process is not None and app.process.detached
        why = f"it was given up: {how.end.value}"
        if how.end is End.VANISHED:
            app.kill(self._store, why, self._rules.manager)
        elif how.end is End.NEVER_SEEN or (submitted and how.end is End.FAILED):
            # It may still be waiting for its turn: then it ends before its first batch.
            ask_to_drain(self._store, app.submission, why)

    def _after(self, how: Ended, app: App) -> None:
        """Count a failure, and wait before the next start, which a person may not want."""
        if how.hopeless:
            raise AppRefusedError(f"The app ended with what no restart can heal: {how}")
        require_not_drained(self._store, app.submission)
        self._failures.append(Failure(app.began_s, self._clock()))
        delay_s = self._rules.pause_after(self._failures, how)
        log.warning("Restart %d in %g s: %s", len(self._failures), delay_s, how)
        self._say_who_restarts()
        self._pause(delay_s)
        require_not_drained(self._store, app.submission)

    def _say_who_restarts(self) -> None:
        """For whoever looks at the checkpoint meanwhile, and might start another app."""
        number, limit = len(self._failures), getattr(self._rules.strategy, "attempts", None)
        try:
            driver = driver_of(read_heartbeat(self._store))
            by = Replacement(driver=driver, number=number, limit=limit, by=str(self._us))
            note_restart(self._store, by)
        except EosError as error:
            log.warning("That the app is started again could not be noted: %s", error)

    def _found(self) -> App | None:
        """Take over the app that lives, if there is one."""
        last = self._app
        submission = self._finder.find(
            exited=last.submission if last is not None and last.is_child else None
        )
        if submission is None:
            return None
        self._app = App(submission, None, self._clock(), self._clock())
        return self._app

    def _started(self) -> App:
        """Recover, and start the app anew."""
        self._recover()
        self._raise_if_stopped()
        self._pulse.forget()
        us = self._us.begun_anew()
        process = self._submit(us)
        self._app = app = App(us.submission, process, self._clock(), self._clock())
        process.start()
        if self._stopped_because:  # a signal came between the lines above
            self.stop(self._stopped_because)
        return app

    def _pause(self, seconds: float) -> None:
        """Sleep in short pieces, so that a stop need not wait for the delay to end."""
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0:
            self._raise_if_stopped()
            self._sleep(min(left, _POLL_S))
        self._raise_if_stopped()

    def _still_wanted(self, process: Process | None) -> None:
        """Raise where the try was stopped, unless the end of its own process is waited for."""
        if process is None or not process.running or self._rules.cancel == "leave":
            self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self._stopped_because:
            raise AppStoppedError(
                f"The app was stopped: {self._stopped_because}. Nothing is lost; the next try "
                "resumes from the checkpoint."
            )
