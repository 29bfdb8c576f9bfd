"""What sinks of SQL tables share: columns by their names, and a table that tells of no work."""

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
        """The database, for people."""

    @abstractmethod
    def check_types(self, types: dict[str, str]) -> None:
        """Refuse rows of these types (Spark's simple names) that the table would not store as is.

        Raises:
            ConfigurationError: a column that the table has not, or of another type.
            StoreError: the database does not answer.
        """

    def bound(self, store: CheckpointStore) -> Self:
        """See :meth:`Sink.bound`: the same for all."""
        del store
        return self

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        """See :meth:`Sink.columns`: those that the table has, by name; raises as `check_types`."""
        names = schema.fieldNames()
        if len(set(names)) != len(names) or HASH_COLUMN in names or not names:
            raise ConfigurationError(
                f"Columns {names}: expected each name once, and none called {HASH_COLUMN}."
            )
        self.check_types({each.name: each.dataType.simpleString() for each in schema.fields})
        return selected(names, row)

    def elsewhere(self, works: Sequence[PreparedWork], columns: Collection[str]) -> str:
        """Why rows would go elsewhere than this work went; empty: they do not.

        The name of a pipeline in a database is of no table, and a version may take another one.
        """
        del columns
        went = {str(work.detail.get(WRITTEN_TABLE)) for work in works}
        if went <= {self.written_table}:
            return ""
        return f"rows are in table {', '.join(sorted(went))}, and would go to {self.written_table}"

    @property
    def written_table(self) -> str:
        """The table, as decisions name it."""
        return self.table

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """Refused: a table does not tell which work a row came with.

        Raises:
            DeliveryError: always.
        """
        del spark
        raise DeliveryError(
            f"{len(works)} pieces of work are in table {self.table} in {self.place}, which does "
            "not tell which of its rows came with them."
        )


class WorkOfTask(ABC):
    """Most of a :class:`~airflow_eos.delivery.task.TaskWriter`: begun by the first rows.

    Args:
        sink: where to.
        tables: of the name that its work goes under.
        task: of the batch.
        attempt: of the task.
        transactional: leave the rows to whoever decides; else they are visible at once.
    """

    kind: ClassVar[str]
    errors: ClassVar[tuple[type[Exception], ...]]
    """Of its client, and ours."""

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
        """Roll back, also what is prepared, as far as we can: its reply may have been lost."""
        if self._connection is None:
            return
        with suppress(*self.errors):
            self._connection.close()
        if self._transactional:
            # Else recovery, or the next batch, finds it.
            with suppress(*self.errors), closing(self._connected()) as again:
                self._drop(again)

    @abstractmethod
    def _connected(self) -> Any:
        """A new connection."""

    @abstractmethod
    def _drop(self, connection: Any) -> None:
        """Remove what was prepared under the key."""

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
