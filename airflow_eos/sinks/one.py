"""A sink that gets the rows as they are: what a batch asks of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_eos.sinks.fingerprint import with_row_hashes
from airflow_eos.sinks.reports import collected
from airflow_eos.sinks.spent import Marks
from airflow_eos.sinks.task import SinkTask, outlet, reports_of

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.decision import PreparedWork
    from airflow_eos.protocol.participant import Participant
    from airflow_eos.sinks.port import Guarantee, Sink, TaskReport


@dataclass(frozen=True)
class OneSink:
    """See :class:`~airflow_eos.sinks.port.BatchSink`.

    Attributes:
        sink: where the rows go.
        guarantee: see :func:`~airflow_eos.sinks.task.outlet`.
        marks: where tasks mark that they have begun (at most once).
        typed: whether rows come in the sink's types already, as a part of several outputs.
        fused: where the source reads in Arrow: runs a task over what it reads, as a part of the
            streaming query. Batches that are replayed are rows of Spark's like any others.
    """

    sink: Sink
    guarantee: Guarantee = "exactly_once"
    marks: Marks | None = None
    typed: bool = False
    fused: Callable[[SinkTask], DataFrame] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The one."""
        return (self.sink.name,)

    @property
    def keeping(self) -> tuple[str, ...]:
        """None: what is kept beside a sink is said of an ``Output``, which may be the only one."""
        return ()

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`."""
        self.sink.check(spark)

    def bound(self, store: CheckpointStore) -> OneSink:
        """See :meth:`Sink.bound`."""
        marks = Marks.of(store, self.guarantee)
        return replace(self, sink=self.sink.bound(store), marks=marks)

    def connect(self, interval: timedelta) -> Participant:
        """See :meth:`Sink.connect`."""
        return self.sink.connect(interval)

    def streamed(self, df: DataFrame) -> DataFrame:
        """The rows themselves, which a replay reads twice."""
        return df

    def rows(self, df: DataFrame) -> DataFrame:
        """The sink's columns."""
        # As SQL text: each column object would be some calls to the JVM, for every batch.
        return df if self.typed else df.selectExpr(*self.sink.columns(df.schema))

    def tasks(self, rows: DataFrame, *, only: Collection[int] | None = None) -> DataFrame:
        """See :meth:`BatchSink.tasks`."""
        outlets = [outlet(self.sink, self.guarantee)]
        if self.fused is not None and rows.isStreaming:
            return self.fused(SinkTask(tuple(outlets), marks=self.marks))
        return reports_of(with_row_hashes(rows), outlets, only=only, marks=self.marks)

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """See :meth:`BatchSink.prepare`."""
        return collected(self.tasks(rows, only=only), self.names)

    def part(self, name: str) -> OneSink:
        """Itself."""
        del name
        return replace(self, typed=True)

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """See :meth:`BatchSink.delivered`."""
        return self.sink.delivered(spark, works)
