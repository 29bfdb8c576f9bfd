"""One task's transaction: rows by COPY, then their witness, then PREPARE TRANSACTION."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from psycopg import Error, sql

from airflow_eos.errors import DeliveryError, EosError
from airflow_eos.participants.postgres.faults import meaning
from airflow_eos.participants.postgres.participant import KIND
from airflow_eos.participants.postgres.session import (
    DURABLE,
    Connection,
    History,
    connected,
    printable,
)
from airflow_eos.participants.postgres.tables import Tables
from airflow_eos.participants.postgres.works import (
    PREPARED,
    STAGED,
    drop_staged,
    rollback_prepared,
)
from airflow_eos.participants.sql.names import name_of
from airflow_eos.participants.upsert.values import Limits, refuse_longer
from airflow_eos.protocol.work import PreparedWork
from airflow_eos.sinks.postgres.columns import as_csv, columns_of, limits_of
from airflow_eos.sinks.postgres.staging import make_holding, require_new_keys

if TYPE_CHECKING:
    from datetime import timedelta

    import pyarrow as pa

_NOW = "SELECT (extract(epoch FROM now()) * 1000)::bigint"


class _Target(Protocol):
    """What a task is told of where its rows go; see the attributes of ``PostgresSink``."""

    @property
    def dsn(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def quoted_table(self) -> str: ...
    @property
    def gid_prefix(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> str: ...
    @property
    def two_phase(self) -> bool: ...
    @property
    def lock_timeout(self) -> timedelta: ...
    @property
    def answer_within(self) -> timedelta: ...


class TransactionOfTask:
    """See :class:`~airflow_eos.sinks.task.TaskWriter`: begun by the first rows.

    Args:
        sink: where to.
        task: of the batch.
        attempt: of the task.
        transactional: leave it open; else it is committed at once.
    """

    def __init__(self, sink: _Target, task: int, attempt: int, *, transactional: bool) -> None:
        self._sink = sink
        self._tables = Tables(sink.schema, name_of(sink.gid_prefix, sink.name))
        self._key = self._tables.new_key(task, attempt)
        self._transactional = transactional
        self._staged = transactional and not sink.two_phase
        self._connection: Connection | None = None
        self._history = History("", 0)
        self._cursor: Any = None
        self._copying: Any = None
        self._copy: Any = None
        self._limits = Limits({}, {}, 0)
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Send a batch; the server may refuse it in a later call."""
        with self._meaning("writing rows"):
            if self._copy is None:
                self._begin(rows.schema.names)
            refuse_longer(rows, self._limits)
            self._copy.write(as_csv(rows))
        self._rows += rows.num_rows

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """End the copy and leave the transaction to whoever decides."""
        if self._connection is None:
            return None
        with self._meaning("ending the copy"):
            self._copying.__exit__(None, None, None)
        if self._cursor.rowcount != self._rows:
            raise DeliveryError(
                f"{self._rows} rows were sent to table {self._sink.table}, which took "
                f"{self._cursor.rowcount}. Does a trigger drop or redirect rows? Then deliver to "
                "a table without one. Nothing was made visible."
            )
        if self._staged:
            with self._meaning("looking for keys that are there"):
                holding = self._tables.holding(self._key)
                require_new_keys(self._connection, holding, self._sink.quoted_table)
        with self._meaning("preparing the transaction"):
            opened_at_ms = self._leave()
        self._connection.close()
        if not self._transactional:
            return None
        return PreparedWork(
            kind=KIND,
            participant=self._sink.name,
            key=self._key,
            rows=self._rows,
            fingerprint=fingerprint,
            opened_at_ms=opened_at_ms,
            timeout_ms=None,
            detail={
                "form": STAGED if self._staged else PREPARED,
                "system": self._history.system,
                "timeline": self._history.timeline,
            },
        )

    def abort(self) -> None:
        """Roll back, also what is prepared, as far as we can: its reply may have been lost."""
        if self._connection is None:
            return
        self._connection.close()
        if self._transactional:
            with contextlib.suppress(Error, EosError):  # else recovery, or the next batch, finds it
                connection, _ = self._connected()
                with contextlib.closing(connection):
                    if self._staged:
                        drop_staged(connection, self._tables, self._key)
                    else:
                        rollback_prepared(connection, self._key)

    def _connected(self) -> tuple[Connection, History]:
        return connected(
            self._sink.dsn,
            lock_timeout_s=self._sink.lock_timeout.total_seconds(),
            timeout_s=self._sink.answer_within.total_seconds(),
        )

    def _begin(self, names: list[str]) -> None:
        self._connection, self._history = self._connected()
        # Said again: behind a pooler, what is set for a session may be set for another one's.
        limit = sql.Literal(f"{max(1, round(self._sink.lock_timeout.total_seconds() * 1000))}ms")
        self._connection.execute(
            sql.SQL(
                "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = {}; {}"
            ).format(limit, sql.SQL(DURABLE))
        )
        table: sql.Composable = sql.SQL(self._sink.quoted_table)
        if self._staged:
            table = self._tables.holding(self._key)
            make_holding(self._connection, table, self._sink.quoted_table, names)
        self._limits = limits_of(columns_of(self._connection, self._sink.quoted_table))
        columns = sql.SQL(", ").join(sql.Identifier(name) for name in names)
        self._cursor = self._connection.cursor()
        self._copying = self._cursor.copy(
            sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')").format(table, columns)
        )
        self._copy = self._copying.__enter__()

    def _leave(self) -> int:
        """End the transaction so that it can be decided; when it began, ms by the server's clock.

        Returns:
            What tells the age of the work, and whether its witness may be gone.
        """
        assert self._connection is not None  # noqa: S101 - the caller has looked
        (opened_at_ms,) = self._connection.execute(_NOW).fetchone() or (0,)
        given = [self._key, self._tables.name, self._rows, opened_at_ms]
        if not self._transactional:
            self._connection.execute("COMMIT")
        elif self._staged:
            self._connection.execute(
                self._tables.statement(
                    "INSERT INTO {staged} (key, name, rows, opened_at_ms, target) "
                    "VALUES (%s, %s, %s, %s, %s)"
                ),
                [*given, self._sink.quoted_table],
            )
            self._connection.execute("COMMIT")
        else:
            self._connection.execute(
                self._tables.statement(
                    "INSERT INTO {works} (key, name, rows, opened_at_ms) VALUES (%s, %s, %s, %s)"
                ),
                given,
            )
            self._connection.execute(
                sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(self._key))
            )
        return int(opened_at_ms)

    def _meaning(self, doing: str) -> contextlib.AbstractContextManager[None]:
        return meaning(doing, printable(self._sink.dsn))
