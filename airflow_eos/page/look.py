"""One checkpoint as a row of the list, or as one pipeline with its batches. Reads, never writes.

A row is made from the same snapshot that recovery reads, so that both speak of the same thing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import structlog

from airflow_eos.checkpoint import drain_of, newest_term
from airflow_eos.checkpoint.backend import HEARTBEAT
from airflow_eos.checkpoint.decisions import DecisionLog
from airflow_eos.checkpoint.heartbeat import Standstill, brought_back_by, looks_no_more, read_look
from airflow_eos.checkpoint.progress import read_state_size
from airflow_eos.checkpoint.snapshot import read_snapshot
from airflow_eos.errors import EosError
from airflow_eos.page.batches import Batches
from airflow_eos.page.rates import mean_rate, rates
from airflow_eos.page.states import state_of
from airflow_eos.page.views import (
    Attempt,
    Batch,
    Beat,
    Detail,
    Drain,
    Member,
    Promised,
    Row,
    Source,
    Stage,
)
from airflow_eos.protocol.decision import Verdict, by_time_left
from airflow_eos.protocol.promise import named_by
from airflow_eos.recovery.driver_liveness import LifeWatch, Sign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_eos.checkpoint import CheckpointStore, Heartbeat
    from airflow_eos.checkpoint.snapshot import Snapshot
    from airflow_eos.page.batches import PlannedBatch
    from airflow_eos.page.listed import Listed
    from airflow_eos.protocol.decision import Decision

log = structlog.get_logger(__name__)

_SPARK = 16  # points of a sparkline


class Look:
    """Looks at one pipeline again and again.

    Args:
        listed: the pipeline.
        stall_after_ms: see :func:`airflow_eos.page.states.state_of`.
    """

    def __init__(self, listed: Listed, stall_after_ms: int) -> None:
        self.listed = listed
        self._stall_after_ms = stall_after_ms
        self._batches = Batches()
        self._life = LifeWatch()
        self._watchdog = Standstill()

    def row(self) -> Row:
        """The pipeline in the list; what cannot be read is a row that says why."""
        try:
            store = self.listed.open()
            found = read_snapshot(store)
            return self._row(store, found, self._newest(store))
        except EosError as error:
            return unreadable(self.listed, str(error))
        except Exception as error:  # one pipeline's surprise must not take the list from all
            log.exception("page_look_failed", location=self.listed.location)
            return unreadable(self.listed, f"{type(error).__name__}: the server's log says more")

    def detail(self) -> Detail:
        """The pipeline with its batches; what cannot be read says why."""
        try:
            store = self.listed.open()
            found = read_snapshot(store)
            newest = self._newest(store)
            return Detail(
                row=self._row(store, found, newest),
                pipeline_id=found.pipeline.id if found.pipeline else None,
                participants=tuple(
                    Member(each.name, each.kind, each.target, each.address)
                    for each in (found.pipeline.participants if found.pipeline else ())
                ),
                sources=tuple(
                    Source(each.name, each.rows, _ends(each.end)) for each in found.state.sources
                ),
                batches=tuple(_story(store, found, each) for each in reversed(newest)),
                state_size=msgspec.to_builtins(read_state_size(store)),
            )
        except EosError as error:
            return Detail(row=unreadable(self.listed, str(error)))

    def _newest(self, store: CheckpointStore) -> tuple[PlannedBatch, ...]:
        return self._batches.newest(store)

    def _row(self, store: CheckpointStore, found: Snapshot, newest: Sequence[PlannedBatch]) -> Row:
        drain, beaten = drain_of(store, found.heartbeat), store.head(HEARTBEAT)
        planned, committed = found.state.latest_offsets, found.state.latest_commit
        sign = Sign(found.heartbeat, newest_term(store), planned, committed)
        signs = self._life.hold(sign)
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
            looks_no_more(looked, 1000 * self._watchdog.lasts_s(looked)),
        )
        progress, heart = found.state, found.heartbeat
        flying = [s.rows for s in progress.sources] if progress.in_flight is not None else [0]
        alive = state in ("running", "idle", "draining", "stalled")
        return Row(
            id=self.listed.id,
            name=self.listed.name,
            location=self.listed.location,
            dag_id=self.listed.dag_id,
            task_id=self.listed.task_id,
            state=state,
            reason=reason,
            batch=progress.latest_commit,
            committed_at_ms=progress.committed_at_ms,
            in_flight=progress.in_flight,
            planned_at_ms=progress.planned_at_ms,
            lag_rows=None if None in flying else sum(rows or 0 for rows in flying),
            rates=rates(newest)[-_SPARK:],
            rows_per_s=mean_rate(newest, found.read_at_ms) if alive else None,
            promised=_promised(found),
            drain=Drain(drain.requested_by, drain.reason, drain.requested_at_ms) if drain else None,
            heartbeat=_beat(heart),
            remarks=tuple(filter(None, remarks)),
            looked_at_ms=found.read_at_ms,
        )


def unreadable(listed: Listed, why: str) -> Row:
    """A pipeline of which nothing is known but why."""
    return Row(
        id=listed.id,
        name=listed.name,
        location=listed.location,
        dag_id=listed.dag_id,
        task_id=listed.task_id,
        state="unreadable",
        reason=why,
        looked_at_ms=time.time_ns() // 1_000_000,
    )


def _beat(heart: Heartbeat | None) -> Beat | None:
    if heart is None:
        return None
    fields = {each: getattr(heart, each) for each in Beat.__struct_fields__}
    return Beat(**fields)


def _promised(found: Snapshot) -> Promised | None:
    """What readers are owed of the batch in flight, as its decisions name it."""
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


def _story(store: CheckpointStore, found: Snapshot, planned: PlannedBatch) -> Batch:
    attempts = _attempts(store, found, planned.batch)
    return Batch(
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
        return ()  # pruned while they were read; of the batch in flight it would be an error


def _stage(found: Snapshot, planned: PlannedBatch, attempts: Sequence[Decision]) -> Stage:
    if planned.committed_at_ms is not None:
        return "committed"
    if any(each.verdict is Verdict.COMMIT for each in attempts):
        return "settling"
    heart = found.heartbeat
    is_preparing = heart is not None and (heart.phase, heart.batch_id) == (
        "preparing",
        planned.batch,
    )
    return "preparing" if is_preparing else "planned"


def _attempt(decision: Decision) -> Attempt:
    opened = [each.opened_at_ms for each in decision.works]
    return Attempt(
        attempt=decision.attempt,
        verdict="commit" if decision.verdict is Verdict.COMMIT else "abort",
        decided_at_ms=decision.decided_at_ms,
        decided_by=decision.decided_by,
        term=decision.term,
        reason=decision.reason,
        works=len(decision.works),
        rows=sum(each.rows for each in decision.works),
        opened_at_ms=(min(opened), max(opened)) if opened else None,
    )


def _ends(end: dict[str, dict[int, int]] | None) -> dict[str, dict[str, int]] | None:
    if end is None:
        return None
    return {topic: {str(p): at for p, at in each.items()} for topic, each in end.items()}
