"""Reads a checkpoint into the list view or the detail view. Read-only.

A row is made from the snapshot that recovery reads, so that page and recovery agree.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    DrainRequest,
    Heartbeat,
    StoredObject,
    drain_of,
    newest_term,
)
from airflow_eos.core.checkpoint.backend import HEARTBEAT, WATCHDOG, is_batch
from airflow_eos.core.checkpoint.cuts import CutLog
from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.history import Happened, PastEvents, ended, started
from airflow_eos.core.checkpoint.liveness import (
    MISSED_BEATS,
    LivenessProbe,
    SignOfLife,
    Standstill,
    with_its_end,
)
from airflow_eos.core.checkpoint.progress import SourceProgress, read_state_size
from airflow_eos.core.checkpoint.recovery_notes import brought_back_by, why_refused
from airflow_eos.core.checkpoint.snapshot import Snapshot, read_snapshot
from airflow_eos.core.checkpoint.spark_log import Log, OffsetsEntry, SparkLog, kafka_offsets
from airflow_eos.core.checkpoint.standby import StandbyReading
from airflow_eos.core.checkpoint.watchdog_record import WatchdogRecord, read_look, watchdog_warning
from airflow_eos.core.log import Log as Logger
from airflow_eos.core.protocol.decision import Decision, Verdict, by_time_left
from airflow_eos.core.protocol.promise import named_by, tries
from airflow_eos.errors import EosError
from airflow_eos.ops.page.views import (
    AttemptView,
    BatchPoint,
    BatchView,
    CutView,
    DetailView,
    Drain,
    EventView,
    HeartbeatView,
    OutputOfCut,
    ParticipantView,
    PipelineEntry,
    PipelineRow,
    Promised,
    Rate,
    SourceView,
    Stage,
    State,
    Watch,
)
from airflow_eos.ops.settled import named
from airflow_eos.ops.supervision.progress import (
    Health,
    ProgressReading,
    asked_by,
    in_words,
    judge,
    why_not_at_work,
)

log = Logger(__name__)

KEPT, DRAWN = 24, 60
"""The number of newest batches that are read and told, and that one pipeline's lines are made of.
"""
_SPARK = 16  # batches of a sparkline
_PAUSE = 2
"""After how many of its triggers without a batch a pipeline has paused."""
_PAUSE_MS = 5_000


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch of Spark's logs; times in ms since the epoch.

    ``planned_at_ms`` is by the driver's clock (the store's where an old Spark wrote none),
    ``committed_at_ms`` by the store's, None while the batch is in flight. ``rows`` None: not known.
    """

    batch: int
    planned_at_ms: int
    committed_at_ms: int | None
    rows: int | None


class Batches:
    """Reads the newest batches of one checkpoint, and keeps the entries that it has read."""

    def __init__(self) -> None:
        self._read: dict[StoredObject, OffsetsEntry] = {}

    def newest(self, store: CheckpointStore, count: int = KEPT) -> tuple[PlannedBatch, ...]:
        """Return the newest ``count`` batches, in ascending order.

        Raises:
            CheckpointFormatError: a file cannot be read.
            StoreError: the store did not answer.
        """
        log = SparkLog(store)
        planned = _by_batch(store, "offsets")
        # Listed after ``offsets``: each batch that is committed here was planned there.
        committed = _by_batch(store, "commits")
        wanted = sorted(planned)[-(count + 1) :]
        entries = {n: self._read.get(planned[n]) or log.offsets(n) for n in wanted}
        # One assignment, as other threads may read at this moment.
        self._read = {planned[n]: entry for n, entry in entries.items() if entry is not None}
        found = []
        for batch in wanted[-count:]:
            entry = entries[batch]
            if entry is None:  # purged since it was listed
                continue
            done = committed.get(batch)
            found.append(
                PlannedBatch(
                    batch=batch,
                    planned_at_ms=entry.batch_timestamp_ms or planned[batch].modified_at_ms,
                    committed_at_ms=done.modified_at_ms if done is not None else None,
                    rows=_rows(log, batch, entry, entries.get(batch - 1)),
                )
            )
        return tuple(found)


def _by_batch(store: CheckpointStore, log: Log) -> dict[int, StoredObject]:
    return {int(each.name): each for each in store.list(log) if is_batch(each.name)}


def _rows(
    log: SparkLog, batch: int, entry: OffsetsEntry, before: OffsetsEntry | None
) -> int | None:
    """Count the batch's rows over all sources; None where the count of one source is unknown."""
    total = 0
    for index, (name, raw) in enumerate(entry.ends.items()):
        end = kafka_offsets(raw) if raw is not None else None
        begin = before.ends.get(name) if before is not None else None
        start = kafka_offsets(begin) if begin is not None else None
        if start is None and batch == 0:
            start = log.began(name)
        kind: Literal["kafka", "other"] = "other" if end is None else "kafka"
        rows = SourceProgress(index, kind, start, end, raw or "-", name).rows
        if rows is None:
            return None
        total += rows
    return total


SPAN_MS = 60_000
"""Span of a mean rate: the last minute, or the newest batch where that is longer."""


def rates(batches: Sequence[PlannedBatch], trigger_ms: int = 0) -> tuple[Rate, ...]:
    """Return the rows/s of each complete batch, until the next one was planned, by time.

    Where nothing was planned for long the batch counts until it was committed: a pause is a gap.
    The newest one counts for as long as the one before. Batches of unknown row count are left out.
    """
    found = list[Rate]()
    for each, end_ms in _spans(batches):
        done_ms = each.committed_at_ms or end_ms
        pause_ms = _PAUSE * max(trigger_ms, done_ms - each.planned_at_ms, _PAUSE_MS)
        until_ms = done_ms if end_ms - done_ms > pause_ms else end_ms
        if each is batches[-1] and found and found[-1].to_ms == each.planned_at_ms:
            until_ms = max(until_ms, each.planned_at_ms + found[-1].to_ms - found[-1].from_ms)
        until_ms = max(until_ms, each.planned_at_ms + 1)
        rate = (each.rows or 0) * 1000 / (until_ms - each.planned_at_ms)
        found.append(Rate(each.planned_at_ms, until_ms, round(rate, 1)))
    return tuple(found)


def mean_rate(batches: Sequence[PlannedBatch], now_ms: int) -> float | None:
    """Return the rows/s over the last minute; None where there is no complete batch.

    A pipeline that has committed nothing for a minute is at 0, however fast it was before.
    """
    spans = _spans(batches)
    if not spans:
        return None
    recent = [(each, end) for each, end in spans if end >= now_ms - SPAN_MS]
    if not recent:
        return 0.0
    begin = recent[0][0].planned_at_ms
    rows = sum(each.rows or 0 for each, _ in recent)
    return round(rows * 1000 / max(1, recent[-1][1] - begin), 1)


def _spans(batches: Sequence[PlannedBatch]) -> list[tuple[PlannedBatch, int]]:
    """Pair each complete batch with the end (ms) of the time that its rate is reckoned over."""
    ends = [after.planned_at_ms for after in batches[1:]] + [
        newest.committed_at_ms or 0 for newest in batches[-1:]
    ]
    return [
        (each, end_ms)
        for each, end_ms in zip(batches, ends, strict=True)
        if each.committed_at_ms is not None and each.rows is not None
    ]


# --- states ---------------------------------------------------------------------------------------
# =============================================  ===========
# evidence, the first that holds                 state
# =============================================  ===========
# the heartbeat cannot be read                   unreadable
# no batch was ever planned, and no heartbeat    new
# the heartbeat's phase is ``stopped``           stopped
# the heartbeat's phase is ``failed``            failed
# read only once                                 looking
# its heartbeat was seen to stand still          silent
# alive, and asked to stop                       draining
# alive, and makes progress                      running
# alive, nothing in flight for a long time       idle
# alive, and a batch is in flight for too long   stalled
# =============================================  ===========
#
# Alive is a pipeline whose heartbeat, or progress, was seen to change by this server's clock; the
# function that the sensors use tells a stall.


STALL_AFTER_MS = 300_000
"""Age in ms above which a commit, a batch in flight or a start is a stall, as for the sensors."""

_OF_HEALTH: dict[Health, State] = {
    Health.FRESH: "running",
    Health.WORKING: "running",
    Health.IDLE: "idle",
    Health.SUSPECT: "stalled",
    Health.STALLED: "stalled",
    Health.UNKNOWN: "looking",
}


def state_of(
    found: Snapshot,
    drain: DrainRequest | None,
    stall_after_ms: int = STALL_AFTER_MS,
    *,
    alive: bool | None,
    beaten_at_ms: int,
) -> tuple[State, str]:
    """Return the pipeline's state, and the reason in one sentence.

    Args:
        stall_after_ms: the age above which a commit, a batch in flight or a start is a stall.
        alive: whether the pipeline was seen to be alive; None where that is not known yet.
        beaten_at_ms: when the last heartbeat was written, by the store's clock.
    """
    if found.unheard:
        return "unreadable", found.unheard
    if found.heartbeat is None and found.state.latest_offsets is None:
        return "new", "no driver has run on this checkpoint yet"
    # Unread offsets are not asked for: that would be a request to Kafka for each row of a list.
    seen = ProgressReading(found.state, found.heartbeat, None, beaten_at_ms, alive)
    if alive is None and found.heartbeat is not None:
        within = in_words(MISSED_BEATS * found.heartbeat.interval_ms)
        return "looking", f"whether its driver lives is known within {within}"
    if alive is None:
        return "looking", judge(seen, max_age_ms=stall_after_ms).reason
    if not alive:
        phase = found.heartbeat.phase if found.heartbeat is not None else None
        state: State = phase if phase in ("stopped", "failed") else "silent"
        return state, why_not_at_work(seen)
    if drain is not None:
        return "draining", f"asked to stop by {asked_by(drain.requested_by, drain.reason)}"
    finding = judge(seen, max_age_ms=stall_after_ms)
    return _OF_HEALTH[finding.health], finding.reason


def since_of(
    state: State, found: Snapshot, drain: DrainRequest | None, drive_ms: int | None
) -> int | None:
    """Return since when (ms) the state holds; None: that is written nowhere.

    ``drive_ms`` is when the driver took over, where it had stood by.
    """
    heart, progress = found.heartbeat, found.state
    if state == "draining" and drain is not None:
        return drain.requested_at_ms
    if state in ("idle", "stalled"):
        return progress.planned_at_ms if state == "stalled" else progress.committed_at_ms
    if heart is None:
        return None
    if state == "running":
        return drive_ms or heart.started_at_ms
    return heart.beat_at_ms if state in ("stopped", "failed", "silent") else None


def watch_of(
    look: WatchdogRecord | None,
    looked_at_ms: int | None,
    silent_ms: float,
    dags: Sequence[tuple[str, bool]],
) -> Watch:
    """Say in a sentence whether somebody watches, by the newest look and the DAGs that are to.

    ``silent_ms`` is how old the look is, and ``dags`` those with whether each is paused.
    """
    paused = [name for name, is_paused in dags if is_paused]
    if paused:
        return Watch(
            is_watched=False,
            is_missed=True,
            said=f"nobody: the watchdog {', '.join(paused)} is paused",
            looked_at_ms=looked_at_ms,
        )
    if look is None:
        named = ", ".join(name for name, _ in dags)
        never = "nobody: no watchdog has ever looked"
        said = f"not yet: {named} has not looked" if named else never
        return Watch(is_watched=False, said=said)
    span = "" if look.interval_ms is None else in_words(look.interval_ms).removeprefix("1 ")
    every = span and f", every {span}"
    if watchdog_warning(look, silent_ms) is not None:
        stopped = f"nobody: the watchdog {look.dag_id} has stopped; it was to look{every[1:]}"
        return Watch(is_watched=False, is_missed=True, said=stopped, looked_at_ms=looked_at_ms)
    return Watch(is_watched=True, said=f"by {look.dag_id}{every}", looked_at_ms=looked_at_ms)


class PipelineSnapshot:
    """Reads one pipeline's checkpoint again and again, and sees what changes in between."""

    def __init__(self, listed: PipelineEntry, stall_after_ms: int) -> None:
        self.listed = listed
        self._stall_after_ms = stall_after_ms
        self._batches = Batches()
        self._life = LivenessProbe()
        self._watchdog = Standstill()
        self._standbys = StandbyReading()
        self._history = PastEvents()

    def row(self) -> PipelineRow:
        """Return the pipeline's row of the list; the row of an unreadable checkpoint says why."""
        try:
            store = self.listed.open()
            found = read_snapshot(store)
            return self._row(store, found, self._batches.newest(store))
        except Exception as error:  # noqa: BLE001 - one surprise must not take the list from all
            return self._unreadable(error)

    def detail(self) -> DetailView:
        """Return the pipeline with its batches; the row of an unreadable checkpoint says why."""
        try:
            store = self.listed.open()
            found = read_snapshot(store)
            drawn = self._batches.newest(store, DRAWN)
            newest = drawn[-KEPT:]
            past = self._history.events(store)
            drives = [each.at_ms for each in past if each.term == newest_term(store)]
            row = self._row(store, found, newest, max(drives, default=None))
            batches = tuple(_story(store, found, each) for each in reversed(newest))
            return DetailView(
                row=row,
                points=tuple(
                    BatchPoint(each.planned_at_ms, each.committed_at_ms, each.rows)
                    for each in drawn
                ),
                rates=rates(drawn, found.heartbeat.trigger_ms if found.heartbeat else 0),
                events=happened(past, row, store, found, batches),
                runs=runs(past),
                spark_ui=spark_ui(past, row, found.heartbeat),
                cut=_cut(store),
                pipeline_id=found.pipeline.id if found.pipeline else None,
                participants=tuple(
                    ParticipantView(each.name, each.kind, each.target, each.address)
                    for each in (found.pipeline.participants if found.pipeline else ())
                ),
                sources=tuple(
                    SourceView(each.name, each.rows, None if each.end is None else named(each.end))
                    for each in found.state.sources
                ),
                batches=batches,
                state_size=msgspec.to_builtins(read_state_size(store)),
            )
        except Exception as error:  # noqa: BLE001 - as above
            return DetailView(row=self._unreadable(error))

    def _unreadable(self, error: Exception) -> PipelineRow:
        """Return a row with our own error's text; the text of any other error may hold a secret."""
        why = str(error)
        if not isinstance(error, EosError):
            log.exception("page_look_failed", location=self.listed.shown)  # noqa: LOG004 - see callers
            why = f"{type(error).__name__}: the server's log says more"
        return PipelineRow(
            **self._named(),
            state="unreadable",
            reason=why,
            looked_at_ms=time.time_ns() // 1_000_000,
        )

    def _named(self) -> dict[str, Any]:
        names = ("id", "name", "dag_id", "task_id")
        told = {name: getattr(self.listed, name) for name in names}
        return {**told, "location": self.listed.shown}

    def _row(
        self,
        store: CheckpointStore,
        found: Snapshot,
        newest: Sequence[PlannedBatch],
        drive_ms: int | None = None,
    ) -> PipelineRow:
        drain, beaten = drain_of(store, found.heartbeat), store.head(HEARTBEAT)
        planned, committed = found.state.latest_offsets, found.state.latest_commit
        sign = SignOfLife(found.heartbeat, newest_term(store), planned, committed)
        signs = self._life.hold(with_its_end(store, sign))
        state, reason = state_of(
            found,
            drain,
            self._stall_after_ms,
            alive=None if signs is None else bool(signs),
            beaten_at_ms=beaten.modified_at_ms if beaten is not None else 0,
        )
        remarks = (
            *self.listed.remarks,
            None if signs else brought_back_by(store, found.heartbeat),
            None if signs else why_refused(store, found.heartbeat),
            *map(str, self._standbys.look(store)),
        )
        progress, heart = found.state, found.heartbeat
        # What is unread is not asked for here: without a batch in flight the lag is not known.
        flying = [s.rows for s in progress.sources] if progress.in_flight is not None else [None]
        alive = state in ("running", "idle", "draining", "stalled")
        return PipelineRow(
            **self._named(),
            state=state,
            reason=reason,
            batch=progress.latest_commit,
            committed_at_ms=progress.committed_at_ms,
            in_flight=progress.in_flight,
            planned_at_ms=progress.planned_at_ms,
            lag_rows=None if None in flying else sum(rows or 0 for rows in flying),
            since_ms=since_of(state, found, drain, drive_ms),
            watch=self._watch(store, beaten.modified_at_ms if beaten else 0),
            rates=rates(newest[-_SPARK - 1 :], heart.trigger_ms if heart else 0)[-_SPARK:],
            # Up to the newest heartbeat: batches are dated by the driver's clock, too.
            rows_per_s=mean_rate(newest, heart.beat_at_ms) if alive and heart else None,
            promised=_promised(found),
            drain=msgspec.convert(drain, Drain | None, from_attributes=True),
            heartbeat=msgspec.convert(heart, HeartbeatView | None, from_attributes=True),
            remarks=tuple(filter(None, remarks)),
            looked_at_ms=found.read_at_ms,
        )

    def _watch(self, store: CheckpointStore, beaten_at_ms: int) -> Watch:
        """Say whether somebody watches, by the store's clock and by this server's own."""
        looked = read_look(store)
        at = None if looked is None else store.head(WATCHDOG)
        silent_ms = 1000 * self._watchdog.lasts_s(looked)
        at_ms = None if at is None else at.modified_at_ms
        if at_ms is not None:
            silent_ms = max(silent_ms, beaten_at_ms - at_ms)
        return watch_of(looked, at_ms, silent_ms, self.listed.watchdogs)


_HAS_A_DRIVER = {"stalled", "looking", "draining", "running", "idle"}
_WEB = re.compile(r"https?://[\w.\[\]:-]+(/[\w./~%-]*)?", re.ASCII)
_ENDED_BY_ITSELF = {"stopped", "failed", "silent"}


def happened(
    past: Sequence[Happened],
    row: PipelineRow,
    store: CheckpointStore,
    found: Snapshot,
    batches: Sequence[BatchView],
) -> tuple[EventView, ...]:
    """Return what happened, the newest first: what is noted, and what the checkpoint says now.

    A checkpoint of an earlier release has no notes: its driver's start and end alone are known.
    """
    events, before = [], None
    for each in past:
        is_new = each.release and before is not None and (each.app, each.release) != before
        what = "upgraded" if is_new else each.what
        version = f", {_version(each)}" if each.release else ""
        events.append(EventView(each.at_ms, what, each.who, f"{each.why}{version}"))
        before = (each.app, each.release) if each.release else before
    heart = found.heartbeat
    if heart is not None and not any(_is_its_start(each, heart) for each in past):
        began = started(heart, stood_by=False, app="", release="")
        events.append(EventView(began.at_ms, began.what, began.who, began.why))
    if heart is not None and row.state in _ENDED_BY_ITSELF:
        end = ended(heart, store)
        events.append(EventView(end.at_ms, end.what, end.who, end.why))
    if row.drain is not None and row.state == "draining":
        who = asked_by(row.drain.requested_by, row.drain.reason)
        events.append(EventView(row.drain.requested_at_ms, "asked to stop", who))
    events += [
        EventView(each.decided_at_ms, "attempt given up", f"batch {batch.batch}", each.reason)
        for batch in batches
        for each in batch.attempts
        if each.verdict == "abort"
    ]
    return tuple(sorted(events, key=lambda each: -each.at_ms))


def _is_its_start(each: Happened, heart: Heartbeat) -> bool:
    return each.what in ("started", "took over") and each.term == heart.term


def runs(past: Sequence[Happened]) -> str:
    """Return the app's file and our release that run, by the newest start; empty: not known."""
    return next((_version(each) for each in reversed(past) if each.release), "")


def spark_ui(past: Sequence[Happened], row: PipelineRow, heart: Heartbeat | None) -> str:
    """Return the address of Spark's UI of the driver that is alive; empty: it has said none.

    Whoever writes into the checkpoint has written it: what is no web address is no link.
    """
    if heart is None or row.state not in _HAS_A_DRIVER:
        return ""
    said = [each.spark_ui for each in past if _is_its_start(each, heart)]
    return said[-1] if said and _WEB.fullmatch(said[-1]) else ""


def _version(each: Happened) -> str:
    return f"{each.app}, airflow_eos {each.release}"


def _cut(store: CheckpointStore) -> CutView | None:
    """Return the newest cut that can be read; None: there is none."""
    log = CutLog(store)
    written = log.listed()
    for batch in sorted(written, reverse=True)[:2]:
        if (cut := log.whole(batch)) is not None:
            return CutView(
                batch=batch,
                written_at_ms=written[batch],
                incomplete=cut.incomplete,
                outputs=tuple(
                    OutputOfCut(name, tp.at is not None, tp.why)
                    for name, tp in cut.positions.items()
                ),
            )
    return None


def _promised(found: Snapshot) -> Promised | None:
    """Sum up the promised work of the batch in flight, as its decisions name it."""
    works = [each.work for each in named_by(found.decisions)]
    if not works or found.batch is None or found.batch != found.state.in_flight:
        return None
    return Promised(
        works=len(works),
        rows=sum(each.rows for each in works),
        opened_at_ms=min(each.opened_at_ms for each in works),
        ends_at_ms=min(works, key=by_time_left).ends_at_ms,
        participants=tuple(dict.fromkeys(each.participant for each in works)),
    )


def _story(store: CheckpointStore, found: Snapshot, planned: PlannedBatch) -> BatchView:
    attempts = _attempts(store, found, planned.batch)
    numbers = tries(attempts)
    return BatchView(
        batch=planned.batch,
        stage=_stage(found, planned, attempts),
        planned_at_ms=planned.planned_at_ms,
        committed_at_ms=planned.committed_at_ms,
        rows=planned.rows,
        attempts=tuple(
            _attempt(each, numbers[each.attempt]) for each in attempts if not each.is_untried
        ),
    )


def _attempts(store: CheckpointStore, found: Snapshot, batch: int) -> Sequence[Decision]:
    if batch == found.batch:
        return found.decisions
    try:
        return DecisionLog(store).of_batch(batch)
    except EosError:
        return ()  # pruned while they were read; for the batch in flight it would be an error


def _stage(found: Snapshot, planned: PlannedBatch, attempts: Sequence[Decision]) -> Stage:
    if planned.committed_at_ms is not None:
        return "committed"
    if any(each.verdict is Verdict.COMMIT for each in attempts):
        return "settling"
    heart, preparing = found.heartbeat, ("preparing", planned.batch)
    is_preparing = heart is not None and (heart.phase, heart.batch_id) == preparing
    return "preparing" if is_preparing else "planned"


def _attempt(decision: Decision, number: int) -> AttemptView:
    opened = [each.opened_at_ms for each in decision.works]
    return AttemptView(
        attempt=number,
        verdict="commit" if decision.verdict is Verdict.COMMIT else "abort",
        decided_at_ms=decision.decided_at_ms,
        decided_by=decision.decided_by,
        term=decision.term,
        reason=decision.reason,
        works=len(decision.works),
        rows=sum(each.rows for each in decision.works),
        opened_at_ms=(min(opened), max(opened)) if opened else None,
    )
