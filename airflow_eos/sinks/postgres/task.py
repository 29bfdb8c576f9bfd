"""One task's transaction: rows by COPY, then their witness, then PREPARE TRANSACTION."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from psycopg import Error, errors, sql

from airflow_eos.errors import EosError
from airflow_eos.participants.postgres.faults import cannot_prepare, meaning
from airflow_eos.participants.postgres.participant import KIND
from airflow_eos.participants.postgres.session import (
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
from airflow_eos.participants.sql.ledger import GENERATION
from airflow_eos.participants.sql.libpq import OF_TRANSACTION
from airflow_eos.participants.sql.names import name_of
from airflow_eos.participants.upsert.values import Limits, refuse_longer
from airflow_eos.protocol.decision import PreparedWork
from airflow_eos.sinks.postgres.columns import as_csv, columns_of, limits_of
from airflow_eos.sinks.postgres.staging import make_holding, require_all, try_rows

if TYPE_CHECKING:
    from datetime import timedelta

    import pyarrow as pa

# Without a row of the name the driver decides nothing: this is not its database.
_NOW = """
SELECT (extract(epoch FROM now()) * 1000)::bigint,
       coalesce((SELECT generation FROM {names} WHERE name = %s), 0)
"""


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
        require_all(self._rows, self._cursor.rowcount, self._sink.table)
        if self._staged:
            with self._meaning("trying the rows in their table"):
                holding = self._tables.holding(self._key)
                try_rows(self._connection, holding, self._sink.quoted_table, self._rows)
        with self._meaning("preparing the transaction"):
            opened_at_ms, generation = self._leave()
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
                GENERATION: generation,
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
            ).format(limit, sql.SQL(OF_TRANSACTION))
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

    def _leave(self) -> tuple[int, int]:
        """End the transaction so that it can be decided.

        Returns:
            When it began, ms by the server's clock, for people; and in which generation.
        """
        assert self._connection is not None  # noqa: S101 - the caller has looked
        if not self._transactional:
            self._connection.execute("COMMIT")
            return 0, 0
        now = self._tables.statement(_NOW)
        found = self._connection.execute(now, [self._tables.name]).fetchone()
        opened_at_ms, generation = found or (0, 0)
        given = [self._key, self._tables.name, self._rows]
        if self._staged:
            self._connection.execute(
                self._tables.statement(
                    "INSERT INTO {staged} (key, name, rows, opened_at_ms, target) "
                    "VALUES (%s, %s, %s, %s, %s)"
                ),
                [*given, opened_at_ms, self._sink.quoted_table],
            )
            self._connection.execute("COMMIT")
        else:
            self._connection.execute(
                self._tables.statement(
                    "INSERT INTO {works} (key, name, rows, generation) VALUES (%s, %s, %s, %s)"
                ),
                [*given, generation],
            )
            prepare = sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(self._key))
            try:
                self._connection.execute(prepare)
            except errors.FeatureNotSupported as error:
                raise cannot_prepare(error, printable(self._sink.dsn)) from error
        return opened_at_ms, generation

    def _meaning(self, doing: str) -> contextlib.AbstractContextManager[None]:
        return meaning(doing, printable(self._sink.dsn))
