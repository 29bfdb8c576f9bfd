"""The driver's heartbeat, and what goes on beside its batches at the same pace.

A thread (:class:`BeatLoop`) writes the heartbeat, hears who asks the driver to end, hands over to a
standby, notes the size of the state and tells the observer. Evidence, never correctness.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from airflow_eos import __version__
from airflow_eos.core.checkpoint import (
    Heartbeat,
    StartedBy,
    clear_drain,
    drain_requested,
    history,
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
from airflow_eos.core.checkpoint.liveness import MISSED_BEATS, Standstill, process_mark
from airflow_eos.core.checkpoint.progress import StateSize, read_state_size, write_state_size
from airflow_eos.core.checkpoint.standby import StandbyReading
from airflow_eos.core.checkpoint.terms import is_newest
from airflow_eos.core.checkpoint.watchdog_record import read_look
from airflow_eos.core.delivery import observer as events
from airflow_eos.core.delivery.causes import Cause, cause_of
from airflow_eos.core.delivery.progress_lines import ProgressLines
from airflow_eos.core.log import Log
from airflow_eos.errors import CheckpointError, CheckpointFormatError, EosError, SupersededError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_eos.core.checkpoint import CheckpointStore, DrainRequest
    from airflow_eos.core.checkpoint.heartbeat import End, Phase
    from airflow_eos.core.checkpoint.history import Happened
    from airflow_eos.core.checkpoint.standby import Standby

log = Log(__name__)

_WATCHED, _WATCHED_DISK = timedelta(seconds=2), timedelta(seconds=1)
"""The interval between beats while another driver stands by; the second one on a disk."""
_READY_WITHIN_S, _REFUSED_WITHIN_S = 60.0, 10.0
"""The time for which a driver that hands over goes on until a standby says that it is ready; the
second one where each that answers says that it cannot go on."""
_FOLLOWED_WITHIN_S = 5.0
"""The time for which a driver that has handed over holds still for the next one's first batch."""
_HAND_OVER_LOOK, _HAND_OVER_LOOK_DISK = 0.5, 0.1
"""Seconds between the looks at a standby in these times; the second one on a disk."""


class OwnHeartbeat:
    """``eos/driver.json`` as this driver writes it, at its store's rate.

    Args:
        store: the checkpoint.
        facts: what each beat says.
        spark_ui: the address of Spark's UI; empty: there is none.
    """

    def __init__(self, store: CheckpointStore, facts: Heartbeat, spark_ui: str = "") -> None:
        self._store, self._facts, self._spark_ui = store, facts, spark_ui
        self._usual = self.interval = beat_interval(store.location)
        self._stood_by = Standstill()
        self.term: int | None = None
        self.batch_id: int | None = None
        self.phase: Phase = "starting"
        self.former: Heartbeat | None = None
        """The heartbeat that stood here before our first one."""
        self._end: End | None = None
        self._cause: Cause | None = None
        self._first: Heartbeat | None = None

    def end(self, phase: Phase, error: BaseException | None, *, drained: bool) -> None:
        """Set what the last beat says."""
        if phase == "stopped":
            self._end = "drained" if drained else "finished"
        else:
            self._end = "superseded" if isinstance(error, SupersededError) else "failed"
        self._cause = None if error is None else cause_of(error)
        self.phase = phase

    def write(self, asked: DrainRequest | None) -> None:
        """Write a beat, which also says who has asked the driver to end."""
        pace, cause = self._pace(), self._cause
        reason = None if asked is None else f"{asked.requested_by}: {asked.reason}"
        beat = replace(
            self._facts,
            term=self.term,
            batch_id=self.batch_id,
            phase=self.phase,
            end=self._end,
            reason=reason if cause is None else str(cause),
            drained_by=None if asked is None else asked.requested_by,
            restart_heals=None if cause is None else cause.restart_heals,
            beat_at_ms=_now_ms(),
            interval_ms=int(pace.total_seconds() * 1000),
        )
        write_heartbeat(self._store, beat)
        self._first = self._first or beat
        self.interval = pace  # written before it applies: readers count silence by it

    def history(self, *, stood_by: bool) -> tuple[Happened, ...]:
        """Return how the driver before us ended, and that we have started."""
        if self._first is None:
            return ()  # superseded before the first beat
        app, former = Path(sys.argv[0]).name, self.former
        ours = history.started(
            self._first,
            stood_by=stood_by,
            app=app,
            release=__version__,
            spark_ui=self._spark_ui,
        )
        return (ours,) if former is None else (history.ended(former, self._store), ours)

    def is_superseded(self) -> bool:
        """Whether a newer driver has come: then this one has nothing to say any more."""
        try:
            standing = read_heartbeat(self._store)
        except CheckpointFormatError:
            standing = None  # damaged: this beat writes it anew; terms tell which driver is newer
        if self._first is None:
            self.former = standing
        if self.term is None:  # then another driver beats here, and this start was given up
            us = self._facts.submission
            others = us is not None and standing is not None and standing.submission != us
            return others and request_to(self._store, us or "") is not None
        if standing is not None and standing.term is not None and standing.term > self.term:
            return True
        return not is_newest(self._store, self.term)  # a newer driver may never have begun to beat

    def _pace(self) -> timedelta:
        """Return the interval: shorter while a standby waits, which then sees the end sooner."""
        told = [(each.name, each.modified_at_ms) for each in self._store.list(STANDBYS)]
        lasts_s = self._stood_by.lasts_s(told)
        if not told or lasts_s >= MISSED_BEATS * self._usual.total_seconds():
            return self._usual
        return min(self._usual, _WATCHED_DISK if self._store.is_on_a_disk else _WATCHED)


class DrainListener:
    """Hears who asks this driver to end; a hand-over waits for a standby before it drains."""

    def __init__(self, store: CheckpointStore, submission: str | None, began: Beginning) -> None:
        self._store, self._submission, self._began = store, submission, began
        self._term: int | None = None
        self.request: DrainRequest | None = None
        self.draining = threading.Event()

    def is_asked_by(self, who: str) -> bool:
        """Whether the driver ends since ``who`` has asked for it."""
        request = self.request  # read once: two threads ask
        return request is not None and request.requested_by == who

    @property
    def hands_over(self) -> bool:
        """Whether the pipeline is to go on in a driver that stands by."""
        return self.is_asked_by(BY_STANDBY)

    def begin(self, term: int | None) -> None:
        """Listen as the driver of this term; what asked others to end is over."""
        self._term = term
        clear_drain(self._store, term=term, submission=self._submission, began=self._began)

    def requested(self) -> DrainRequest | None:
        """Return the request that stands there for this driver."""
        return drain_requested(self._store, term=self._term, submission=self._submission)

    def remark(self, request: DrainRequest | None) -> None:
        """Drain where somebody wants that; None takes a hand-over back."""
        if request is not None:
            self.request = request
            if not self.hands_over:
                self.draining.set()
        elif self.hands_over and not self.draining.is_set():
            self.request = None

    def take_back(self, there: Sequence[Standby]) -> None:
        """Take the hand-over back: nobody could go on."""
        withdraw_hand_over(self._store, term=self._term, submission=self._submission)
        self.request = None
        why = [f"{each} could not: {each.reason}" for each in there]
        log.warning("hand_over_taken_back", why="; ".join(why) or "nobody stands by any more")


class Handover:
    """A hand-over to a driver that stands by, and the moment in which that one begins."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self.look_s = _HAND_OVER_LOOK_DISK if store.is_on_a_disk else _HAND_OVER_LOOK
        self.begin()
        self._still_until: float | None = None
        self.refused: Sequence[Standby] = ()
        """The standbys that live, and could not go on."""

    def begin(self) -> None:
        """Wait for a standby from now on."""
        self._began_at, self._standbys = time.monotonic(), StandbyReading()

    def step(self, term: int | None, now: float) -> Literal["wait", "hand over", "take back"]:
        """Return whether a standby of this term can go on: it is ready, or lives and takes long."""
        # One that has died says for ever what it said last.
        seen = [e for e in self._standbys.look(self._store) if e.standby.behind == term]
        live = [each.standby for each in seen if each.lives]
        able = [each for each in live if not each.reason]
        waits_s = _REFUSED_WITHIN_S if live and not able else _READY_WITHIN_S
        have_left = bool(seen) and all(each.has_left for each in seen)
        is_over = have_left or now - self._began_at >= waits_s
        if is_over and not able:
            self.refused = live
            return "take back"
        return "hand over" if is_over or any(each.is_ready for each in able) else "wait"

    def end(self) -> None:
        """Note that our last word is written: the next driver begins."""
        self._still_until = time.monotonic() + _FOLLOWED_WITHIN_S

    def hold_still(self, term: int | None) -> None:
        """Where we have handed over, wait until the next driver has begun a batch, some seconds.

        On one machine our shutdown would take the processor from its first batch.
        """
        with suppress(EosError):
            while self._still_until is not None and time.monotonic() < self._still_until:
                beat = read_heartbeat(self._store)
                if beat is not None and beat.term != term and beat.batch_id is not None:
                    return
                time.sleep(self.look_s)


class StateSizeNotes:
    """The notes of the size of the query's state, one a batch at most."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._last: StateSize | None = None

    def remark(self, query: StreamingQuery) -> None:
        """Note the size after the newest batch, where the query keeps state."""
        before = self._last or read_state_size(self._store)
        try:
            size = StateSize.of(query, before)
        except Exception:  # whatever Spark raises, the heartbeat goes on
            log.exception("state_not_noted")
            return
        if size is not None:
            write_state_size(self._store, size)
            self._last = size


class ObserverFeed:
    """Tells an observer what goes on, for the figures; nobody where there is none."""

    def __init__(self, store: CheckpointStore, observer: events.Observer | None) -> None:
        self._store, self._observer = store, observer
        self._looked = Standstill()

    def tell(self, event: events.Event) -> None:
        """Tell of one event."""
        if self._observer is not None:
            self._observer(event)

    def tell_progress(self, query: StreamingQuery | None) -> None:
        """Tell Spark's progress of the newest batch."""
        try:
            progress = query.lastProgress if self._observer and query is not None else None
            if progress is not None:
                self.tell(events.Progressed(json.loads(progress.json)))
        except Exception:  # a figure that is missing is no reason to lose a batch
            log.exception("progress_not_told")

    def tell_watchdog(self) -> None:
        """Tell how many intervals the watchdog's newest look is old, by our own clock."""
        look = read_look(self._store) if self._observer is not None else None
        if look is not None and look.interval_ms is not None:
            silent_ms = 1000 * self._looked.lasts_s(look)
            self.tell(events.Watched(silent_ms // look.interval_ms))


class BeatLoop:
    """The thread that beats, and calls the others at the same pace.

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
        spark_ui: str = "",
        observer: events.Observer | None = None,
        began: Beginning | None = None,
    ) -> None:
        self.observer = observer
        """The observer that is told of phases and batches, for the figures; None by default."""
        began = began or Beginning.now(store)
        facts = Heartbeat(
            started_by=StartedBy.of_text(os.environ.get(STARTED_BY)),
            master=master,
            deploy_mode=deploy_mode,
            namespace=namespace,
            application_id=application_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            process=process_mark(os.getpid()),
            batch_id=None,
            phase="starting",
            beat_at_ms=_now_ms(),
            interval_ms=1,
            trigger_ms=int(trigger.total_seconds() * 1000),
            started_at_ms=_now_ms(),
        )
        self._store = store
        self._is_noted = False
        self.stood_by = False
        """Whether the driver has waited for its turn; for people."""
        self._own = OwnHeartbeat(store, facts, spark_ui)
        self._drain = DrainListener(store, facts.submission, began)
        self._handover = Handover(store)
        self._state = StateSizeNotes(store)
        self._feed = ObserverFeed(store, observer)
        self._lines = ProgressLines()
        self._query: StreamingQuery | None = None
        self._ended = threading.Event()
        self._beating = threading.Lock()
        self._thread: threading.Thread | None = None
        self.draining = self._drain.draining
        self.superseded = threading.Event()
        """Set once a newer term was seen: then the driver can only end."""
        self.before_stopped: Callable[[], None] = lambda: None
        """Called by a driver that ends in order, before its last beat."""

    def start(self, term: int | None = None) -> None:
        """Beat once now, then from a thread; a second call does nothing.

        Called as soon as the term is ours: the work before the first batch may take long, and
        others who look meanwhile must find a driver here.
        """
        if self._thread is not None:
            return
        self._own.term = term
        self._drain.begin(term)
        self._feed.tell(events.Started())
        log.info("driver_started", checkpoint=self._store.location, term=term)
        self._thread = threading.Thread(target=self._run, name="airflow-eos-heartbeat", daemon=True)
        self._beat()
        self._thread.start()

    def enter_phase(self, batch_id: int, phase: Phase) -> None:
        """Set the batch and phase that the next beat tells."""
        self._own.batch_id, self._own.phase = batch_id, phase
        self._feed.tell(events.Phased(batch_id, phase))

    def begin(self, batch_id: int) -> None:
        """Tell the observer that a batch begins, after the progress of the batch before."""
        self._feed.tell_progress(self._query)
        self._feed.tell(events.Began(batch_id))

    def fail(self, batch_id: int, error: BaseException) -> None:
        """Tell the observer that the batch raised ``error``."""
        self._feed.tell(events.Failed(batch_id, error))

    def follow(self, query: StreamingQuery) -> None:
        """Set the running query; the size of its state is noted from now on."""
        self._query = query

    def stop(self, phase: Phase, error: BaseException | None = None) -> None:
        """Beat for the last time, so that others need not wait for silence to tell.

        A driver that never began to beat writes nothing: another driver may live here.
        """
        if phase == "stopped" and not self.superseded.is_set():
            self.before_stopped()
        drained = self.draining.is_set() or self._drain.hands_over
        self._own.end(phase, error, drained=drained)
        self._ended.set()
        self._feed.tell_progress(self._query)
        self._say_progress(at_once=True)
        meant = phase == "stopped" and not self._drain.is_asked_by(BY_AIRFLOW)
        self._feed.tell(events.QueryEnded(as_meant=meant))
        if self._thread is None:
            return
        log.info("driver_ended", phase=phase, batch=self._own.batch_id, drained=drained)
        if self._thread.is_alive():
            self._thread.join(timeout=self._own.interval.total_seconds())
        self._beat()
        self._note_start()
        if self._drain.hands_over and phase == "stopped":
            self._handover.end()

    def hold_still(self) -> None:
        """See :meth:`Handover.hold_still`."""
        self._handover.hold_still(self._own.term)

    def _run(self) -> None:
        while not self._ended.wait(self._own.interval.total_seconds()):
            self._note_start()
            self._beat()
            if self._drain.hands_over and not self.draining.is_set():
                self._await_standby()

    def _note_start(self) -> None:
        """Note once, an interval after the start, which has other things to do first."""
        if self._is_noted:
            return
        self._is_noted = True
        try:
            history.note(self._store, self._own.history(stood_by=self.stood_by))
        except Exception:  # whatever it is: this thread has to hear who wants it to drain
            log.exception("history_not_noted")

    def _await_standby(self) -> None:
        """Go on, and beat, until a standby is ready: rows flow meanwhile. Then drain.

        So it is where one lives and only takes long. Where none can go on, or none was seen to
        live, the hand-over is taken back.
        """
        self._handover.begin()
        beat_at = time.monotonic() + self._own.interval.total_seconds()
        while not (self._ended.wait(self._handover.look_s) or self.draining.is_set()):
            if (now := time.monotonic()) >= beat_at:
                self._beat()
                beat_at = now + self._own.interval.total_seconds()
            try:
                self._hear()
                if not self._drain.hands_over:
                    return
                step = self._handover.step(self._own.term, now)
                if step == "take back":
                    self._drain.take_back(self._handover.refused)
                    return
                if step == "hand over":
                    self.draining.set()
            except CheckpointError:
                continue  # as good as not ready yet

    def _say_progress(self, *, at_once: bool = False) -> None:
        try:
            self._lines.say(self._query, at_once=at_once)
        except Exception:  # a line that is missing is no reason to lose a batch
            log.exception("progress_not_said")

    def _hear(self) -> None:
        request = self._drain.requested()
        if not self._ended.is_set():  # else the last word is said
            self._drain.remark(request)

    def _beat(self) -> None:
        # One beat at a time: on a slow store an earlier beat must not overwrite the last one.
        with self._beating:
            self._beat_once()

    def _beat_once(self) -> None:
        try:
            if self._own.is_superseded():
                self.superseded.set()
                self.draining.set()  # without input no batch would find the newer term
                return
            self._own.write(self._drain.request)
            self._hear()
            if self._query is not None:
                self._state.remark(self._query)
            self._feed.tell_progress(self._query)
            self._feed.tell_watchdog()
            self._say_progress()
        except CheckpointError as error:
            log.warning("heartbeat_failed", error=str(error))
        except Exception:  # whatever it is: without this thread nobody's wish to drain is heard
            log.exception("heartbeat_failed")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
