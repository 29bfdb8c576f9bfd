"""A sink whose tasks are a part of the streaming query, so that no row leaves its plan."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.errors import SupersededError
from airflow_eos.sinks.port import BatchSink, TaskReport
from airflow_eos.sinks.reports import collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.protocol.work import PreparedWork


@dataclass(frozen=True)
class PlannedSink:
    """See the module.

    Rows that ``foreachBatch`` is given are a query of their own: planned again for each batch,
    and copied once more. They can be read again, though, which a replay needs: where a promise is
    waiting to be kept, the query runs with ``sink`` alone.
    """

    sink: BatchSink

    @property
    def names(self) -> tuple[str, ...]:
        """Those of ``sink``."""
        return self.sink.names

    def streamed(self, df: DataFrame) -> DataFrame:
        """See :meth:`BatchSink.streamed`: the reports of the tasks that write the rows."""
        return self.sink.tasks(self.sink.rows(df))

    def rows(self, df: DataFrame) -> DataFrame:
        """See :meth:`BatchSink.rows`: they were brought into the sink's types before."""
        return df

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """See :meth:`BatchSink.prepare`.

        Raises:
            SupersededError: only some tasks should write.
        """
        if only is not None:
            raise SupersededError(
                "The batch was promised by another driver after this query had started, which "
                "cannot replay it. Nothing is lost. Keep one of the two drivers, and start the "
                "query again: it keeps the promise."
            )
        return collected(rows, self.names)

    def tasks(self, rows: DataFrame, *, only: Collection[int] | None = None) -> DataFrame:
        """That of ``sink``."""
        return self.sink.tasks(rows, only=only)

    def part(self, name: str) -> BatchSink:
        """That of ``sink``."""
        return self.sink.part(name)

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """That of ``sink``."""
        return self.sink.delivered(spark, works)
