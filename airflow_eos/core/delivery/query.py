"""The running query, its heartbeat, and how both end: drained, stopped or failed."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import structlog

from airflow_eos.core.checkpoint import (
    Heartbeat,
    StartedBy,
    clear_drain,
    drain_requested,
    read_heartbeat,
    write_heartbeat,
)
from airflow_eos.core.checkpoint.backend import STANDBYS
from airflow_eos.core.checkpoint.drain import (
    BY_AIRFLOW,
    BY_STANDBY,
    Beginning,
    request_to,
    withdraw_hand_over,
)
from airflow_eos.core.checkpoint.heartbeat import STARTED_BY, beat_interval
from airflow_eos.core.checkpoint.liveness import Standstill, process_mark
from airflow_eos.core.checkpoint.progress import StateSize, read_state_size, write_state_size
from airflow_eos.core.checkpoint.standby import LOOKS_MISSED, StandbyWatch
from airflow_eos.core.checkpoint.terms import is_newest
from airflow_eos.core.checkpoint.watchdog_record import read_look
from airflow_eos.core.delivery.causes import cause_of
from airflow_eos.core.delivery.observer import (
    Began,
    Failed,
    Phased,
    Progressed,
    QueryEnded,
    Started,
    Watched,
)
from airflow_eos.errors import CheckpointError, CheckpointFormatError, EosError, SupersededError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_eos.core.checkpoint import CheckpointStore
    from airflow_eos.core.checkpoint.heartbeat import End, Phase
    from airflow_eos.core.checkpoint.standby import Standby
    from airflow_eos.core.delivery.observer import Observer

log = structlog.get_logger(__name__)

_FILES = "rocksdbSstFileSize"
_WATCHED, _WATCHED_DISK = timedelta(seconds=2), timedelta(seconds=1)
"""The interval between beats while another driver stands by; the second one on a disk."""
_READY_WITHIN_S, _REFUSED_WITHIN_S = 60.0, 10.0
"""The time for which a driver that hands over goes on until a standby says that it is ready; the
second one where each that answers says that it cannot go on."""
_FOLLOWED_WITHIN_S = 5.0
"""The time for which a driver that has handed over holds still for the next one's first batch."""
_HAND_OVER_LOOK, _HAND_OVER_LOOK_DISK = 0.5, 0.1
"""Seconds between the looks at a standby in these times; the second one on a disk."""


def state_size(
    progress: Mapping[str, Any] | None, recent: Sequence[Any] = (), before: StateSize | None = None
) -> StateSize | None:
    """Return the size of the query's state; None where no batch has ended, or there is no state.

    Args:
        progress: ``lastProgress``, with the names of Spark's JSON (``StreamingQueryProgress``).
        recent: the newest progress updates, in Spark's own objects, in ascending order.
        before: the size noted before; late rows are counted on from there.
    """
    operators = progress["stateOperators"] if progress is not None else []
    if progress is None or not operators:
        return None

    def total(name: str) -> int:
        return sum(int(operator[name]) for operator in operators)

    files = [operator["customMetrics"].get(_FILES) for operator in operators]
    late, counted = (0, 0) if before is None else (before.late_rows, before.late_counted)
    for update in reversed(recent):
        if update.batchId() > progress["batchId"]:
            continue  # the batch has ended since: the next note counts it
        if before is not None and update.batchId() <= before.batch_id:
            break
        late += sum(each.numRowsDroppedByWatermark() for each in update.stateOperators())
        counted += 1
    return StateSize(
        batch_id=int(progress["batchId"]),
        rows=total("numRowsTotal"),
        memory_bytes=total("memoryUsedBytes"),
        file_bytes=None if None in files else sum(files),
        tasks=total("numStateStoreInstances"),
        update_ms=total("allUpdatesTimeMs") + total("allRemovalsTimeMs"),
        commit_ms=total("commitTimeMs"),
        batch_ms=int(progress["durationMs"]["triggerExecution"]),
        late_rows=late,
        late_counted=counted,
    )


# --- heartbeat ------------------------------------------------------------------------------------
# The driver's heartbeat, which also looks for a request to drain. Evidence, never correctness.


class HeartbeatWriter:
    """The writer of ``eos/driver.json``, at its store's rate; it looks for requests to drain, too.

    Never writes over the heartbeat of a newer term: a superseded driver has nothing to say any
    more, and drains.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        application_id: str,
        trigger: timedelta,
        master: str = "",
        deploy_mode: str = "",
        namespace: str = "",
        observer: Observer | None = None,
        began: Beginning | None = None,
    ) -> None:
        self.observer = observer
        """The observer that is told of phases and batches, for the figures; None by default."""
        self._store, self._began = store, began or Beginning.now(store)
        self._usual = self._interval = beat_interval(store.location)
        self._application_id = application_id
        self._trigger = trigger
        self._master, self._deploy_mode, self._namespace = master, deploy_mode, namespace
        self._started_by = StartedBy.of_text(os.environ.get(STARTED_BY))
        self._process = process_mark(os.getpid())
        self._started_at_ms = _now_ms()
        self._batch_id: int | None = None
        self.term: int | None = None
        self._phase: Phase = "starting"
        self._end: End | None = None
        self._reason: str | None = None
        self._restart_heals: bool | None = None
        self._drained_by: str | None = None
        self._ended = threading.Event()
        self._beating = threading.Lock()
        self._thread: threading.Thread | None = None
        self.draining = threading.Event()
        self.superseded = threading.Event()
        """Set once a newer term was seen: then the driver can only end."""
        self.before_stopped: Callable[[], None] = lambda: None
        """Called by a driver that ends in order, before its last beat."""
        self._looked, self._stood_by = Standstill(), Standstill()
        self._still_until: float | None = None
        self._query: StreamingQuery | None = None
        self._state: StateSize | None = None

    def start(self, term: int | None = None) -> None:
        """Beat once now, then from a thread; a second call does nothing.

        Called as soon as the term is ours: the work before the first batch may take long, and
        others who look meanwhile must find a driver here.
        """
        if self._thread is not None:
            return
        self.term = term
        clear_drain(self._store, term=term, submission=self._submission, began=self._began)
        if self.observer is not None:
            self.observer(Started())
        self._thread = threading.Thread(target=self._run, name="airflow-eos-heartbeat", daemon=True)
        self._beat()
        self._thread.start()

    def mark(self, batch_id: int, phase: Phase) -> None:
        """Set the batch and phase that the next beat tells."""
        self._batch_id, self._phase = batch_id, phase
        if self.observer is not None:
            self.observer(Phased(batch_id, phase))

    def begin(self, batch_id: int) -> None:
        """Tell the observer that a batch begins, after the progress of the batch before."""
        if self.observer is not None:
            self._tell_progress(self.observer)
            self.observer(Began(batch_id))

    def fail(self, batch_id: int, error: BaseException) -> None:
        """Tell the observer that the batch raised ``error``."""
        if self.observer is not None:
            self.observer(Failed(batch_id, error))

    def follow(self, query: StreamingQuery) -> None:
        """Set the running query; the size of its state is noted from now on."""
        self._query = query

    def stop(self, phase: Phase, error: BaseException | None = None) -> None:
        """Beat for the last time, so that others need not wait for silence to tell.

        A driver that never began to beat writes nothing: another driver may live here.
        """
        if phase == "stopped" and not self.superseded.is_set():
            self.before_stopped()
        drained = self.draining.is_set() or self._hands_over
        self._end = _end_of(phase, error, drained=drained)
        if error is not None:
            cause = cause_of(error)
            self._reason, self._restart_heals = str(cause), cause.restart_heals
        self._phase = phase
        self._ended.set()
        if self.observer is not None:
            self._tell_progress(self.observer)
            meant = phase == "stopped" and self._drained_by != BY_AIRFLOW
            self.observer(QueryEnded(as_meant=meant))
        if self._thread is None:
            return
        if self._thread.is_alive():
            self._thread.join(timeout=self._interval.total_seconds())
        self._beat()
        if self._hands_over and phase == "stopped":
            self._still_until = time.monotonic() + _FOLLOWED_WITHIN_S

    def hold_still(self) -> None:
        """Where we have handed over, wait until the next driver has begun a batch, some seconds.

        On one machine our shutdown would take the processor from its first batch.
        """
        with suppress(EosError):
            while self._still_until is not None and time.monotonic() < self._still_until:
                beat = read_heartbeat(self._store)
                if beat is not None and beat.term != self.term and beat.batch_id is not None:
                    return
                time.sleep(self._look_s)

    @property
    def _submission(self) -> str | None:
        return self._started_by.submission if self._started_by is not None else None

    def _run(self) -> None:
        while not self._ended.wait(self._interval.total_seconds()):
            self._beat()
            if self._hands_over and not self.draining.is_set():
                self._await_standby()

    def _await_standby(self) -> None:
        """Go on, and beat, until a standby is ready: rows flow meanwhile. Then drain.

        So it is where one lives and only takes long. Where none can go on, or none was seen to
        live, the hand-over is taken back.
        """
        began, watch = time.monotonic(), StandbyWatch()
        beat_at = began + self._interval.total_seconds()
        while not (self._ended.wait(self._look_s) or self.draining.is_set()):
            if (now := time.monotonic()) >= beat_at:
                self._beat()
                beat_at = now + self._interval.total_seconds()
            try:
                self._hear()
                if not self._hands_over:
                    return
                # One that has died says for ever what it said last.
                there = [each.standby for each in watch.look(self._store) if each.lives]
                live = [each for each in there if each.behind == self.term]
                able = [each for each in live if not each.reason]
                waits_s = _REFUSED_WITHIN_S if live and not able else _READY_WITHIN_S
                is_over = now - began >= waits_s
                if is_over and not able:
                    self._keep(live)
                    return
                if is_over or any(each.is_ready for each in able):
                    self.draining.set()
            except CheckpointError:
                continue  # as good as not ready yet

    def _keep(self, there: Sequence[Standby]) -> None:
        """Take the hand-over back: nobody could go on."""
        withdraw_hand_over(self._store, term=self.term, submission=self._submission)
        self._reason = self._drained_by = None
        why = [f"{each} could not: {each.reason}" for each in there]
        log.warning("hand_over_taken_back", why="; ".join(why) or "nobody stands by any more")

    @property
    def _hands_over(self) -> bool:
        return self._drained_by == BY_STANDBY

    def _hear(self) -> None:
        """Note who asks us to end, and drain; a hand-over waits for a standby first."""
        request = drain_requested(self._store, term=self.term, submission=self._submission)
        if self._ended.is_set():
            return
        if request is not None:
            self._reason = f"{request.requested_by}: {request.reason}"
            self._drained_by = request.requested_by
            if not self._hands_over:
                self.draining.set()
        elif self._hands_over and not self.draining.is_set():  # taken back
            self._reason = self._drained_by = None

    @property
    def _look_s(self) -> float:
        return _HAND_OVER_LOOK_DISK if self._store.is_on_a_disk else _HAND_OVER_LOOK

    def _beat(self) -> None:
        # One beat at a time: on a slow store an earlier beat must not overwrite the last one.
        with self._beating:
            self._beat_once()

    def _beat_once(self) -> None:
        try:
            if self._is_superseded():
                self.superseded.set()
                self.draining.set()  # without input no batch would find the newer term
                return
            self._interval = self._pace()  # written before it applies: readers count silence by it
            write_heartbeat(self._store, self._heartbeat())
            self._hear()
            self._note_state()
            if self.observer is not None:
                self._tell_progress(self.observer)
                self._tell_watchdog(self.observer)
        except CheckpointError as error:
            log.warning("heartbeat_failed", error=str(error))
        except Exception:  # whatever it is: without this thread nobody's wish to drain is heard
            log.exception("heartbeat_failed")

    def _pace(self) -> timedelta:
        """Return the interval: shorter while a standby waits, which then sees the end sooner."""
        told = [(each.name, each.modified_at_ms) for each in self._store.list(STANDBYS)]
        lasts_s = self._stood_by.lasts_s(told)
        if not told or lasts_s >= LOOKS_MISSED * self._usual.total_seconds():
            return self._usual
        return min(self._usual, _WATCHED_DISK if self._store.is_on_a_disk else _WATCHED)

    def _is_superseded(self) -> bool:
        try:
            standing = read_heartbeat(self._store)
        except CheckpointFormatError:
            standing = None  # damaged: this beat writes it anew; terms tell which driver is newer
        if self.term is None:  # then another driver beats here, and this start was given up
            us = self._submission
            others = us is not None and standing is not None and standing.submission != us
            return others and request_to(self._store, us or "") is not None
        if standing is not None and standing.term is not None and standing.term > self.term:
            return True
        return not is_newest(self._store, self.term)  # a newer driver may never have begun to beat

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            term=self.term,
            started_by=self._started_by,
            master=self._master,
            deploy_mode=self._deploy_mode,
            namespace=self._namespace,
            application_id=self._application_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            process=self._process,
            batch_id=self._batch_id,
            phase=self._phase,
            end=self._end,
            reason=self._reason,
            drained_by=self._drained_by,
            restart_heals=self._restart_heals,
            beat_at_ms=_now_ms(),
            interval_ms=int(self._interval.total_seconds() * 1000),
            trigger_ms=int(self._trigger.total_seconds() * 1000),
            started_at_ms=self._started_at_ms,
        )

    def _note_state(self) -> None:
        query = self._query
        if query is None:
            return
        before = self._state or read_state_size(self._store)
        try:
            progress = query.lastProgress
            if progress is None or not progress["stateOperators"]:
                return
            if before is not None and progress["batchId"] <= before.batch_id:
                return
            size = state_size(progress, query._jsq.recentProgress(), before)  # noqa: SLF001 - few of them
        except Exception:  # whatever Spark raises, the heartbeat goes on
            log.exception("state_not_noted")
            return
        if size is not None:
            write_state_size(self._store, size)
            self._state = size

    def _tell_watchdog(self, observer: Observer) -> None:
        """Tell how many intervals the watchdog's newest look is old, by our own clock."""
        look = read_look(self._store)
        if look is not None and look.interval_ms is not None:
            silent_ms = 1000 * self._looked.lasts_s(look)
            observer(Watched(silent_ms // look.interval_ms))

    def _tell_progress(self, observer: Observer) -> None:
        try:
            progress = self._query.lastProgress if self._query is not None else None
            if progress is not None:
                observer(Progressed(json.loads(progress.json)))
        except Exception:  # a figure that is missing is no reason to lose a batch
            log.exception("progress_not_told")


def _end_of(phase: Phase, error: BaseException | None, *, drained: bool) -> End:
    if phase == "stopped":
        return "drained" if drained else "finished"
    return "superseded" if isinstance(error, SupersededError) else "failed"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- query ----------------------------------------------------------------------------------------
# Spark's query as its user holds it, with drain and the batch's own errors.


_IDLE_LOOK_S = 0.02
_PAUSED_LOOK_S = 0.5


class Drained(Exception):  # noqa: N818 - not an error: the way to say "no further batch"
    """Raised instead of starting a batch once a drain was requested."""


class GuardedBatch:
    """The batch function, run unless draining; keeps the Python error that Spark turns into text.

    ``pause`` follows each batch: its rows are visible, and Spark plans the next batch after it. It
    comes before ``commits/N``, as nobody can wait between that and the next plan: a driver that
    dies in it leaves a batch that is settled, and is evaluated once more for its state.
    """

    def __init__(
        self,
        batch: Callable[[DataFrame, int], None],
        heartbeat: HeartbeatWriter,
        pause: timedelta = timedelta(0),
    ) -> None:
        self._batch = batch
        self._heartbeat = heartbeat
        self._pause_s = pause.total_seconds()
        self.failure: BaseException | None = None
        self.drained = False
        """Whether a batch was left to the next start, which Spark reports as an error."""
        self.ending = threading.Event()
        """Set to end a pause early."""
        self.on_drained: Callable[[], None] = lambda: None
        """Called when a batch is left to the next start; then Spark plans and writes no more."""
        self.is_wanted: Callable[[], bool] = lambda: True
        """Whether nobody has stopped the query by Spark's own means, which wait for the pause."""

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Deliver the batch; see ``ExactlyOnceBatch``."""
        if self._heartbeat.draining.is_set():
            self.drained = True
            self.on_drained()
            raise Drained(f"batch {batch_id} waits for the next start")
        self._heartbeat.begin(batch_id)
        try:
            self._batch(df, batch_id)
        except BaseException as error:
            self.failure = error
            self._heartbeat.fail(batch_id, error)
            raise
        self._rest()

    def _rest(self) -> None:
        until = time.monotonic() + self._pause_s
        while (left := until - time.monotonic()) > 0 and self.is_wanted():
            if self.ending.wait(min(left, _PAUSED_LOOK_S)):
                return


class ExactlyOnceQuery:
    """A running query, with the names of Spark's ``StreamingQuery``."""

    def __init__(
        self,
        query: StreamingQuery,
        run: GuardedBatch,
        heartbeat: HeartbeatWriter,
        resources: ExitStack,
    ) -> None:
        self._query = query
        self._run = run
        self._run.is_wanted = lambda: bool(query.isActive)
        self._run.on_drained = self._say_drained
        self._heartbeat = heartbeat
        self._resources = resources
        self._closing = threading.Lock()
        self._said = False
        threading.Thread(target=self._watch, name="airflow-eos-drain", daemon=True).start()

    def awaitTermination(self, timeout: int | None = None) -> bool:  # noqa: N802 - Spark's name
        """Wait until the query ends, at most ``timeout`` seconds; True when it has ended.

        A drained or stopped query ends normally.

        Raises:
            EosError: the error that ended the query, as raised by the batch.
            SupersededError: another driver has taken its place.
            StreamingQueryException: an error of Spark's own.
        """
        try:
            ended = self._query.awaitTermination(timeout)
        except Exception as error:
            if self._run.failure is None and self._run.drained:
                self._end_in_order()
                return True
            self._close("failed", self._run.failure or error)
            if self._run.failure is not None:
                raise self._run.failure from error
            raise
        if timeout is not None and not ended:
            return False
        self._end_in_order()
        return True

    def stop(self) -> None:
        """Stop the query now, within a batch if need be; the next start runs that batch again.

        A query that has ended by itself stays what it was: a failure that nobody has awaited must
        not be told as all that was to be read.
        """
        self._run.ending.set()
        if not self._query.isActive:
            with suppress(Exception):  # Spark's stop() raises nothing of it either
                self.awaitTermination()
        self._query.stop()
        self._close("stopped")

    def drain(self) -> None:
        """Stop the query after the running batch; returns at once, ``awaitTermination`` waits."""
        self._heartbeat.draining.set()

    def __getattr__(self, name: str) -> Any:
        """Return Spark's own attribute: status, lastProgress, id, runId, isActive, exception."""
        return getattr(self._query, name)

    def _watch(self) -> None:
        """Wait for a drain, then stop the query between two batches.

        A batch that starts in the meantime ends itself before it opens anything.
        """
        self._heartbeat.draining.wait()
        self._run.ending.set()
        while self._query.isActive:
            if not self._query.status["isTriggerActive"]:
                self._query.stop()
                return
            time.sleep(_IDLE_LOOK_S)

    def _say_drained(self) -> None:
        """Write the final heartbeat before Spark has stopped: a standby can start sooner."""
        if not self._heartbeat.superseded.is_set():
            self._say("stopped")
            self._heartbeat.hold_still()

    def _end_in_order(self) -> None:
        if self._heartbeat.superseded.is_set():
            error = SupersededError(
                "Another driver has taken this checkpoint over: this one ended between two "
                "batches. Nothing is lost; keep one of the two."
            )
            self._close("failed", error)
            raise error
        self._close("stopped")

    def _close(self, phase: Phase, error: BaseException | None = None) -> None:
        try:
            self._say(phase, error)
            self._heartbeat.hold_still()
        finally:
            with self._closing:
                self._resources.close()

    def _say(self, phase: Phase, error: BaseException | None = None) -> None:
        """Write the final heartbeat, once: the first call tells the end."""
        with self._closing:
            if not self._said:
                self._said = True
                self._heartbeat.stop(phase, error)
