"""A sink whose tasks are a part of the streaming query, so that no row leaves its plan."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.errors import SupersededError
from airflow_eos.sinks.port import TaskReport
from airflow_eos.sinks.reports import collected
from airflow_eos.sinks.wrapped import WrappedSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class PlannedSink(WrappedSink):
    """See the module.

    Rows that ``foreachBatch`` is given are a query of their own: planned again for each batch,
    and copied once more. They can be read again, though, which a replay needs: where a promise is
    waiting to be kept, the query runs with ``sink`` alone.
    """

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
