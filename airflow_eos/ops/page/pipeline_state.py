"""Reads a checkpoint into the list view or the detail view. Read-only.

A row is made from the snapshot that recovery reads, so that page and recovery agree.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import structlog

from airflow_eos.core.checkpoint import drain_of, newest_term
from airflow_eos.core.checkpoint.backend import HEARTBEAT, is_batch
from airflow_eos.core.checkpoint.decisions import AT_A_START, DecisionLog
from airflow_eos.core.checkpoint.liveness import LivenessProbe, SignOfLife, Standstill, with_its_end
from airflow_eos.core.checkpoint.progress import SourceProgress, read_state_size
from airflow_eos.core.checkpoint.recovery_notes import brought_back_by, why_refused
from airflow_eos.core.checkpoint.snapshot import read_snapshot
from airflow_eos.core.checkpoint.spark_log import SparkLog, kafka_offsets
from airflow_eos.core.checkpoint.standby import StandbyReading
from airflow_eos.core.checkpoint.watchdog_record import read_look, watchdog_warning
from airflow_eos.core.protocol.decision import Verdict, by_time_left
from airflow_eos.core.protocol.promise import named_by
from airflow_eos.errors import EosError
from airflow_eos.ops.page.views import (
    AttemptView,
    BatchView,
    DetailView,
    Drain,
    HeartbeatView,
    ParticipantView,
    PipelineRow,
    Promised,
    SourceView,
    Stage,
)
from airflow_eos.ops.settled import named
from airflow_eos.ops.supervision.progress import Health, ProgressReading, judge, why_not_at_work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_eos.core.checkpoint import CheckpointStore, DrainRequest, StoredObject
    from airflow_eos.core.checkpoint.snapshot import Snapshot
    from airflow_eos.core.checkpoint.spark_log import Log, OffsetsEntry
    from airflow_eos.core.protocol.decision import Decision
    from airflow_eos.ops.page.views import PipelineEntry, State

log = structlog.get_logger(__name__)

KEPT = 24
"""The number of newest batches that are read."""
_SPARK = 16  # points of a sparkline


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


def rates(batches: Sequence[PlannedBatch]) -> tuple[float, ...]:
    """Return the rows/s of each complete batch, until the next batch was planned: pauses count.

    The newest batch counts until it was committed. Batches of unknown row count are left out.
    """
    return tuple(
        round((each.rows or 0) * 1000 / max(1, end_ms - each.planned_at_ms), 1)
        for each, end_ms in _spans(batches)
    )


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
        found: the checkpoint's snapshot.
        drain: the drain request to the last driver.
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
    if alive is None:
        return "looking", judge(seen, max_age_ms=stall_after_ms).reason
    if not alive:
        phase = found.heartbeat.phase if found.heartbeat is not None else None
        state: State = phase if phase in ("stopped", "failed") else "silent"
        return state, why_not_at_work(seen)
    if drain is not None:
        return "draining", f"asked to stop by {drain.requested_by}: {drain.reason}"
    finding = judge(seen, max_age_ms=stall_after_ms)
    return _OF_HEALTH[finding.health], finding.reason


class PipelineSnapshot:
    """Reads one pipeline's checkpoint again and again, and sees what changes in between.

    Args:
        listed: the pipeline.
        stall_after_ms: see :func:`airflow_eos.ops.page.pipeline_state.state_of`.
    """

    def __init__(self, listed: PipelineEntry, stall_after_ms: int) -> None:
        self.listed = listed
        self._stall_after_ms = stall_after_ms
        self._batches = Batches()
        self._life = LivenessProbe()
        self._watchdog = Standstill()
        self._standbys = StandbyReading()

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
            newest = self._batches.newest(store)
            return DetailView(
                row=self._row(store, found, newest),
                pipeline_id=found.pipeline.id if found.pipeline else None,
                participants=tuple(
                    ParticipantView(each.name, each.kind, each.target, each.address)
                    for each in (found.pipeline.participants if found.pipeline else ())
                ),
                sources=tuple(
                    SourceView(each.name, each.rows, None if each.end is None else named(each.end))
                    for each in found.state.sources
                ),
                batches=tuple(_story(store, found, each) for each in reversed(newest)),
                state_size=msgspec.to_builtins(read_state_size(store)),
            )
        except Exception as error:  # noqa: BLE001 - as above
            return DetailView(row=self._unreadable(error))

    def _unreadable(self, error: Exception) -> PipelineRow:
        """Return a row with our own error's text; the text of any other error may hold a secret."""
        why = str(error)
        if not isinstance(error, EosError):
            log.error("page_look_failed", location=self.listed.shown, exc_info=error)
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
        self, store: CheckpointStore, found: Snapshot, newest: Sequence[PlannedBatch]
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
        looked = read_look(store)
        remarks = (
            None if signs else brought_back_by(store, found.heartbeat),
            None if signs else why_refused(store, found.heartbeat),
            *map(str, self._standbys.look(store)),
            watchdog_warning(looked, 1000 * self._watchdog.lasts_s(looked)),
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
            rates=rates(newest)[-_SPARK:],
            # Up to the newest heartbeat: batches are dated by the driver's clock, too.
            rows_per_s=mean_rate(newest, heart.beat_at_ms) if alive and heart else None,
            promised=_promised(found),
            drain=msgspec.convert(drain, Drain | None, from_attributes=True),
            heartbeat=msgspec.convert(heart, HeartbeatView | None, from_attributes=True),
            remarks=tuple(filter(None, remarks)),
            looked_at_ms=found.read_at_ms,
        )


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
    return BatchView(
        batch=planned.batch,
        stage=_stage(found, planned, attempts),
        planned_at_ms=planned.planned_at_ms,
        committed_at_ms=planned.committed_at_ms,
        rows=planned.rows,
        attempts=tuple(_attempt(each) for each in attempts),
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


def _attempt(decision: Decision) -> AttemptView:
    opened = [each.opened_at_ms for each in decision.works]
    at_a_start = decision.reason.startswith(AT_A_START)
    taken: Literal["abort", "sealed"] = "sealed" if at_a_start else "abort"
    return AttemptView(
        attempt=decision.attempt,
        verdict="commit" if decision.verdict is Verdict.COMMIT else taken,
        decided_at_ms=decision.decided_at_ms,
        decided_by=decision.decided_by,
        term=decision.term,
        reason=decision.reason,
        works=len(decision.works),
        rows=sum(each.rows for each in decision.works),
        opened_at_ms=(min(opened), max(opened)) if opened else None,
    )
