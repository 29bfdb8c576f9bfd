"""What a sink gives to the batch driver: prepare, commit, abort, outcome.

A :class:`Sink` is a value that travels to the executors and writes there; its
:class:`Committer` lives on the driver and ends what was written. The decision log, the planner
and the driver know no more of a sink than this page.

A reader who knows Flink will look for barriers here. There are none to align: a micro-batch is
aligned by construction, every task of batch N reads exactly the offsets of ``offsets/N``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from airflow_eos.transactions import (
    OpenTransaction,
    Outcome,
    PreparedTransaction,
    TransactionIdentity,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TaskReport(msgspec.Struct, frozen=True):
    """What one Spark task of a batch returns.

    ``rows`` and ``fingerprint`` describe what the task was given, written or not;
    ``transaction`` is what it prepared: none where it had no rows or was told not to write.
    """

    task: int
    rows: int
    fingerprint: str
    transaction: PreparedTransaction | None = None

    @property
    def content(self) -> tuple[int, str]:
        """What pairs this task with a promised transaction: (rows, fingerprint)."""
        return self.rows, self.fingerprint


class Committer(Protocol):
    """The driver's half of a sink. Every verb may be repeated by any process."""

    def commit(
        self, transactions: Sequence[PreparedTransaction]
    ) -> Mapping[TransactionIdentity, Outcome]:
        """End each with commit and say what became of it; never returns OPEN."""
        ...

    def abort(self, transactions: Collection[TransactionIdentity]) -> None:
        """End each with abort, by identity; one that is no longer open is left alone."""
        ...

    def outcome(
        self, transactions: Sequence[PreparedTransaction]
    ) -> Mapping[TransactionIdentity, Outcome]:
        """Ask what became of each without touching it."""
        ...

    def open_transactions(
        self, *, besides: Collection[TransactionIdentity] = ()
    ) -> tuple[OpenTransaction, ...]:
        """Whatever is open now under this sink's prefix, whoever opened it.

        ``besides`` are left out, which makes asking cheaper.
        """
        ...

    def delivered(
        self, spark: SparkSession, transactions: Sequence[PreparedTransaction]
    ) -> DataFrame:
        """The rows that these committed transactions wrote, read back from where they are."""
        ...

    def close(self) -> None:
        """Let go of connections; never ends a transaction."""
        ...


class Sink(Protocol):
    """The half of a sink that is a value: it is pickled into every task."""

    @property
    def transactional_id_prefix(self) -> str:
        """Owned by one checkpoint: every transactional id starts with it."""
        ...

    def streamed(self, df: DataFrame) -> DataFrame:
        """What the streaming query computes of ``df``, and ``foreachBatch`` is given a batch of."""
        ...

    def rows(self, df: DataFrame) -> DataFrame:
        """The columns of ``df`` in the sink's types, refused where they cannot be sent."""
        ...

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """Run the batch: each task writes one transaction and leaves it open.

        ``only`` names the tasks that write (all when None); the others drain their rows. One
        report a task, in the order of the tasks. A task that fails aborts its own and raises.
        """
        ...
