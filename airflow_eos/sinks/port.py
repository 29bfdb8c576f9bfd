"""The half of a sink that runs inside Spark: prepare, and read back.

A :class:`Sink` is a value that travels to the executors and writes there; the other half, which any
process can be, is its :class:`~airflow_eos.protocol.participant.Participant`. The decision log and
the driver know no more of a sink than these two pages.

A reader who knows Flink will look for barriers here. There are none to align: a micro-batch is
aligned by construction, every task of batch N reads exactly the offsets of ``offsets/N``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import msgspec

from airflow_eos.protocol.participant import Participant
from airflow_eos.protocol.work import PreparedWork

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TaskReport(msgspec.Struct, frozen=True):
    """What one Spark task of a batch returns.

    ``rows`` and ``fingerprint`` describe what the task was given, written or not; ``work`` is what
    it prepared: none where it had no rows or was told not to write.
    """

    task: int
    rows: int
    fingerprint: str
    work: PreparedWork | None = None

    @property
    def content(self) -> tuple[int, str]:
        """What pairs this task with promised work: (rows, fingerprint)."""
        return self.rows, self.fingerprint


class BatchSink(Protocol):
    """What a batch asks of a sink, which is a value: it is pickled into every task."""

    def streamed(self, df: DataFrame) -> DataFrame:
        """What the streaming query computes of ``df``, and ``foreachBatch`` is given a batch of."""
        ...

    def rows(self, df: DataFrame) -> DataFrame:
        """The columns of ``df`` in the sink's types, refused where they cannot be sent."""
        ...

    def tasks(
        self, rows: DataFrame, *, only: Collection[int] | None = None, transactional: bool = True
    ) -> DataFrame:
        """The report of each task; who reads them makes the tasks write.

        Args:
            rows: as :meth:`rows` gave them.
            only: the tasks that write (all when None); the others drain their rows.
            transactional: prepare; else what is written is visible at once (at least once).
        """
        ...

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """Run the batch: each task prepares one piece of work and leaves it open.

        One report a task, in the order of the tasks. A task that fails aborts its own and raises.
        """
        ...

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """The rows that this committed work holds, read back from where they are."""
        ...


class Sink(BatchSink, Protocol):
    """A sink as a user names it: it can also be asked whether it will work, before the start."""

    def check(self, spark: SparkSession) -> None:
        """Refuse what cannot run here or on the executors, before anything else is done."""
        ...

    def connect(self, interval: timedelta) -> Participant:
        """Reach the system from the driver, and refuse it where it cannot keep what is promised.

        Args:
            interval: of the query's trigger.
        """
        ...
