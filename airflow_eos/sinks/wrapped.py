"""A sink around another one, which does as that one does where it does not say otherwise."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.sinks.port import BatchSink, TaskReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.protocol.decision import PreparedWork


@dataclass(frozen=True)
class WrappedSink:
    """See :class:`~airflow_eos.sinks.port.BatchSink`.

    Attributes:
        sink: the one inside.
    """

    sink: BatchSink

    @property
    def names(self) -> tuple[str, ...]:
        """Those of ``sink``."""
        return self.sink.names

    def streamed(self, df: DataFrame) -> DataFrame:
        """That of ``sink``."""
        return self.sink.streamed(df)

    def rows(self, df: DataFrame) -> DataFrame:
        """Those of ``sink``."""
        return self.sink.rows(df)

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """That of ``sink``."""
        return self.sink.prepare(rows, only=only)

    def tasks(self, rows: DataFrame, *, only: Collection[int] | None = None) -> DataFrame:
        """Those of ``sink``."""
        return self.sink.tasks(rows, only=only)

    def part(self, name: str) -> BatchSink:
        """That of ``sink``."""
        return self.sink.part(name)

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """Those of ``sink``."""
        return self.sink.delivered(spark, works)
