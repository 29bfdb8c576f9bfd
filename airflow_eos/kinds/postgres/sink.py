"""The PostgreSQL sink: a task COPYs into one transaction, which the decision commits.

Inserts only. With ``two_phase`` the rows are in the table before they can be seen, and locks and
vacuum wait for the decision; without it they wait in a table of their own and are moved, which
costs twice the writing and needs no ``max_prepared_transactions``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from airflow_eos.arguments import take_spans
from airflow_eos.closing import closed_on_error
from airflow_eos.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.delivery.workers import check_workers
from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.postgres.participant import (
    DEFAULT_SCHEMA,
    PostgresParticipant,
    PostgresTableNames,
    made,
)
from airflow_eos.kinds.postgres.session import (
    Connection,
    PostgresConnection,
    checked_dsn,
    printable,
)
from airflow_eos.kinds.postgres.task import check_columns, columns_of, may_refuse, require_numbers
from airflow_eos.kinds.sql.participant import FORETOLD, HINT, name_of
from airflow_eos.kinds.sql.sink import TableSink
from airflow_eos.protocol.decision import DEFAULT_PARTICIPANT, check_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_eos.delivery.port import TaskWriter

TABLE = """
SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_PARTS = """
SELECT c.oid::regclass::text, c.relkind::text, c.relpersistence::text FROM pg_class c
WHERE c.oid = to_regclass(%(t)s) OR c.oid IN (SELECT relid FROM pg_partition_tree(%(t)s::regclass))
"""
_RIGHTS = """
SELECT current_user, has_table_privilege(%(t)s, 'INSERT')
       AND (%(two_phase)s OR has_table_privilege(%(t)s, 'SELECT')), row_security_active(%(t)s),
       has_schema_privilege(%(schema)s, 'USAGE'), has_schema_privilege(%(schema)s, 'CREATE')
"""
_SLOTS = """
SELECT current_setting('max_prepared_transactions')::int, count(*)::int FROM pg_prepared_xacts
WHERE NOT (database = current_database() AND starts_with(gid, %s || '-'))
"""


def session_of(dsn: str, answer_within_s: float) -> PostgresConnection:
    """A session for looking; close it."""
    return PostgresConnection(checked_dsn(dsn), timeout_s=answer_within_s)


def require_table(
    connection: Connection, table: str, tables: PostgresTableNames, *, two_phase: bool
) -> None:
    """Refuse a table that cannot keep what is promised of it (ConfigurationError)."""
    parts = connection.execute(_PARTS, {"t": table}).fetchall()
    for part, kind, persistence in parts:
        if kind not in ("r", "p"):
            raise ConfigurationError(
                f"{part} is no table of this database (relkind {kind!r}: v is a view, f a foreign "
                "table): rows cannot be prepared there. Deliver to an ordinary table."
            )
        if persistence != "p":
            raise ConfigurationError(
                f"Table {part} is UNLOGGED or temporary: after a crash of the server it is empty, "
                f"and rows that were delivered are lost. ALTER TABLE {part} SET LOGGED."
            )
    rights = {"t": table, "schema": tables.schema, "two_phase": two_phase}
    role, may_insert, secured, may_use, may_create = (
        connection.execute(_RIGHTS, rights).fetchone() or ()
    )
    if not may_insert:
        right = "INSERT" if two_phase else "INSERT, SELECT"
        raise ConfigurationError(
            f"Role {role!r} may not write as needed: GRANT {right} ON {table} TO {role}."
        )
    if not may_use or not (two_phase or may_create):
        what = "USAGE" if two_phase else "USAGE, CREATE"
        raise ConfigurationError(
            f"Role {role!r} may not use the schema of the pipelines: GRANT {what} ON SCHEMA "
            f"{tables.schema} TO {role}, and SELECT, INSERT, UPDATE, DELETE on its tables."
        )
    if secured:
        raise ConfigurationError(
            f"Table {table} has row-level security, under which role {role!r} cannot COPY. Use a "
            "role with BYPASSRLS, or a table without it."
        )


def require_slots(connection: Connection, name: str, tasks: int) -> None:
    """Refuse a server on which the tasks of a batch cannot all be prepared, twice over.

    Twice: what a failed attempt left is there until it is ended, and tasks may be tried again.
    What other outputs will need is not known here; where slots run out, a task says so.

    Raises:
        ConfigurationError: what to set in postgresql.conf.
    """
    most, taken = connection.execute(_SLOTS, [name]).fetchone() or (0, 0)
    if most - taken >= 2 * tasks:
        return
    off = "which switches them off (PostgreSQL's default)" if most == 0 else f"{taken} are taken"
    raise ConfigurationError(
        f"max_prepared_transactions is {most}, {off}: {tasks} tasks a batch need {2 * tasks} free. "
        f"Set max_prepared_transactions = {taken + 2 * tasks} or more in postgresql.conf and "
        "restart the server (for several outputs at one server, the sum of what each needs); or "
        "let fewer tasks write (coalesce); or use PostgresSink(…, two_phase=False), which needs "
        "none."
    )


# --- sink -----------------------------------------------------------------------------------------


T = TypeVar("T")
log = structlog.get_logger(__name__)
TASK_MODULES = ("pyarrow.csv", "numpy", "msgspec", "psycopg", "airflow_eos.kinds.postgres.task")


@dataclass(frozen=True)
class PostgresSink(TableSink):
    """The PostgreSQL sink: table and settings.

    Attributes:
        dsn: of the primary, with a role that driver, tasks and recovery share.
        table: as SQL names it, with its schema where that is not on the role's search path.
        gid_prefix: of the prepared transactions; owned by one checkpoint.
        two_phase: PREPARE TRANSACTION; else rows are staged in tables of the schema below.
        tasks: the most that a batch has; as many as Spark has cores where None. Twice as many
            prepared transactions must be free.
        lock_timeout: how long a statement waits for a row or a unique key of another transaction,
            of tasks and of the driver; a recovery waits 30 seconds.
        answer_within: how long the server may be gone before a step fails.
        schema: of the tables that the pipelines of the database share.
        name: the participant's name in the decisions of the pipeline.
    """

    dsn: str = field(repr=False)
    table: str
    gid_prefix: str
    two_phase: bool = True
    tasks: int | None = None
    lock_timeout: timedelta = timedelta(seconds=30)
    answer_within: timedelta = timedelta(seconds=30)
    schema: str = DEFAULT_SCHEMA
    name: str = DEFAULT_PARTICIPANT

    def __post_init__(self) -> None:
        take_spans(self, "lock_timeout", "answer_within")
        check_name(self.name)
        name_of(self.gid_prefix, self.name)
        checked_dsn(self.dsn)
        if self.tasks is not None and self.tasks < 1:
            raise ConfigurationError(f"tasks {self.tasks}: expected at least 1.")

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`."""
        check_workers(spark, modules=TASK_MODULES)
        tasks = self.tasks or spark.sparkContext.defaultParallelism
        if self.two_phase:
            self._ask("counting slots", lambda c: require_slots(c, self._tables.name, tasks))

    def connect(self, interval: timedelta) -> PostgresParticipant:
        """See :meth:`Sink.connect`; nothing ends prepared work but a decision, however late."""
        del interval
        participant = made(
            self.dsn,
            gid_prefix=self.gid_prefix,
            name=self.name,
            schema=self.schema,
            target=self.quoted_table,
            timeout_s=self.answer_within.total_seconds(),
            lock_timeout_s=self.lock_timeout.total_seconds(),
        )
        with closed_on_error(participant):
            self._ask("looking at the table", self._require)
        return participant

    @property
    def place(self) -> str:
        """See :attr:`TableSink.place`."""
        return printable(self.dsn)

    def check_types(self, types: dict[str, str]) -> None:
        """See :meth:`TableSink.check_types`."""
        found = self._ask("looking at columns", lambda c: columns_of(c, self.quoted_table))
        check_columns(types, found, self.table)

    def opened(self, task: int, attempt: int, *, transactional: bool = True) -> TaskWriter:
        """The writer of one task, in a Spark worker."""
        from airflow_eos.kinds.postgres.task import TransactionOfTask

        return TransactionOfTask(self, task, attempt, transactional=transactional)

    @cached_property
    def quoted_table(self) -> str:
        """The table with its schema, as it goes into a statement.

        Raises:
            ConfigurationError: there is no such table.
            StoreError: the database does not answer.
        """

        def ask(connection: Connection) -> str:
            found = connection.execute(TABLE, [self.table]).fetchone()
            if found is None:
                raise ConfigurationError(
                    f"There is no table {self.table} in {printable(self.dsn)}, or its role cannot "
                    "see it. Create it first; the sink creates no tables of yours."
                )
            return str(found[0])

        return self._ask("looking for the table", ask)

    @property
    def _tables(self) -> PostgresTableNames:
        return PostgresTableNames(self.schema, name_of(self.gid_prefix, self.name))

    def _require(self, connection: Connection) -> None:
        require_table(connection, self.quoted_table, self._tables, two_phase=self.two_phase)
        if self.two_phase:
            require_slots(connection, self._tables.name, self.tasks or 1)
            return
        require_numbers(connection, self.quoted_table)
        if by := may_refuse(connection, self.quoted_table):
            log.warning(FORETOLD, table=self.quoted_table, by="; ".join(by), hint=HINT)

    def _ask(self, doing: str, look: Callable[[Connection], T]) -> T:
        with closing(session_of(self.dsn, self.answer_within.total_seconds())) as session:
            return session.run(doing, look)


# --- configuration --------------------------------------------------------------------------------


class PostgresOptions(SinkOptions, frozen=True):
    """A table, with inserts only; the times are text, such as ``30 seconds``."""

    table: str
    gid_prefix: str | None = None
    two_phase: bool | None = None
    tasks: int | None = None
    lock_timeout: str | None = None
    answer_within: str | None = None
    schema: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> PostgresSink:
        """See :meth:`SinkOptions.sink`."""
        if not how:
            raise unreached("libpq's 'host=… dbname=… user=…', a URL, or an object of its keywords")
        given = {"gid_prefix": app.prefix, **self.given()}
        return PostgresSink(checked_dsn(how), name=name, **given)


OPTIONS = PostgresOptions
