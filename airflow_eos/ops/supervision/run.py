"""Runs the app of one task attempt: adopts or submits it, watches, restarts and stops it.

Free of Airflow, so that a test can drive it with a clock of its own: how to submit and how to
recover are given as functions. The decisions are in ``exit_status.py``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    Heartbeat,
    StartedBy,
    drain_of,
    read_heartbeat,
)
from airflow_eos.core.checkpoint.drain import BY_STANDBY, request_to
from airflow_eos.core.checkpoint.heartbeat import ENDED
from airflow_eos.core.checkpoint.liveness import Standstill, note_process_end
from airflow_eos.core.checkpoint.recovery_notes import (
    Replacement,
    driver_of,
    forget_refusal,
    note_refusal,
    note_restart,
    refusals_noted,
)
from airflow_eos.core.checkpoint.standby import Standby, standby_of, standbys
from airflow_eos.core.delivery.policy import Failure
from airflow_eos.errors import (
    AppFailedError,
    AppRefusedError,
    AppStoppedError,
    CheckpointFormatError,
    EosError,
    ForeignDriverError,
    StoreError,
)
from airflow_eos.ops.supervision.exit_status import (
    ENDED_BY_OTHERS,
    AdoptionDecision,
    ExitKind,
    ExitStatus,
    NextAction,
    Patience,
    Process,
    choose,
    died_standing_by,
    ended,
    left,
)
from airflow_eos.ops.supervision.heartbeat_monitor import (
    ClusterManager,
    HeartbeatObservation,
    HeartbeatReading,
    ask_to_drain,
    end_by_force,
    is_known_gone,
    is_refusal,
    kill_elsewhere,
    require_not_drained,
)
from airflow_eos.ops.supervision.rules import Rules
from airflow_eos.ops.supervision.trigger_watch import AppResult

log = logging.getLogger(__name__)

_GONE_S = 0.5
_POLL_S = 0.5


class Submission(Protocol):
    """The process that submits an app, or is its driver: start it, ask how it is, kill it.

    :class:`airflow_eos.hooks.spark.SparkSubmission` is Airflow's.
    """

    @property
    def running(self) -> bool:
        """Whether the app's process is still there: the driver's, or the one that submits it."""

    @property
    def failure(self) -> BaseException | None:
        """The failure of the process, once it has ended; None where it did not fail."""

    @property
    def detached(self) -> bool:
        """Whether the driver runs elsewhere and outlives the process (deploy mode cluster)."""

    def start(self) -> None:
        """Start the app; returns at once."""

    def kill(self) -> None:
        """Kill the app without asking it to drain."""


@dataclass(slots=True)
class AppRun:
    """The app of this try. ``process`` is None where another process has started the app."""

    submission: str
    process: Submission | None
    since_s: float
    began_s: float
    given_up: bool = False
    """Whether this try has given the app up, and looks for another."""

    @property
    def known(self) -> Process | None:
        """The state of the app's own process; None where only the heartbeat tells.

        A ``spark-submit`` that has handed its driver over says nothing any more. A ``spark-submit``
        that failed may have handed it over all the same: its reply was lost.
        """
        if self.process is None:
            return None
        running = self.process.running  # asked once, and first: after the end its failure is known
        failure = self.process.failure
        if self.process.detached and not running and failure is None:
            return None
        return Process(running, failure, self.process.detached)

    @property
    def is_child(self) -> bool:
        """Whether the app's driver is a child of this process, or is being submitted by one."""
        process = self.process
        return process is not None and (process.running or not process.detached)

    def may_live(
        self, pulse: HeartbeatReading, patience: Patience, clock: Callable[[], float]
    ) -> bool:
        """Whether the app may still be running; true where the store does not answer."""
        if self.is_child:
            return self.process is not None and self.process.running
        try:
            seen = pulse.look()
        except EosError:
            return True
        return ended(seen, self.submission, None, patience, clock() - self.since_s) is None

    def end_process(self, exit_status: ExitStatus, pause: Callable[[float], None]) -> None:
        """Kill the app's own process where it hangs: it is there although the app has ended."""
        if self.process is None:
            return
        if self.process.running:
            log.warning("The app's process is still there, and is killed: %s", exit_status)
            self.process.kill()
        while self.process.running:
            pause(_GONE_S)

    def kill(self, store: CheckpointStore, reason: str, manager: ClusterManager) -> None:
        """Kill the app wherever it is; ask a non-child to drain, too, as it may be out of reach.

        Where its process is seen to be gone there is nothing to kill, and nobody to ask.
        """
        if self.is_child and self.process is not None:
            self.process.kill()
            return
        if is_known_gone(store, self.submission):
            return
        log.warning("Killing the app: %s", end_by_force(store, self.submission, reason, manager))


# --- the app that lives ---------------------------------------------------------------------------


_LOOK_S = 1.0
_ENDING_S = 15.0
"""The time for a killed driver to fall silent."""


class DriverFinder:
    """Finds the living driver of a checkpoint; see ``exit_status.py`` for the table.

    Args:
        rules: rules of the try: the time a driver has to drain, and the manager that ends one.
        pause: sleeps; raises where the try was stopped.
    """

    def __init__(
        self,
        identity: StartedBy,
        pulse: HeartbeatReading,
        rules: Rules,
        pause: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._identity, self._pulse = identity, pulse
        self._drain_s = rules.drain_timeout.total_seconds()
        self._manager, self._standby = rules.manager, rules.standby
        self._pause, self._clock = pause, clock
        self.found_dead: Heartbeat | None = None
        """The heartbeat of the driver after which an app may be started."""

    def find(self, *, exited: str | None = None) -> str | None:
        """Return the submission of the app to take over; None where an app is to be started.

        Args:
            exited: the start whose process was seen to end, however young its heartbeat is.

        Raises:
            ForeignDriverError: another task, or a person, runs an app on the checkpoint.
            StoreError: the store refused access. A store that does not answer is asked again.
        """
        deadlines: list[float] = []
        told: AdoptionDecision | None = None
        while True:
            answer = self._asked(exited)
            if answer is not None:
                seen, choice = answer
                if self._standby and choice.action in (NextAction.REFUSE, NextAction.WAIT):
                    log.info("The app stands by: %s", choice.reason)
                    return None
                if choice.action is NextAction.REFUSE:
                    raise self._foreign(choice)
                if choice.action is NextAction.ADOPT and seen.living is not None:
                    log.info("Taking the app over: %s", choice.reason)
                    return seen.living.submission
                waits = choice.action is NextAction.WAIT
                if choice.action is NextAction.START or (
                    waits and self._waited_enough(deadlines, seen, choice)
                ):
                    self.found_dead = seen.heartbeat
                    log.info("No app to take over: %s", choice.reason)
                    if not waits and seen.gone is None:
                        self._end_the_silent(seen.heartbeat, exited)
                    return None
                if told is None or choice.action is not told.action:
                    log.info("%s", choice.reason)
                told = choice
            self._pause(_LOOK_S)

    def another(self, pulse: HeartbeatReading, given_up: str | None) -> str | None:
        """Return the submission of an app of this task that a try may leave unknowingly, or None.

        Args:
            given_up: the submission that this try has given up.
        """
        try:
            seen = pulse.look()
        except EosError as error:
            log.warning("Whether an app of this task lives cannot be told: %s", error)
            return None
        beat = seen.current
        if beat is None or seen.has_ended or beat == self.found_dead:
            return None
        ours = self._identity.is_same_task(beat.started_by) and beat.submission != given_up
        return beat.submission if ours else None

    def _asked(self, exited: str | None) -> tuple[HeartbeatObservation, AdoptionDecision] | None:
        """Look at the heartbeat and decide by it; None where the store did not answer."""
        try:
            seen = self._pulse.look()
            current = seen.current
            if exited is not None and current is not None and current.submission == exited:
                return seen, AdoptionDecision(NextAction.START, "its process has ended")
            request = drain_of(self._pulse.store, seen.living) if seen.living else None
            return seen, choose(seen, self._identity, request)
        except StoreError as error:
            if is_refusal(error):
                raise
            log.warning("The checkpoint did not answer; asking again: %s", error)
            return None

    def _waited_enough(
        self, deadlines: list[float], seen: HeartbeatObservation, choice: AdoptionDecision
    ) -> bool:
        """Whether a driver that was asked to drain is to be superseded, as it could not be ended.

        The driver first has ``drain_timeout``; then it is killed, and has a moment to fall silent.
        """
        now = self._clock()
        if not deadlines:
            deadlines.append(now + self._drain_s)
        if now < deadlines[-1]:
            return False
        living = seen.living
        if living is None or not self._identity.is_same_task(living.started_by):
            raise self._foreign(choice)
        if len(deadlines) > 1:
            log.warning("It could not be ended, and is superseded: %s", choice.reason)
            self._ask(living)
            return True
        done = kill_elsewhere(living, self._manager)
        log.warning("It has not drained within %g s: %s", self._drain_s, done)
        deadlines.append(now + _ENDING_S)
        return False

    def _end_the_silent(self, heartbeat: Heartbeat | None, exited: str | None) -> None:
        """Ask a given-up driver to drain, so that nothing goes on; kill one of this task, too."""
        if heartbeat is None or heartbeat.phase in ENDED or heartbeat.submission == exited:
            return
        self._ask(heartbeat)
        if self._identity.is_same_task(heartbeat.started_by):
            done = kill_elsewhere(heartbeat, self._manager)
            log.warning("The driver before this start: %s", done)

    def _ask(self, heartbeat: Heartbeat) -> None:
        """Ask a driver to drain that may be out of reach: without a term nothing else ends it."""
        if heartbeat.submission is not None:
            ask_to_drain(self._pulse.store, heartbeat.submission, "given up, and another started")

    def _foreign(self, choice: AdoptionDecision) -> ForeignDriverError:
        return ForeignDriverError(
            f"{self._pulse.store.location} is already running: {choice.reason}. A second driver "
            "would only take its place. Stop the task that runs it, or `airflow-eos drain` it, "
            "then clear this one."
        )


# --- the watch ------------------------------------------------------------------------------------


LOOK_S = 2.0
CHILD_LOOK_S = 5.0
"""The interval of looks at the heartbeat of an app whose process is a child of this one."""


class DriverMonitor:
    """Watches the heartbeat of an app, and its process where that is a child of this one.

    Args:
        on_first_heartbeat: called with the first heartbeat of each app that is watched; what it
            raises is logged.
        still_wanted: raises where the try was stopped; gets the state of the app's own process.
    """

    def __init__(
        self,
        pulse: HeartbeatReading,
        rules: Rules,
        *,
        on_first_heartbeat: Callable[[Heartbeat], None],
        still_wanted: Callable[[Process | None], None],
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._pulse, self._rules, self._on_first_heartbeat = pulse, rules, on_first_heartbeat
        self._still_wanted, self._sleep, self._clock = still_wanted, sleep, clock
        self._standstill = Standstill(clock)

    def until_ended(self, app: AppRun) -> ExitStatus | None:
        """Return how the app ended, or, with ``hand_over``, None once its driver was seen to live.

        A heartbeat alone does not prove life: a dead driver has left one, and the next watcher
        would count its silence anew.
        """
        looked_s, seen, seen_alive = float("-inf"), None, False
        while True:
            known = app.known  # before the look: after an end only a later look counts
            busy = known is not None and known.running
            self._still_wanted(known)
            every_s = LOOK_S if self._rules.hand_over or not busy else CHILD_LOOK_S
            if not busy or self._clock() - looked_s >= every_s:
                looked_s, seen = self._clock(), self._pulse.look_if_it_answers(refused=not busy)
                if seen is None:  # so it is not known whether the app has begun to beat
                    app.since_s = looked_s
            if seen is not None:
                mine = seen.of(app.submission)
                if mine is not None and busy:
                    app.since_s = self._clock()
                if mine is not None and not seen_alive:
                    seen_alive = True
                    self._tell(mine)
                if self._rules.hand_over and mine is not None and seen.living is not None:
                    return None
                exit_status = self._ended(seen, app, known, seen_alive=seen_alive)
                if exit_status is not None:
                    return exit_status
            self._sleep(_POLL_S if busy else LOOK_S)

    def _ended(
        self, seen: HeartbeatObservation, app: AppRun, known: Process | None, *, seen_alive: bool
    ) -> ExitStatus | None:
        patience, now = self._rules.patience, self._clock()
        if self._rules.standby and not seen_alive and seen.of(app.submission) is None:
            said = self._said_by(app)
            if said is not None and said.end is not None:
                return left(said)
            if said is not None and self._standstill.lasts_s(said) < patience.silent_s:
                app.since_s = now  # its first beat comes after it has stood by
            if known is None or known.running:
                if now - app.since_s < patience.first_beat_s:
                    return None
                return ExitStatus(ExitKind.NEVER_SEEN, "it neither drives nor stands by")
            return died_standing_by(known)
        return ended(seen, app.submission, known, patience, now - app.since_s)

    def _said_by(self, app: AppRun) -> Standby | None:
        try:
            return standby_of(self._pulse.store, app.submission)
        except StoreError as error:
            log.warning("Whether the app stands by cannot be told: %s", error)
            app.since_s = self._clock()
            return None

    def _tell(self, mine: Heartbeat) -> None:
        try:
            self._on_first_heartbeat(mine)
        except Exception:  # Airflow's API may be away, which must not end an app
            log.exception("Nobody was told of the app")


class StreamRun:
    """Runs one streaming app until it finishes in order, fails for good, or is stopped.

    Args:
        identity: the task; each start of the app gets a ``submission`` of its own.
        submit: makes the submission of a start, not yet started.
        recover: called before each start; raises where the app may not start.
        on_first_heartbeat: called with the first heartbeat of each app that is watched.
        reopen: opens the checkpoint with current keys, where the store refuses the former ones.
        sleep, clock: in seconds; a test gives its own. A time of day would jump: a pause of 10
            seconds would last an hour, or a driver that comes up be given up.
        wall: seconds since the epoch, for times that other processes read.
    """

    def __init__(
        self,
        store: CheckpointStore,
        identity: StartedBy,
        *,
        submit: Callable[[StartedBy], Submission],
        recover: Callable[[], None],
        on_first_heartbeat: Callable[[Heartbeat], None] = lambda _: None,
        reopen: Callable[[], CheckpointStore] | None = None,
        rules: Rules,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._identity, self._rules = identity, rules
        self._submit, self._recover = submit, recover
        self._sleep, self._clock, self._wall = sleep, clock, wall
        self._pulse = HeartbeatReading(store, every_s=CHILD_LOOK_S, reopen=reopen, clock=clock)
        self._finder = DriverFinder(identity, self._pulse, rules, self._pause, clock)
        self._watcher = DriverMonitor(
            self._pulse,
            rules,
            on_first_heartbeat=on_first_heartbeat,
            still_wanted=self._still_wanted,
            sleep=sleep,
            clock=clock,
        )
        self._app: AppRun | None = None
        self._failures: list[Failure] = []
        self._stopped_because: str | None = None

    def until_finished(self, previous: AppResult | None = None) -> AppResult:
        """Adopt the app or start it, and watch and restart it until it has finished.

        Args:
            previous: the end of the app, as the triggerer saw it, which watched the app for us.

        Raises:
            AppFailedError: the app failed, and the restart strategy allows no further restart.
            AppStoppedError: :meth:`stop` was called meanwhile.
            ForeignDriverError: another task runs an app on the checkpoint.
            EosError: whatever ``recover`` raised; the app was then not started.
        """
        try:
            app = None
            if previous is not None:
                ended_as = self._as_asked(previous.submission, previous.ended)
                previous = replace(previous, ended=ended_as)
                if previous.ended is not None and previous.ended.in_order:
                    return previous
                app = self._left_by(previous)
            return self._restart_until_finished(app)
        except BaseException as error:
            # An execution timeout or Ctrl-C ends the task here: the app must not be left alone.
            # Where the store refuses us access, or a heartbeat cannot be read, the app may well
            # be healthy, and goes on.
            if not is_refusal(error) and not isinstance(error, CheckpointFormatError):
                self.stop("the task ended early")
            raise

    def _left_by(self, previous: AppResult) -> AppRun | None:
        """Count the failure in ``previous``; without an end, return the app to watch on, if newest.

        The app may have ended since, as it was asked to, and no app is to be started then.
        """
        self._failures = list(previous.failures)
        app = AppRun(previous.submission, None, self._clock(), previous.began_s)
        exit_status = previous.ended
        if exit_status is None:
            while (seen := self._pulse.look_if_it_answers(refused=True)) is None:
                self._pause(LOOK_S)
            self._app = app if seen.of(app.submission) is not None else None
            return self._app
        if exit_status.end not in ENDED_BY_OTHERS:
            self._app, app.given_up = app, True
            self._clear_away(app, exit_status)
            self._after(exit_status, app)
        return None

    def stop(self, reason: str) -> None:
        """Stop the app as ``cancel`` says (a drain kills it if late); harmless when it has ended.

        Runs inside a signal handler of the main thread, so it takes no lock and polls. The drain
        request is written first: if Airflow ends this process meanwhile, the app still drains.
        """
        self._stopped_because = reason
        pulse = HeartbeatReading(self._store, every_s=_POLL_S, clock=self._clock)
        app = self._app
        if app is None or app.given_up:
            found = self._finder.another(pulse, app.submission if app is not None else None)
            app = None if found is None else AppRun(found, None, self._clock(), self._wall())
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
                if not asked and app.is_child:  # which a kill surely ends
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
        """Whether the app of this try goes on as a child, with files of this machine."""
        process = self._app.process if self._app is not None else None
        return process is not None and process.running

    def is_dead(self, heartbeat: Heartbeat | None) -> bool:
        """Whether the driver of the heartbeat was seen to have ended, or to be silent."""
        return heartbeat is not None and heartbeat == self._finder.found_dead

    def _restart_until_finished(self, app: AppRun | None) -> AppResult:
        app = app or self._found() or self._started()
        while True:
            exit_status = self._as_asked(app.submission, self._watcher.until_ended(app))
            if exit_status is not None:
                app.end_process(exit_status, self._pause)
            if exit_status is None or exit_status.in_order:
                return AppResult(app.submission, exit_status, tuple(self._failures), app.began_s)
            app.given_up = True
            if exit_status.end in ENDED_BY_OTHERS:
                log.warning("The app was %s", exit_status)
                newer = self._found()  # of this task: there is never a third
                if newer is None and exit_status.end is ExitKind.CALLED_OFF:  # no failure
                    newer = self._started()
                if newer is not None:
                    app = newer
                    continue
            self._clear_away(app, exit_status)
            self._after(exit_status, app)
            app = self._found() or self._started()

    def _as_asked(self, submission: str, exit_status: ExitStatus | None) -> ExitStatus | None:
        """Return a superseded end as drained where the driver was asked to hand over.

        The driver's own last heartbeat is gone where the next one beat before we looked.
        """
        if exit_status is None or exit_status.end is not ExitKind.SUPERSEDED:
            return exit_status
        request = request_to(self._store, submission)
        if request is None or request.requested_by != BY_STANDBY:
            return exit_status
        return ExitStatus(ExitKind.DRAINED, f"{exit_status.found}: {request.reason}")

    def _clear_away(self, app: AppRun, exit_status: ExitStatus) -> None:
        """End what is left of an app that was given up, and note its end for standbys."""
        known = app.known
        if known is not None and not known.running and not known.detached:
            said = f"{self._identity} saw its process end: {exit_status}"
            try:
                note_process_end(self._store, app.submission, said)
            except EosError as error:
                log.warning("That the app's process has ended could not be noted: %s", error)
        submitted = app.process is not None and app.process.detached
        why = f"it was given up: {exit_status.end.value}"
        if exit_status.end is ExitKind.VANISHED:
            app.kill(self._store, why, self._rules.manager)
        elif exit_status.end is ExitKind.NEVER_SEEN or (
            submitted and exit_status.end is ExitKind.FAILED
        ):
            # The app may still be waiting for resources: then it ends before its first batch.
            ask_to_drain(self._store, app.submission, why)

    def _after(self, exit_status: ExitStatus, app: AppRun) -> None:
        """Count a failure and wait before the restart; raise where the app may not start again."""
        if exit_status.hopeless:
            run = self._identity
            if not self._rules.standby:  # the note is about a driver, which may live before it
                note_refusal(self._store, exit_status.found, dag_id=run.dag_id, run_id=run.run_id)
            raise AppRefusedError(f"The app ended with what no restart can heal: {exit_status}")
        require_not_drained(self._store, app.submission)
        self._failures.append(Failure(app.began_s, self._wall()))
        number, strategy = len(self._failures), self._rules.strategy
        delay, limit = strategy.delay(self._failures), getattr(strategy, "attempts", None)
        if delay is None:
            raise AppFailedError(
                f"The app failed {number} times, and the restart strategy allows no further "
                f"restart ({strategy}). The last time: {exit_status}"
            )
        delay_s = delay.total_seconds()
        log.warning("Restart %d in %g s: %s", number, delay_s, exit_status)
        try:  # for the watchdog, which might start another app meanwhile
            driver = driver_of(read_heartbeat(self._store))
            by = Replacement(driver=driver, number=number, limit=limit, by=str(self._identity))
            note_restart(self._store, by)
        except EosError as error:
            log.warning("That the app is started again could not be noted: %s", error)
        self._pause(delay_s)
        require_not_drained(self._store, app.submission)

    def _found(self) -> AppRun | None:
        """Adopt the living app of this task; None where an app is to be started."""
        last = self._app
        submission = self._finder.find(
            exited=last.submission if last is not None and last.is_child else None
        )
        if submission is None:
            return None
        self._app = AppRun(submission, None, self._clock(), self._wall())
        return self._app

    def _started(self) -> AppRun:
        """Recover, and start the app; a standby recovers when it takes over."""
        run = self._identity
        if self._rules.standby:
            self._end_former_standbys()
        else:  # what refuses that is noted for whoever looks at the checkpoint
            with refusals_noted(self._store, dag_id=run.dag_id, run_id=run.run_id):
                self._recover()
        self._raise_if_stopped()
        forget_refusal(self._store)
        self._pulse.forget()
        identity = run.begun_anew()
        process = self._submit(identity)
        self._app = app = AppRun(identity.submission, process, self._clock(), self._wall())
        process.start()
        if self._stopped_because:  # a signal came between the lines above
            self.stop(self._stopped_because)
        return app

    def _end_former_standbys(self) -> None:
        """Ask the standbys of earlier tries of this task to drain: they would be a third app."""
        for each in standbys(self._store):
            if each.started_by is not None and self._identity.is_same_task(each.started_by):
                ask_to_drain(self._store, each.started_by.submission, "another try stands by")

    def _pause(self, seconds: float) -> None:
        """Sleep in short pieces, so that a stop need not wait for the delay to end."""
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0:
            self._raise_if_stopped()
            self._sleep(min(left, _POLL_S))
        self._raise_if_stopped()

    def _still_wanted(self, process: Process | None) -> None:
        """Raise where the try was stopped, unless the app's own process still has to end."""
        if process is None or not process.running or self._rules.cancel == "leave":
            self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self._stopped_because:
            raise AppStoppedError(
                f"The app was stopped: {self._stopped_because}. Nothing is lost; the next try "
                "resumes from the checkpoint."
            )
