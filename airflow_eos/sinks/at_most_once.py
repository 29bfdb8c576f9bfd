"""Where at-most-once is asked for: rows may be missing after a crash, and none comes twice.

A batch is marked as spent before any of its rows is written, so nobody writes it again; a task that
runs again writes nothing (:class:`~airflow_eos.sinks.task.SinkTask`). Nothing is prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from airflow_eos.failpoints import failpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.checkpoint import Phase, Tenure
    from airflow_eos.sinks.port import BatchSink
    from airflow_eos.sinks.spent import Marks

log = structlog.get_logger(__name__)


class AtMostOnceBatch:
    """The function given to ``foreachBatch``; see ``ExactlyOnceBatch`` for its arguments.

    Args:
        sink: where the rows go, visible at once.
        marks: those that the tasks of ``sink`` look for, too.
        tenure: our term: marks are pruned, so a driver that slept may find a place empty.
        retained: for how many batches Spark's logs go back.
        on_phase: told (batch, phase) as the batch goes on; for the heartbeat.
    """

    def __init__(
        self,
        sink: BatchSink,
        marks: Marks,
        tenure: Tenure,
        *,
        retained: int,
        on_phase: Callable[[int, Phase], None],
    ) -> None:
        self._sink = sink
        self._marks = marks
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
        first = self._marks.begin(batch_id)
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
        self._marks.prune(batch_id - self._retained)
        self._on_phase(batch_id, "waiting")
