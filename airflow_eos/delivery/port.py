"""The half of a sink that runs inside Spark: prepare, and read back.

A :class:`Sink` is a value that travels to the executors and writes there; the other half, which any
process can be, is its :class:`~airflow_eos.protocol.participant.Participant`. The decision log and
the driver know no more of a sink than these two pages.

A reader who knows Flink will look for barriers here. There are none to align: a micro-batch is
aligned by construction, every task of batch N reads exactly the offsets of ``offsets/N``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from airflow_eos.errors import ConfigurationError
from airflow_eos.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork
from airflow_eos.protocol.participant import Participant

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.decision import Decision


Guarantee = Literal["exactly_once", "at_least_once", "at_most_once"]

PROGRESS = "consumer_group"
"""The participant that says how far a pipeline is; no output may be called so beside it."""


class TaskReport(msgspec.Struct, frozen=True):
    """What one Spark task of a batch returns, for one participant.

    ``rows`` and ``fingerprint`` describe what the task was given, written or not; ``work`` is what
    it prepared: none where it had no rows or was told not to write. ``reported_at_ms`` is by the
    clock of the task's machine, as is when its work was opened.
    """

    task: int
    rows: int
    fingerprint: str
    work: PreparedWork | None = None
    participant: str = DEFAULT_PARTICIPANT
    reported_at_ms: int = 0

    @property
    def content(self) -> tuple[int, str]:
        """What pairs this task with promised work: (rows, fingerprint)."""
        return self.rows, self.fingerprint


class TaskWriter(Protocol):
    """One task's way into its system: ``write`` … → ``prepare``, or ``abort``."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows; an error can come from a later call, after it only ``abort`` is of use."""

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Make durable what was written and leave it open; None where nothing is to be decided."""

    def abort(self) -> None:
        """Remove what was written, and what was prepared where another attempt would meet it.

        Nothing names it yet; what holds no lock may be left to whoever lists it.
        """


class Sink(Protocol):
    """What a kind gives: a value that is pickled into every task, and can be asked before."""

    @property
    def name(self) -> str:
        """The participant's name in the decisions of the pipeline."""
        ...

    def check(self, spark: SparkSession) -> None:
        """Refuse what cannot run here or on the executors, before anything else is done."""
        ...

    def bound(self, store: CheckpointStore) -> Sink:
        """This sink, for the pipeline of that checkpoint; most are the same for all."""
        ...

    def connect(self, interval: timedelta) -> Participant:
        """Reach the system from the driver, and refuse it where it cannot keep what is promised.

        Args:
            interval: of the query's trigger.
        """
        ...

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        """What is written of rows of ``schema``, as Spark SQL: ``expression AS `name```.

        Args:
            schema: of the rows that a user hands over.
            row: stands before each of its columns: ``""``, or ``"`orders`."`` inside a struct.

        Raises:
            ConfigurationError: the columns cannot be sent: which, and what was expected.
        """
        ...

    def opened(self, task: int, attempt: int, *, transactional: bool = True) -> TaskWriter:
        """The writer of one task (its number and attempt), in a Spark worker.

        ``transactional``: prepare; else what is written is visible at once, and nothing is
        prepared (at least once, at most once).
        """
        ...

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """The rows that this committed work holds, read back from where they are."""
        ...


def bound_store(store: CheckpointStore | None, kind: str) -> CheckpointStore:
    """The checkpoint that a sink was bound to.

    Raises:
        ConfigurationError: it was not.
    """
    if store is None:
        raise ConfigurationError(
            f"This {kind} sink does not know its checkpoint: hand it to start_exactly_once, or "
            "use what its bound(store) gives."
        )
    return store


class Former(NamedTuple):
    """A pipeline that is gone on from, and its last decision; None where it only began."""

    pipeline: str
    decision: Decision | None


class Progress(Protocol):
    """Where a pipeline says how far it is: work without rows, which follows the rows."""

    @property
    def participant(self) -> Participant:
        """Who commits it."""
        ...

    def former(self, pipeline: str) -> Former | None:
        """Refuse what is another pipeline's, before anything is changed.

        Args:
            pipeline: the id of the one that starts.

        Returns:
            After what an empty checkpoint goes on, of a pipeline that was drained.

        Raises:
            OwnershipError: with whose it is, or why nobody may go on from there.
        """
        ...

    def begin(self) -> None:
        """Own it for this pipeline; whoever had it before is refused from now on."""
        ...

    def drained(self, decision: Decision, is_newest: Callable[[], bool]) -> None:
        """Remember that all is settled up to this decision, nothing is open, and we have ended.

        Nothing where ``is_newest`` says, at the moment of writing, that we are not the newest
        driver any more: then the pipeline goes on.
        """
        ...

    def close(self) -> None:
        """End what it does beside the batches; its participant is closed by itself."""
        ...

    def works(self, batch_id: int, attempt: int, offsets: str) -> Sequence[PreparedWork]:
        """What the decision of an attempt names, nothing of which is visible yet.

        Args:
            batch_id: Spark's number of the batch.
            attempt: at it.
            offsets: the ``offsets/N`` with which it is evaluated.

        Raises:
            ConfigurationError: it cannot say how far that is.
        """
        ...


class ProgressPlace(Protocol):
    """What a user gives for a :class:`Progress`."""

    @property
    def resume(self) -> bool:
        """Whether an empty checkpoint goes on from it."""
        ...

    def opened(self, store: CheckpointStore) -> Progress:
        """Reach it, for the pipeline of that checkpoint; refuse what cannot work."""
        ...


class BatchSink(Protocol):
    """What a batch asks of a sink, or of several as one."""

    @property
    def names(self) -> tuple[str, ...]:
        """The participants that rows go to."""
        ...

    def streamed(self, df: DataFrame) -> DataFrame:
        """What the streaming query computes of ``df``, and ``foreachBatch`` is given a batch of."""
        ...

    def rows(self, df: DataFrame) -> DataFrame:
        """The columns of ``df`` in the sinks' types, refused where they cannot be sent."""
        ...

    def tasks(self, rows: DataFrame, *, only: Collection[int] | None = None) -> DataFrame:
        """The reports of each task; who reads them makes the tasks write.

        Args:
            rows: as :meth:`rows` gave them.
            only: the tasks that write (all when None); the others drain their rows.
        """
        ...

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """Run the batch: each task prepares one piece of work a participant and leaves it open.

        One report a participant and task, in the order of the tasks. A task that fails aborts its
        own and raises.
        """
        ...

    def part(self, name: str) -> BatchSink:
        """That of one participant alone; its ``rows`` are taken from what :meth:`rows` gave."""
        ...

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """The rows that this committed work holds, all of one participant."""
        ...
