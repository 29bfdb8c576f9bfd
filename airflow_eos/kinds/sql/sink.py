"""The base of SQL sinks: columns go by name, and a table does not tell which work wrote a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Self

from airflow_eos.delivery.task import HASH_COLUMN, selected
from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.sql.participant import WRITTEN_TABLE
from airflow_eos.protocol.decision import PreparedWork

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.checkpoint.store import CheckpointStore


class TableSink:
    """A sink whose tasks insert rows into ``table``."""

    table: str

    @property
    @abstractmethod
    def place(self) -> str:
        """The address of the database, without secrets."""

    @abstractmethod
    def check_types(self, types: dict[str, str]) -> None:
        """Refuse rows of types (Spark's simple names) that the table would not store as they are.

        Raises:
            ConfigurationError: the table lacks a column, or has it with another type.
            StoreError: the database does not answer.
        """

    def bound(self, store: CheckpointStore) -> Self:
        """See :meth:`Sink.bound`: the sink is the same for every checkpoint."""
        del store
        return self

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        """See :meth:`Sink.columns`: columns by name, all of which :meth:`check_types` accepts."""
        names = schema.fieldNames()
        if len(set(names)) != len(names) or HASH_COLUMN in names or not names:
            raise ConfigurationError(
                f"Columns {names}: expected each name once, and none called {HASH_COLUMN}."
            )
        self.check_types({each.name: each.dataType.simpleString() for each in schema.fields})
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
            f"{len(works)} pieces of work are in table {self.table} in {self.place}, which does "
            "not tell which of its rows came with them."
        )


class WorkOfTask(ABC):
    """The base of SQL task writers: a connection is opened for the first rows.

    Args:
        sink: the sink to write to.
        tables: the keys of the name that the work goes under.
        task: the number of the task in the batch.
        attempt: the task's attempt.
        transactional: keep the rows back until they are decided; else they are visible at once.
    """

    kind: ClassVar[str]
    errors: ClassVar[tuple[type[Exception], ...]]
    """The errors of the database client and of this package."""

    def __init__(
        self, sink: Any, tables: Any, task: int, attempt: int, *, transactional: bool
    ) -> None:
        self._sink = sink
        self._tables = tables
        self._key: str = tables.new_key(task, attempt)
        self._transactional = transactional
        self._connection: Any = None
        self._rows = 0

    def abort(self) -> None:
        """Remove the rows, as far as possible; also prepared ones, since a reply may be lost."""
        if self._connection is None:
            return
        with suppress(*self.errors):
            self._connection.close()
        if self._transactional:
            # Where this fails, recovery or the next batch finds the work.
            with suppress(*self.errors), closing(self._connected()) as again:
                self._drop(again)

    @abstractmethod
    def _connected(self) -> Any:
        """Open a new connection."""

    @abstractmethod
    def _drop(self, connection: Any) -> None:
        """Remove the work that was prepared under the key."""

    def _work(
        self, fingerprint: str, opened_at_ms: int, detail: dict[str, Any]
    ) -> PreparedWork | None:
        if not self._transactional:
            return None
        return PreparedWork(
            kind=self.kind,
            participant=self._sink.name,
            key=self._key,
            rows=self._rows,
            fingerprint=fingerprint,
            opened_at_ms=opened_at_ms,
            timeout_ms=None,
            detail=detail,
        )
