"""One task's rows: into a table of their own, in one transaction that says when they are whole."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from pymysql import MySQLError

from airflow_eos.errors import DeliveryError, EosError
from airflow_eos.participants.mysql.faults import meaning
from airflow_eos.participants.mysql.participant import FORM, KIND
from airflow_eos.participants.mysql.session import (
    Connection,
    connected,
    done,
    printable,
    quoted,
)
from airflow_eos.participants.mysql.tables import Tables
from airflow_eos.participants.mysql.works import begin_staged, drop_staged, end_staging
from airflow_eos.participants.sql.ledger import GENERATION
from airflow_eos.participants.sql.names import name_of
from airflow_eos.participants.upsert.mysql_statements import limits
from airflow_eos.participants.upsert.values import (
    Limits,
    refuse_longer,
    refuse_nulls,
    refuse_numbers,
    refuse_texts,
    refuse_times,
)
from airflow_eos.protocol.decision import PreparedWork
from airflow_eos.sinks.mysql.literals import statements
from airflow_eos.sinks.mysql.preflight import never_null, require_taken

if TYPE_CHECKING:
    from datetime import timedelta

    import pyarrow as pa

_STATEMENT_BYTES = 4 << 20  # longer ones are no faster


class _Target(Protocol):
    """What a task is told of where its rows go; see the attributes of ``MySqlSink``."""

    @property
    def url(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def prefix(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def lock_timeout(self) -> timedelta: ...
    @property
    def answer_within(self) -> timedelta: ...


class RowsOfTask:
    """See :class:`~airflow_eos.sinks.task.TaskWriter`: begun by the first rows.

    Args:
        sink: where to.
        task: of the batch.
        attempt: of the task.
        transactional: leave them where they wait; else they are visible at once.
    """

    def __init__(self, sink: _Target, task: int, attempt: int, *, transactional: bool) -> None:
        self._sink = sink
        self._tables = Tables(name_of(sink.prefix, sink.name, called="prefix"))
        self._key = self._tables.new_key(task, attempt)
        self._into = self._tables.holding(self._key) if transactional else sink.table
        self._transactional = transactional
        self._connection: Connection = None
        self._names: list[str] = []
        self._head = b""
        self._most = 0
        self._limits = Limits({}, {}, 0)
        self._never_null: frozenset[str] = frozenset()
        self._rows = 0
        self._opened_at_ms = 0
        self._generation = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Insert a batch."""
        refuse_numbers(rows, "MySQL")
        refuse_times(rows, "MySQL", first_year=1000)
        refuse_texts(rows, "MySQL")
        with self._meaning("writing rows"):
            if self._connection is None:
                self._begin(rows.schema.names)
            # The server cuts spaces at the end in silence, however strict it is.
            refuse_longer(rows, self._limits)
            refuse_nulls(rows, self._never_null, self._sink.table)
            for statement in statements(rows, self._head, self._most):
                self._rows += self._connection.query(statement)

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Look whether their table takes the rows, and leave them to whoever decides.

        Raises:
            DeliveryError: it does not, or the work was aborted meanwhile.
        """
        if self._connection is None:
            return None
        with self._meaning("preparing the rows"):
            if self._transactional:
                require_taken(
                    self._connection, self._into, self._sink.table, self._names, self._rows
                )
                self._leave()
            done(self._connection, "COMMIT")
        self._connection.close()
        if not self._transactional:
            return None
        return PreparedWork(
            kind=KIND,
            participant=self._sink.name,
            key=self._key,
            rows=self._rows,
            fingerprint=fingerprint,
            opened_at_ms=self._opened_at_ms,
            timeout_ms=None,
            detail={"form": FORM, GENERATION: self._generation},
        )

    def abort(self) -> None:
        """Roll back, also what is prepared, as far as we can: its reply may have been lost."""
        if self._connection is None:
            return
        with contextlib.suppress(MySQLError):
            self._connection.close()
        if self._transactional:
            # Else recovery, or the next batch, finds it.
            with contextlib.suppress(MySQLError, EosError):
                again = self._connected()
                with contextlib.closing(again):
                    drop_staged(again, self._tables, self._key)

    def _begin(self, names: list[str]) -> None:
        self._names = names
        self._connection = self._connected()
        with self._connection.cursor() as cursor:
            self._limits = limits(cursor, self._sink.table)
        self._most = min(_STATEMENT_BYTES, self._limits.row - 1024)
        columns = quoted(*names).replace("%%", "%")
        into = quoted(self._into).replace("%%", "%")
        self._head = f"INSERT INTO {into} ({columns}) VALUES ".encode()  # noqa: S608 - in quotes
        if self._transactional:
            # At once, a number of its own is as good as another; where rows wait, two have it.
            self._never_null = never_null(self._connection, self._sink.table)
            self._opened_at_ms, self._generation = begin_staged(
                self._connection, self._tables, self._key, target=self._sink.table, names=names
            )
        done(self._connection, "BEGIN")

    def _leave(self) -> None:
        if not end_staging(self._connection, self._key, self._rows):
            raise DeliveryError(
                f"Work {self._key} was aborted while it was written: another attempt took over. "
                "Nothing of it is visible, and nothing is lost."
            )

    def _connected(self) -> Connection:
        return connected(
            self._sink.url,
            lock_timeout_s=self._sink.lock_timeout.total_seconds(),
            timeout_s=self._sink.answer_within.total_seconds(),
        )

    def _meaning(self, doing: str) -> contextlib.AbstractContextManager[None]:
        return meaning(doing, printable(self._sink.url))
