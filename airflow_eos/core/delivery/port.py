"""The half of a sink that runs inside Spark: it prepares rows, and reads delivered ones back.

A :class:`Sink` is a value that travels to the executors and writes there; the other half, which any
process can be, is its :class:`~airflow_eos.core.protocol.participant.Participant`. The decision log
and the driver know no more of a sink than these two pages.

A reader who knows Flink will look for barriers here. There are none to align: a micro-batch is
aligned by construction, every task of batch N reads exactly the offsets of ``offsets/N``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from airflow_eos.core.arguments import Guarantee as Guarantee
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork
from airflow_eos.core.protocol.participant import Participant
from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.protocol.decision import Decision

SPARK = "Spark 4.0 to 4.3"
"""The releases that this package is tried on; see tests/matrix."""
PROGRESS = "consumer_group"
"""The name of the participant that says how far a pipeline is; no output may be called so."""


class TaskReport(msgspec.Struct, frozen=True):
    """The report of one Spark task of a batch, for one participant.

    ``rows`` and ``fingerprint`` describe the rows that the task was given, written or not; ``work``
    is the work it prepared: None where it had no rows or was told not to write. ``reported_at_ms``
    is by the clock of the task's machine, as is the time when its work was opened.
    """

    task: int
    rows: int
    fingerprint: str
    work: PreparedWork | None = None
    participant: str = DEFAULT_PARTICIPANT
    reported_at_ms: int = 0

    @property
    def content(self) -> tuple[int, str]:
        """The content that pairs this task with promised work: (rows, fingerprint)."""
        return self.rows, self.fingerprint


class TaskWriter(Protocol):
    """The writer of one task into its system: ``write`` … → ``prepare``, or ``abort``.

    One that sends by itself may have ``finish()``, called where the task has other outputs, once no
    row comes any more: it begins to send what is left, and returns at once.
    """

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows; an error can come from a later call, and then only ``abort`` is of use."""

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Make written rows durable and leave the work open; None: there is nothing to decide."""

    def abort(self) -> None:
        """Remove written rows, and prepared work that another attempt of the task would meet.

        No decision names the work yet; work that holds no lock may be left to whoever lists it.
        """


class Sink(Protocol):
    """A kind's sink: a value that is pickled into every task, and can be asked before."""

    @property
    def name(self) -> str:
        """The participant's name in the decisions of the pipeline."""
        ...

    def check(self, spark: SparkSession) -> None:
        """Refuse, before anything else, a sink that cannot run here or on the executors."""
        ...

    def bound(self, store: CheckpointStore) -> Sink:
        """Return this sink for the pipeline of that checkpoint, after a look at it, if need be."""
        ...

    def connect(self, interval: timedelta) -> Participant:
        """Reach the system from the driver, and refuse a system that cannot keep what is promised.

        Args:
            interval: of the query's trigger.
        """
        ...

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        """Return what is written of rows of ``schema``, as Spark SQL: ``expression AS `name```.

        Args:
            schema: the schema of the rows that a user hands over.
            row: the prefix of each column of the row: ``""``, or ``"`orders`."`` inside a struct.

        Raises:
            ConfigurationError: the columns cannot be sent; with the columns and what was expected.
        """
        ...

    def opened(self, task: int, task_attempt: int, *, transactional: bool = True) -> TaskWriter:
        """Return the writer of one task (its number and attempt), in a Spark worker.

        ``transactional``: the writer prepares; else its rows are visible at once, and nothing is
        prepared (at least once, at most once).
        """
        ...

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """Return the rows that this committed work holds, read back from the system."""
        ...


@dataclass(frozen=True)
class WrappingSink:
    """The base of a sink around another one; what the inner sink asks for is asked of it."""

    sink: Sink


def innermost(sink: Sink | WrappingSink) -> Sink:
    """Return the sink that other sinks are around; a sink of a user is looked into by nobody."""
    return innermost(sink.sink) if isinstance(sink, WrappingSink) else sink


@runtime_checkable
class DistributingSink(Protocol):
    """What a sink has beside :class:`Sink` where Spark may put its rows together before the tasks.

    ``distribute`` says whether it does: ``none`` or ``hash``.
    """

    distribute: str

    def distribution(self) -> Sequence[Any]:
        """Return the columns whose rows go to one task; none: rows stay where they are."""
        ...


def bound_store(store: CheckpointStore | None, kind: str) -> CheckpointStore:
    """Return the checkpoint that a sink was bound to.

    Raises:
        ConfigurationError: the sink was not bound.
    """
    if store is None:
        raise ConfigurationError(
            f"This {kind} sink does not know its checkpoint: hand it to start_exactly_once, or "
            "use what its bound(store) gives."
        )
    return store


class Former(NamedTuple):
    """A pipeline that a new one goes on from, and its last decision; None where it only began."""

    pipeline: str
    decision: Decision | None


class OffsetCommit(Protocol):
    """A place where a pipeline says how far it is: work without rows, which follows the rows."""

    @property
    def participant(self) -> Participant:
        """The participant that commits this work."""
        ...

    def former(self, pipeline: str) -> Former | None:
        """Refuse a place of another pipeline, before anything is changed.

        Args:
            pipeline: the id of the pipeline that starts.

        Returns:
            The drained pipeline, with its last decision, that an empty checkpoint goes on from.

        Raises:
            OwnershipError: with the owner of the place, or why nobody may go on from there.
        """
        ...

    def begin(self) -> None:
        """Own the place for this pipeline; its former pipeline is refused from now on."""
        ...

    def drained(self, decision: Decision, is_newest: Callable[[], bool]) -> None:
        """Remember that all is settled up to ``decision``, nothing is open, and this driver ended.

        Nothing is written where ``is_newest`` says, at the moment of writing, that this driver is
        not the newest any more: then the pipeline goes on.
        """
        ...

    def close(self) -> None:
        """Stop what the place does beside the batches; its participant is closed separately."""
        ...

    def works(self, batch_id: int, attempt: int, offsets: str) -> Sequence[PreparedWork]:
        """Return the work that the decision of an attempt names; none of it is visible yet.

        Args:
            batch_id: Spark's number of the batch.
            attempt: the number of the attempt at the batch.
            offsets: the ``offsets/N`` with which the batch is evaluated.

        Raises:
            ConfigurationError: the place cannot express how far the batch is.
        """
        ...


class OffsetCommitTarget(Protocol):
    """A user's choice of a :class:`OffsetCommit`."""

    @property
    def resume(self) -> bool:
        """Whether an empty checkpoint goes on from the progress there."""
        ...

    def connected(self, store: CheckpointStore) -> OffsetCommit:
        """Reach the place, for the pipeline of that checkpoint; refuse one that cannot work."""
        ...


class BatchSink(Protocol):
    """A sink as a batch sees it, or several sinks as one."""

    @property
    def names(self) -> tuple[str, ...]:
        """The participants that rows go to."""
        ...

    def streamed(self, df: DataFrame) -> DataFrame:
        """Return what the streaming query computes of ``df``, in batches for ``foreachBatch``."""
        ...

    def rows(self, df: DataFrame) -> DataFrame:
        """Return the columns of ``df`` in the sinks' types; refuse columns that cannot be sent."""
        ...

    def tasks(self, rows: DataFrame, *, only: Collection[int] | None = None) -> DataFrame:
        """Return the reports of each task; reading them makes the tasks write.

        Args:
            rows: the rows that :meth:`rows` gave.
            only: the tasks that write (all when None); the others drain their rows.
        """
        ...

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """Run the batch: each task prepares one piece of work a participant and leaves it open.

        Returns one report a participant and task, in the order of the tasks. A task that fails
        aborts its own work and raises.
        """
        ...

    def part(self, name: str) -> BatchSink:
        """Return the sink of one participant; its ``rows`` take what :meth:`rows` gave."""
        ...

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """Return the rows that this committed work holds, all of one participant."""
        ...


class BatchFunction(Protocol):
    """The function of a query's batches, which is given to ``foreachBatch``."""

    _sink: BatchSink

    def streamed(self, df: DataFrame) -> DataFrame:
        """Return what the streaming query computes of ``df`` for this function."""
        return self._sink.streamed(df)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Deliver a batch of what :meth:`streamed` gave."""
        ...
