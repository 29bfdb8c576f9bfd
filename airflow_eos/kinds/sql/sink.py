"""The base of SQL sinks: columns go by name, and a table does not tell which work wrote a row."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.delivery.port import bound_store
from airflow_eos.core.delivery.spill import (
    STREAM_MODULES,
    SpillStream,
    require_disk,
    running_stamp,
)
from airflow_eos.core.delivery.task import HASH_COLUMN, selected
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.protocol.decision import PreparedWork
from airflow_eos.errors import ConfigurationError, DeliveryError, EosError, Remedy
from airflow_eos.kinds.sql.kept import DIGEST, KEPT, KeptStatements, digest_of, piece
from airflow_eos.kinds.sql.participant import BATCH_COLUMN, GENERATION, WRITTEN_TABLE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.core.delivery.port import TaskWriter

# The connection of each sink that the last task of this worker has left. Spark keeps a worker for a
# minute after its last task; to connect costs a small batch more than to write its rows.
_left: dict[TableSink, Any] = {}


def session_of(sink: TableSink) -> Any:
    """Return the connection that a former task has left, or a new one; no other task has it."""
    return _left.pop(sink, None) or sink.session()


def leave(sink: TableSink, session: Any) -> None:
    """Leave a connection, with no transaction on it, to the next task of this worker."""
    if _left.setdefault(sink, session) is not session:
        session.close()


KEEPING_MODULES = (*STREAM_MODULES, "airflow_eos.kinds.sql.kept")


def not_for_batches(table: str, column: str, found: str) -> ConfigurationError:
    """Return the error for a table that has no bigint column for the batches of its rows."""
    return ConfigurationError(
        f"batch_column {column!r} of table {table}: found {found}, expected a bigint column that "
        "the sink alone fills.",
        Remedy(
            change=f"add it (ALTER TABLE {table} ADD COLUMN … bigint), or name the one to use; "
            "without batch_column readers cannot stay behind a batch",
            start=True,
        ),
    )


class TableSink:
    """A sink whose tasks insert rows into ``table``."""

    table: str
    name: str
    store: CheckpointStore | None
    batch_column: str | None

    @property
    @abstractmethod
    def address(self) -> str:
        """The address of the database, without secrets."""

    @abstractmethod
    def session(self) -> Any:
        """Return a new connection to the database, which is made when it is first used."""

    @abstractmethod
    def check_types(self, types: dict[str, str]) -> None:
        """Refuse rows of types (Spark's simple names) that the table would not store as they are.

        Raises:
            ConfigurationError: the table lacks a column, or has it with another type.
            StoreError: the database does not answer.
        """

    def bound(self, store: CheckpointStore) -> Self:
        """See :meth:`Sink.bound`: rows that wait for their decision are kept there."""
        return replace(self, store=store)  # type: ignore[type-var]

    def keeping(self, keys: Any) -> KeptStatements:
        """Return where the rows of this sink wait (ConfigurationError: it is not bound)."""
        return KeptStatements(bound_store(self.store, type(self).__name__), self.name, keys)

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        """See :meth:`Sink.columns`: columns by name, all of which :meth:`check_types` accepts."""
        names = schema.fieldNames()
        ours = {} if self.batch_column is None else {self.batch_column: "bigint"}
        taken = {HASH_COLUMN, *ours}
        if len(set(names)) != len(names) or taken.intersection(names) or not names:
            raise ConfigurationError(
                f"Columns {names}: expected each name once, and none called "
                f"{' or '.join(sorted(taken))}."
            )
        self.check_types({each.name: each.dataType.simpleString() for each in schema.fields} | ours)
        return selected(names, row)

    def elsewhere(self, works: Sequence[PreparedWork], columns: Collection[str]) -> str:
        """Return why rows would go to another table than this work did; empty: they would not.

        A pipeline's name in a database is not tied to a table, so a version may write to another.
        """
        del columns
        went = {str(work.detail.get(WRITTEN_TABLE)) for work in works}
        if went <= {self.written_table}:
            return ""
        return f"rows are in table {', '.join(sorted(went))}, and would go to {self.written_table}"

    def stamped(self, writer: TaskWriter) -> TaskWriter:
        """Return the writer of a task, which fills the column of stamps if there is one."""
        return writer if self.batch_column is None else StampingWriter(writer, self.batch_column)

    @property
    def written_table(self) -> str:
        """The name of the table in decisions."""
        return self.table

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """Refuse to read rows back: a table does not tell which work a row came with.

        Raises:
            DeliveryError: always.
        """
        del spark
        raise DeliveryError(
            f"{len(works)} pieces of work are in table {self.table} in {self.address}, which does "
            "not tell which of its rows came with them."
        )


class StampingWriter:
    """A ``TaskWriter`` that adds a column with the stamp of the batch; null where it has none."""

    def __init__(self, writer: TaskWriter, column: str) -> None:
        self._writer = writer
        self._column = column
        self._stamp = running_stamp()

    def write(self, rows: pa.RecordBatch) -> None:
        """Write the rows with their stamp."""
        import pyarrow as pa

        stamps = pa.repeat(pa.scalar(self._stamp, pa.int64()), rows.num_rows)
        self._writer.write(rows.append_column(self._column, stamps))

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Prepare, and say which column has the stamps; they are no part of the fingerprint."""
        work = self._writer.prepare(fingerprint)
        if work is None:
            return None
        return msgspec.structs.replace(work, detail=work.detail | {BATCH_COLUMN: self._column})

    def abort(self) -> None:
        """Abort ``writer``."""
        self._writer.abort()


class KeptOfTask(ABC):
    """The base of writers whose rows are tried at their table, and kept in the checkpoint.

    What is sent to the server is compressed in the worker's memory; once it is whole, all of it is
    sent in a transaction that is rolled back. So the table's locks are held for that time alone,
    and each value, key, constraint, partition and trigger has met the rows before the decision.

    Args:
        sink: the sink to write to.
        tables: the keys of the name that the work goes under.
        task: the number of the task in the batch.
        task_attempt: the task's attempt.
    """

    kind: ClassVar[str]

    def __init__(self, sink: Any, tables: Any, task: int, task_attempt: int) -> None:
        self._sink = sink
        self._session = session_of(sink)
        self._tables = tables
        self._kept: KeptStatements = sink.keeping(tables)
        self._key: str = tables.new_key(task, task_attempt)
        self._stream: SpillStream | None = None
        self._rows = 0
        self._opened_at_ms = 0

    @abstractmethod
    def begin(self, names: list[str]) -> Mapping[str, str]:
        """Look at the table for rows with these columns; return what is noted beside the rows."""

    @abstractmethod
    def pieces(self, rows: pa.RecordBatch) -> Iterator[bytes | memoryview]:
        """Yield what is sent for the rows; refuse values that the table would change."""

    @abstractmethod
    def generation(self, connection: Any) -> int:
        """Return the name's generation; 0 where this is another database."""

    @abstractmethod
    def trial(self, connection: Any, stream: bytes) -> None:
        """Send the pieces to the table and roll that back; repeatable.

        Raises:
            DeliveryError: the table does not take all rows.
        """

    def detail(self) -> dict[str, Any]:
        """Return what a kind adds to the detail of its work."""
        return {}

    def write(self, rows: pa.RecordBatch) -> None:
        """Compress what is sent for the rows; the server refuses it in :meth:`prepare`."""
        if self._stream is None:
            self._stream = SpillStream(self.begin(rows.schema.names))
            self._opened_at_ms = time.time_ns() // 1_000_000
        for each in self.pieces(rows):
            self._stream.add(piece(each))
        self._rows += rows.num_rows

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Try the rows at their table, and keep them until they are decided."""
        if self._stream is None or not self._rows:
            return None
        stream, self._stream = self._stream.whole(), None
        # Read before the trial: with an older one the work is below the floor sooner, never later.
        generation = self._session.run("asking for the generation", self.generation)
        self._session.run("trying the rows in their table", lambda c: self.trial(c, stream))
        detail = self.detail()
        leave(self._sink, self._session)
        require_disk(self._kept.store)
        self._kept.keep(self._key, stream)
        failpoint("task-kept")
        return PreparedWork(
            kind=self.kind,
            participant=self._sink.name,
            key=self._key,
            rows=self._rows,
            fingerprint=fingerprint,
            opened_at_ms=self._opened_at_ms,
            timeout_ms=None,
            detail={
                "form": KEPT,
                DIGEST: digest_of(stream),
                GENERATION: generation,
                WRITTEN_TABLE: self._sink.written_table,
                **detail,
            },
        )

    def abort(self) -> None:
        """Drop the rows, also kept ones: no decision names them yet."""
        self._stream = None
        self._session.close()
        if self._rows:
            # Where this fails, recovery or the next batch finds the work.
            with suppress(EosError):
                self._kept.forget([self._key])
