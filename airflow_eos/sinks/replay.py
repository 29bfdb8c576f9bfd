"""The rows of a promise that were lost, to be written again.

What was promised and what is missing is :mod:`airflow_eos.protocol.promise`; here the batch is
evaluated once more, and its rows are held against those that are delivered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from airflow_eos.checkpoint import DecisionLog, read_state
from airflow_eos.protocol.promise import Outcomes, Promise
from airflow_eos.protocol.work import PreparedWork
from airflow_eos.sinks.keeping import kept_rows
from airflow_eos.sinks.port import BatchSink, TaskReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.checkpoint import CheckpointStore
    from airflow_eos.checkpoint.perishable import PerishableRows
    from airflow_eos.checkpoint.rulings import Acceptance

log = structlog.get_logger(__name__)


def promise_in_flight(store: CheckpointStore) -> bool:
    """Whether the batch in flight was promised: the next run begins by keeping that promise."""
    batch = read_state(store).in_flight
    return batch is not None and Promise.of(DecisionLog(store).of_batch(batch)) is not None


@dataclass(frozen=True, slots=True)
class Replay:
    """What of a batch is written again for one participant.

    Attributes:
        participant: its name.
        sink: writes its rows alone.
        rows: the batch, or just the rows that are missing.
        only: the tasks that write (None: all).
    """

    participant: str
    sink: BatchSink
    rows: DataFrame
    only: list[int] | None


@contextmanager
def replays(
    sink: BatchSink,
    rows: DataFrame,
    promise: Promise,
    outcomes: Outcomes,
    owing: Collection[str],
    rows_kept: PerishableRows | None = None,
) -> Iterator[list[Replay]]:
    """What is missing of a promise, for each participant of ``owing``.

    The batch is evaluated once and kept on disk meanwhile: a second evaluation would spoil the
    state of a stateful query. Who has kept its rows in the checkpoint gets those instead, whatever
    the evaluation gives.
    """
    from pyspark import StorageLevel

    with ExitStack() as kept_on_disk:

        def keep(frame: DataFrame) -> DataFrame:
            kept = frame.persist(StorageLevel.DISK_ONLY)
            kept_on_disk.callback(kept.unpersist)
            return kept

        kept = keep(rows)
        reports = sink.prepare(kept, only=())
        missing = []
        for name in (each for each in sink.names if each in owing):
            own = _of_kept(sink.part(name), name, kept, promise, outcomes, rows_kept)
            if own is not None:
                missing.append(own)
                continue
            tasks = [report for report in reports if report.participant == name]
            promise.part(name).check_whole(task.content for task in tasks)
            missing.append(_replay(sink.part(name), name, kept, promise, outcomes, tasks, keep))
        yield missing


def _of_kept(
    sink: BatchSink,
    name: str,
    evaluated: DataFrame,
    promise: Promise,
    outcomes: Outcomes,
    rows_kept: PerishableRows | None,
) -> Replay | None:
    """The very rows that were promised; None where not all that is missing was kept."""
    if rows_kept is None:
        return None
    part = promise.part(name)
    keys = keys_of_missing(part, outcomes, rows_kept.keys(name, promise.batch_id))
    if not keys:
        return None
    log.info("replayed_as_kept", batch=promise.batch_id, participant=name, works=len(keys))
    rows = kept_rows(sink.rows(evaluated), rows_kept, name, promise.batch_id, keys)
    return Replay(name, sink, rows, None)


def keys_of_missing(part: Promise, outcomes: Outcomes, kept: Collection[str]) -> list[str]:
    """Under which keys all that is missing of one participant is kept, in the order of the tasks.

    A replay that was lost itself has kept its rows too, which are those of the promise.

    Returns:
        An empty list where some of it is not kept, or what is delivered was cut otherwise.
    """
    promised = [TaskReport(n, w.rows, w.fingerprint) for n, w in enumerate(part.promised)]
    missing = undelivered_tasks(promised, part.delivered(outcomes)) or []
    alike = {work.content: work.key for work in part.works if work.key in kept}
    works = [part.promised[n] for n in missing]
    keys = [work.key if work.key in kept else alike.get(work.content) for work in works]
    return [key for key in keys if key is not None] if None not in keys else []


def _replay(
    sink: BatchSink,
    name: str,
    kept: DataFrame,
    promise: Promise,
    outcomes: Outcomes,
    tasks: Sequence[TaskReport],
    keep: Callable[[DataFrame], DataFrame],
) -> Replay:
    """Whole tasks where contents pair up, else the rows that nobody has."""
    from airflow_eos.sinks.difference import undelivered

    rows = sink.rows(kept)
    delivered = promise.part(name).delivered(outcomes)
    paired = undelivered_tasks(tasks, delivered)
    if paired is not None:
        return Replay(name, sink, rows, paired)
    seen = keep(sink.delivered(kept.sparkSession, delivered))
    return Replay(name, sink, undelivered(rows, seen, tasks=len(tasks)), None)


def undelivered_tasks(
    tasks: Sequence[TaskReport], delivered: Sequence[PreparedWork]
) -> list[int] | None:
    """The tasks whose content nobody has delivered; None where contents do not pair up."""
    done = Counter(t.content for t in delivered)
    open_tasks = []
    for task in tasks:
        if done[task.content] > 0:
            done[task.content] -= 1
        elif task.rows:
            open_tasks.append(task.task)
    return None if done.total() else open_tasks


def rows_owed(promise: Promise, outcomes: Outcomes, accepted: Acceptance | None) -> dict[str, int]:
    """Rows to replay, by participant: none where a person accepted the batch as it is."""
    if accepted is None:
        missing = {name: promise.part(name).missing_rows(outcomes) for name in promise.participants}
        return {name: rows for name, rows in missing.items() if rows}
    given_up = promise.unseen_rows(outcomes)
    if given_up:
        log.error(
            "rows_given_up",
            batch=promise.batch_id,
            rows=given_up,
            accepted_by=accepted.ruled_by,
            accepted_at_ms=accepted.ruled_at_ms,
        )
    return {}
