"""Where at-least-once is enough: no transaction, no decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_eos.failpoints import failpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.checkpoint import Phase
    from airflow_eos.sinks.port import BatchSink


class AtLeastOnceBatch:
    """The function given to ``foreachBatch``; see ``ExactlyOnceBatch`` for its arguments.

    ``sink`` is a :class:`~airflow_eos.sinks.planned.PlannedSink`: nothing is ever replayed.
    """

    def __init__(self, sink: BatchSink, *, on_phase: Callable[[int, Phase], None]) -> None:
        self._sink = sink
        self._on_phase = on_phase

    def streamed(self, df: DataFrame) -> DataFrame:
        """What the streaming query computes of ``df`` for this function."""
        return self._sink.streamed(df)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write the rows; visible at once, and again if the batch runs again."""
        self._on_phase(batch_id, "preparing")
        self._sink.prepare(df)
        failpoint("written")
        self._on_phase(batch_id, "waiting")
