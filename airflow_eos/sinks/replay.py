"""The rows of a promise that were lost, to be written again.

What was promised and what is missing is :mod:`airflow_eos.protocol.promise`; here the batch is
evaluated once more, and its rows are held against those that are delivered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_eos.checkpoint import DecisionLog, read_state
from airflow_eos.protocol.promise import Outcomes, Promise
from airflow_eos.protocol.work import PreparedWork
from airflow_eos.sinks.port import BatchSink, TaskReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.checkpoint import CheckpointStore


def promise_in_flight(store: CheckpointStore) -> bool:
    """Whether the batch in flight was promised: the next run begins by keeping that promise."""
    batch = read_state(store).in_flight
    return batch is not None and Promise.of(DecisionLog(store).of_batch(batch)) is not None


@contextmanager
def rows_to_replay(
    sink: BatchSink, rows: DataFrame, promise: Promise, outcomes: Outcomes
) -> Iterator[tuple[DataFrame, list[int] | None]]:
    """The rows that are missing, and the tasks of them that write (None: all).

    The batch is evaluated once and kept on disk meanwhile: a second evaluation would spoil the
    state of a stateful query.
    """
    from pyspark import StorageLevel

    from airflow_eos.sinks.difference import undelivered

    kept = rows.persist(StorageLevel.DISK_ONLY)
    try:
        tasks = sink.prepare(kept, only=())
        promise.check_whole(task.content for task in tasks)
        delivered = promise.delivered(outcomes)
        paired = undelivered_tasks(tasks, delivered)
        if paired is not None:
            yield kept, paired
        else:
            seen = sink.delivered(rows.sparkSession, delivered).persist(StorageLevel.DISK_ONLY)
            try:
                yield undelivered(kept, seen, tasks=len(tasks)), None
            finally:
                seen.unpersist()
    finally:
        kept.unpersist()


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
