"""Where at-most-once is asked for: rows may be missing after a crash, and none comes twice.

A batch is marked as spent before any of its rows is written, so nobody writes it again; a task that
runs again writes nothing (:class:`~airflow_eos.sinks.task.SinkTask`). Nothing is prepared.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from airflow_eos.checkpoint.paths import SPENT
from airflow_eos.checkpoint.pipeline import read_pipeline
from airflow_eos.checkpoint.state import read_state
from airflow_eos.errors import OwnershipError
from airflow_eos.failpoints import failpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.checkpoint import CheckpointStore, Phase, Tenure
    from airflow_eos.sinks.port import BatchSink

log = structlog.get_logger(__name__)


class AtMostOnceBatch:
    """The function given to ``foreachBatch``; see ``ExactlyOnceBatch`` for its arguments.

    Args:
        sink: where the rows go, visible at once.
        store: the checkpoint, which keeps the marks of batches that Spark may still run again.
        tenure: our term: marks are pruned, so a driver that slept may find a place empty.
        retained: for how many batches Spark's logs go back.
        on_phase: told (batch, phase) as the batch goes on; for the heartbeat.
    """

    def __init__(
        self,
        sink: BatchSink,
        store: CheckpointStore,
        tenure: Tenure,
        *,
        retained: int,
        on_phase: Callable[[int, Phase], None],
    ) -> None:
        self._sink = sink
        self._store = store
        self._tenure = tenure
        self._retained = retained
        self._on_phase = on_phase

    def streamed(self, df: DataFrame) -> DataFrame:
        """What the streaming query computes of ``df`` for this function."""
        return self._sink.streamed(df)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write the rows, or none where anybody may have written some of them before.

        Raises:
            SupersededError: another driver has started since; nothing was written.
        """
        self._on_phase(batch_id, "preparing")
        first = self._store.create(_mark(batch_id), uuid.uuid4().hex.encode())
        self._tenure.require(batch_id)
        failpoint("spent")
        rows = self._sink.rows(df)
        if first:
            self._sink.prepare(rows)
            failpoint("written")
        else:
            log.warning(
                "batch_given_up", batch=batch_id, reason="it was begun before, and not ended"
            )
            self._sink.prepare(rows, only=())  # Spark's state and watermark of it must exist
        self._store.delete_folder(f"{SPENT}/{batch_id - self._retained}")
        self._on_phase(batch_id, "waiting")


def is_spent(store: CheckpointStore) -> bool:
    """Whether the batch in flight was begun before, at most once."""
    batch = read_state(store).in_flight
    return batch is not None and store.head(_mark(batch)) is not None


def require_never_exact(store: CheckpointStore) -> None:
    """Refuse a checkpoint whose batch in flight may have been delivered exactly once.

    Raises:
        OwnershipError: a driver with decisions has run on it.
    """
    if read_pipeline(store) is not None:
        raise OwnershipError(
            f"{store.location} belongs to a pipeline that delivers exactly once: the batch in "
            "flight may be promised, and would come twice. Take a new checkpoint location for "
            "at_most_once, or go on with exactly_once."
        )


def require_not_spent(store: CheckpointStore) -> None:
    """Refuse to deliver exactly once what may be visible in part.

    Raises:
        OwnershipError: the batch in flight was begun with at_most_once.
    """
    if is_spent(store):
        raise OwnershipError(
            f"{store.location}: the batch in flight was begun with at_most_once, and some of its "
            "rows may be visible; exactly_once would write them again. Start once more with "
            "at_most_once until that batch is over, or take a new checkpoint location."
        )


def _mark(batch_id: int) -> str:
    return f"{SPENT}/{batch_id}/mark"
