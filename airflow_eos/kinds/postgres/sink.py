"""The PostgreSQL sink: a task COPYs its rows in one transaction, which the decision commits.

Inserts only. With ``two_phase`` the rows are in the table before they can be seen, and locks and
vacuum wait for the decision; without it they wait in a table of their own and are moved, which
costs twice the writing and needs no ``max_prepared_transactions``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from psycopg import Error, errors, sql

from airflow_eos.arguments import take_spans
from airflow_eos.closing import closed_on_error
from airflow_eos.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.delivery.workers import check_workers
from airflow_eos.errors import ConfigurationError, DeliveryError, EosError, Remedy
from airflow_eos.kinds.postgres.participant import (
    COLUMNS,
    DEFAULT_SCHEMA,
    KIND,
    PREPARED,
    STAGED,
    TARGET,
    PostgresParticipant,
    PostgresTableNames,
    drop_staged,
    end_prepared,
    inserted,
    make_tables,
    require_kept,
)
from airflow_eos.kinds.postgres.session import (
    UNPREPARED,
    Connection,
    History,
    PostgresConnection,
    cannot_prepare,
    checked_dsn,
    connected,
    meaning,
    printable,
)
from airflow_eos.kinds.sql.participant import (
    GENERATION,
    WRITTEN_TABLE,
    key_is_there,
    name_of,
    warn_of_refusals,
)
from airflow_eos.kinds.sql.servers import OF_TRANSACTION
from airflow_eos.kinds.sql.sink import TableSink, WorkOfTask
from airflow_eos.kinds.upsert.columns import Limits, bytea_text, refuse_longer
from airflow_eos.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork, check_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from airflow_eos.delivery.port import TaskWriter


# --- task -----------------------------------------------------------------------------------------
# One task's transaction: its rows by COPY, then their witness, then PREPARE TRANSACTION.


_TEXT = ("text", "varchar", "bpchar", "citext", "json", "jsonb", "uuid", "xml", "inet", "cidr")
_WHOLE = ("int2", "int4", "int8")
_ACCEPTED: dict[str, tuple[str, ...]] = {
    "string": _TEXT,
    "binary": ("bytea",),
    "boolean": ("bool",),
    "tinyint": _WHOLE,
    "smallint": _WHOLE,
    "int": _WHOLE[1:],
    "bigint": _WHOLE[2:],
    "float": ("float4", "float8"),
    "double": ("float8",),
    "date": ("date",),
    "timestamp": ("timestamptz",),
    "timestamp_ntz": ("timestamp",),
}
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_MICROSECONDS = 6
_COLUMNS = """
SELECT a.attname, coalesce(b.typname, t.typname),
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
       coalesce(b.typtype, t.typtype) = 'e',
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
       CASE WHEN a.attgenerated <> '' THEN 'is generated'
            WHEN a.attidentity = 'a' THEN 'is GENERATED ALWAYS AS IDENTITY' END
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type b ON b.oid = t.typbasetype
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


@dataclass(frozen=True)
class PostgresColumn:
    """A column of the table.

    Attributes:
        name: its name.
        type: PostgreSQL's own name of it (of a domain: what it is based on).
        modifier: ``atttypmod``: length, precision; -1 for none.
        is_enum: whether it is an enum, whose labels are sent as strings.
        is_required: whether it has neither nulls nor a default.
        is_made: why the column may not be written; None where it may.
    """

    name: str
    type: str
    modifier: int = -1
    is_enum: bool = False
    is_required: bool = False
    is_made: str | None = None


def columns_of(connection: Connection, table: str) -> list[PostgresColumn]:
    """Return the columns of ``table``; none where there is no such table."""
    return [PostgresColumn(*found) for found in connection.execute(_COLUMNS, [table])]


def limits_of(columns: list[PostgresColumn]) -> Limits:
    """Return the greatest lengths of texts: beyond, PostgreSQL would cut spaces in silence."""
    most = {c.name: c.modifier - 4 for c in columns if c.type == "varchar" and c.modifier > 0}
    return Limits(characters=most, octets={}, row=0)


def check_columns(types: dict[str, str], columns: list[PostgresColumn], table: str) -> None:
    """Refuse rows that the table could not take as they are.

    Args:
        types: the rows' column names, and Spark's simple names of their types.
        columns: the columns of the table.
        table: its name, for errors.

    Raises:
        ConfigurationError: with the column, and what to do.
    """
    there = {column.name: column for column in columns}
    for name, found in types.items():
        column = there.get(name)
        if column is None:
            raise ConfigurationError(
                f"Table {table} has no column {name!r} (found: {', '.join(there)}; capitals "
                "count). Drop it, or rename it."
            )
        if column.is_made:
            raise ConfigurationError(
                f"Column {name!r} of table {table} {column.is_made}: the database fills it. Drop "
                "it from the rows."
            )
        if not fits(found, column):
            raise ConfigurationError(
                f"Column {name!r} is of type {found}, and of type {column.type}"
                f"{_modified(column)} in table {table}. {_hint(name, found, column)}"
            )
    missing = [c.name for c in columns if c.is_required and c.name not in types]
    if missing:
        raise ConfigurationError(
            f"Table {table} needs {', '.join(missing)}, which the rows do not have: NOT NULL "
            "without a default. Select them."
        )


def fits(spark: str, column: PostgresColumn) -> bool:
    """Whether each value of the Spark type is the same value in the column, none rounded."""
    decimal = _DECIMAL.fullmatch(spark)
    if decimal is not None:
        if column.type != "numeric" or column.modifier < 0:
            return column.type == "numeric"
        precision, scale = numeric(column.modifier)
        return int(decimal[2]) <= scale and int(decimal[1]) - int(decimal[2]) <= precision - scale
    if column.type in ("timestamp", "timestamptz") and column.modifier not in (-1, _MICROSECONDS):
        return False
    if spark == "string" and column.is_enum:
        return True
    return column.type in _ACCEPTED.get(spark, ())


def numeric(modifier: int) -> tuple[int, int]:
    """Return precision and scale of ``numeric`` from ``atttypmod`` (numeric_typmod_precision)."""
    packed = modifier - 4
    return (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024


def _modified(column: PostgresColumn) -> str:
    if column.modifier < 0:
        return ""
    if column.type == "numeric":
        return "({},{})".format(*numeric(column.modifier))
    return f"({column.modifier})"


def _hint(name: str, spark: str, column: PostgresColumn) -> str:
    taken = [each for each, types in _ACCEPTED.items() if column.type in types]
    if spark.startswith(("array", "map", "struct")):
        return f"Send it as text into a jsonb column: to_json({name})."
    if column.type == "numeric":
        return "Cast it to a decimal that fits without being rounded."
    return f"Expected {' or '.join(taken) or 'another type in the table'}: cast it."


def as_csv(rows: pa.RecordBatch) -> memoryview:
    """Return the rows as CSV for COPY: nulls are empty; strings are quoted, also empty ones."""
    import pyarrow as pa
    from pyarrow import csv

    columns = [_as_text(column) for column in rows.columns]
    out = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, batch_size=max(1, rows.num_rows))
    csv.write_csv(pa.RecordBatch.from_arrays(columns, names=rows.schema.names), out, options)
    return memoryview(out.getvalue())


def _as_text(column: pa.Array) -> pa.Array:
    """Cast a column that Arrow cannot write as CSV, or would write in another time zone."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())  # a column may be wider, and hold more of its digits
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return column.cast(pa.timestamp("us", "UTC"))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return bytea_text(column.cast(pa.large_binary()))
    if kind == pa.string_view():
        return column.cast(pa.large_string())
    return column


# --- staging --------------------------------------------------------------------------------------
# The table in which the rows of a task wait, and their trial before that.
#
# A row that its table refuses only when it is moved there is refused after the decision, and then a
# person has to make room for it. So the task inserts all rows into the table, and rolls that back:
# values, indexes, constraints, triggers and partitions have met each row. Only rows of two tasks
# have not met; where the rows are repartitioned by the key, no two tasks have one key.


# Per column: whether it has a default, which fills it in the staging table where rows do not give
# it, and the sequence of an identity.
_OTHERS = """
SELECT attname, atthasdef AND attgenerated = '',
       CASE WHEN attidentity <> '' THEN pg_get_serial_sequence(%(table)s, attname) END
FROM pg_attribute WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped
"""
_NUMBERS = """
SELECT wanted FROM (SELECT CASE WHEN attidentity <> ''
  THEN pg_get_serial_sequence(%(table)s, attname) END AS wanted
FROM pg_attribute WHERE attrelid = to_regclass(%(table)s) AND NOT attisdropped) AS own
WHERE wanted IS NOT NULL AND NOT has_sequence_privilege(wanted, 'USAGE')
"""
_MAY_REFUSE = """
SELECT pg_get_indexdef(indexrelid) FROM pg_index
WHERE indrelid = to_regclass(%(table)s) AND (indisunique OR indisexclusion)
UNION ALL SELECT pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = to_regclass(%(table)s) AND contype = 'f'
UNION ALL SELECT pg_get_ruledef(oid) FROM pg_rewrite
WHERE ev_class = to_regclass(%(table)s) AND ev_type = '3' -- of inserts
UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger
WHERE tgrelid = to_regclass(%(table)s) AND NOT tgisinternal AND tgtype & 4 <> 0 -- of inserts
"""


def may_refuse(connection: Connection, table: str) -> list[str]:
    """List definitions of indexes, keys, rules and triggers that could refuse two tasks' rows."""
    return [found for (found,) in connection.execute(_MAY_REFUSE, {"table": table})]


def require_numbers(connection: Connection, table: str) -> None:
    """Refuse a table with an identity sequence that this role may not use (ConfigurationError)."""
    for (sequence,) in connection.execute(_NUMBERS, {"table": table}):
        raise ConfigurationError(
            f"Table {table} numbers its rows by the sequence {sequence}, which this role may not "
            "use: rows that wait for their decision have their number already.",
            Remedy(change=f"GRANT USAGE ON SEQUENCE {sequence} to the role", start=True),
        )


def make_holding(
    connection: Connection, holding: sql.Identifier, table: str, names: list[str]
) -> None:
    """Create a staging table, with the columns that the rows give or that the table fills.

    Default values are made there, and moved as they are: so a sequence at its end refuses no
    decided row.
    """
    connection.execute(
        sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS)").format(holding, sql.SQL(table))
    )
    changes = []
    for name, has_default, sequence in connection.execute(_OTHERS, {"table": table}):
        if sequence is not None:
            changes.append(
                sql.SQL("ALTER COLUMN {} SET DEFAULT nextval({})").format(
                    sql.Identifier(name), sql.Literal(sequence)
                )
            )
        elif name not in names and not has_default:
            changes.append(sql.SQL("DROP COLUMN {}").format(sql.Identifier(name)))
    if changes:
        connection.execute(
            sql.SQL("ALTER TABLE {} {}").format(holding, sql.SQL(", ").join(changes))
        )


def try_rows(connection: Connection, holding: sql.Identifier, table: str, rows: int) -> None:
    """Insert staged rows into their table and roll that back, with the locks that it took.

    Deferred constraints and triggers are checked, too. A trigger that acts outside of the
    transaction (dblink) does so here as well; a NOTIFY is rolled back.

    Raises:
        DeliveryError: the table does not take all rows.
        psycopg.Error: with the table's reason to refuse a row.
    """
    connection.execute("SAVEPOINT trial")
    names = [name for (name,) in connection.execute(COLUMNS, [holding.as_string(connection)])]
    try:
        taken = inserted(connection, table, names, holding)
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except errors.UniqueViolation as error:
        raise key_is_there(table, error.diag.constraint_name or "?") from error
    require_all(rows, taken, table)
    connection.execute("ROLLBACK TO SAVEPOINT trial")


def require_all(rows: int, taken: int, table: str) -> None:
    """Refuse a table that took fewer rows than it was given, or more (DeliveryError)."""
    if taken != rows:
        raise DeliveryError(
            f"{rows} rows were sent to table {table}, which took {taken}. Nothing was made "
            "visible.",
            Remedy(
                change="drop the trigger or rule that drops or redirects rows, or deliver to a "
                "table without one",
                start=True,
            ),
        )


# --- writing --------------------------------------------------------------------------------------


# Coalesced: without a row of the name this is another database, where the driver decides nothing.
_NOW = """
SELECT (extract(epoch FROM now()) * 1000)::bigint,
       coalesce((SELECT generation FROM {names} WHERE name = %s), 0)
"""


class TransactionOfTask(WorkOfTask):
    """See :class:`WorkOfTask`: writes by COPY, in one transaction."""

    kind = KIND
    errors = (Error, EosError)
    _sink: PostgresSink
    _tables: PostgresTableNames

    def __init__(self, *given: Any, transactional: bool) -> None:
        super().__init__(*given, transactional=transactional)
        self._staged = transactional and not self._sink.two_phase
        self._history = History("", 0)
        self._limits = Limits({}, {}, 0)
        self._cursor: Any = None
        self._copying: Any = None
        self._copy: Any = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Send a batch of rows; the server may refuse it in a later call."""
        with self._meaning("writing rows"):
            if self._copy is None:
                self._begin(rows.schema.names)
            refuse_longer(rows, self._limits)
            self._copy.write(as_csv(rows))
        self._rows += rows.num_rows

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """End the COPY and leave the transaction prepared, or the rows staged, for the decision."""
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
        return self._work(
            fingerprint,
            opened_at_ms,
            {
                "form": STAGED if self._staged else PREPARED,
                "system": self._history.system,
                "timeline": self._history.timeline,
                GENERATION: generation,
                WRITTEN_TABLE: self._sink.quoted_table,
            },
        )

    def _drop(self, connection: Connection) -> None:
        if self._staged:
            drop_staged(connection, self._tables, self._key)
        else:
            end_prepared(connection, "ROLLBACK", self._key)

    def _connected(self) -> Connection:
        connection, self._history = connected(
            self._sink.dsn,
            lock_timeout_s=self._sink.lock_timeout.total_seconds(),
            timeout_s=self._sink.answer_within.total_seconds(),
        )
        return connection

    def _begin(self, names: list[str]) -> None:
        self._connection = self._connected()
        # Set again: a pooler may have applied the session's setting to another connection.
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
        """Prepare the transaction, or commit staged rows, so that the work can be decided.

        Returns:
            When the transaction began (server's clock, ms, for people), and the generation.
        """
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
            except UNPREPARED as error:
                raise cannot_prepare(error, printable(self._sink.dsn)) from error
        return opened_at_ms, generation

    def _meaning(self, doing: str) -> contextlib.AbstractContextManager[None]:
        return meaning(doing, printable(self._sink.dsn))


# --- slots ----------------------------------------------------------------------------------------


_RIGHTS = """
SELECT current_user, has_table_privilege(%(t)s, 'INSERT')
       AND (%(two_phase)s OR has_table_privilege(%(t)s, 'SELECT')), row_security_active(%(t)s),
       has_schema_privilege(%(schema)s, 'USAGE'), has_schema_privilege(%(schema)s, 'CREATE')
"""
_SLOTS = """
SELECT current_setting('max_prepared_transactions')::int, count(*)::int FROM pg_prepared_xacts
WHERE NOT (database = current_database() AND starts_with(gid, %s || '-'))
"""


def require_table(
    connection: Connection, table: str, tables: PostgresTableNames, *, two_phase: bool
) -> None:
    """Refuse a table or role with which rows cannot be prepared and kept (ConfigurationError)."""
    require_kept(connection, table)
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
    """Refuse a server with fewer free prepared transactions than two for each task of a batch.

    Two: transactions of a failed attempt stay until they are ended, and tasks may be tried again.
    The need of other outputs is not known here; a task fails where slots run out.

    Raises:
        ConfigurationError: with the setting for postgresql.conf.
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
TASK_MODULES = ("pyarrow.csv", "numpy", "msgspec", "psycopg", "airflow_eos.kinds.postgres.sink")


@dataclass(frozen=True)
class PostgresSink(TableSink):
    """The PostgreSQL sink: table and settings.

    Attributes:
        dsn: of the primary, with a role that driver, tasks and recovery share.
        table: as SQL names it, with its schema where that is not on the role's search path.
        gid_prefix: of the prepared transactions; owned by one checkpoint.
        two_phase: whether to use PREPARE TRANSACTION; else rows are staged in tables of ``schema``.
        tasks: the most that a batch has; as many as Spark has cores where None. Twice as many
            prepared transactions must be free.
        lock_timeout: how long a statement of a task or the driver waits for a row or a unique key
            of another transaction; a recovery waits 30 seconds.
        answer_within: how long the server may be gone before a step fails.
        schema: the schema of the tables that the pipelines of the database share.
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
        """See :meth:`Sink.connect`; no interval is refused, since prepared work does not expire."""
        del interval
        target = self.quoted_table  # before anything is made
        with closed_on_error(self._session()) as session:
            mark = make_tables(session, self._tables)
            session.run("looking at the table", self._require)
        return PostgresParticipant(session, self._tables, name=self.name, mark=mark, target=target)

    @property
    def place(self) -> str:
        """See :attr:`TableSink.place`."""
        return printable(self.dsn)

    def check_types(self, types: dict[str, str]) -> None:
        """See :meth:`TableSink.check_types`."""
        found = self._ask("looking at columns", lambda c: columns_of(c, self.quoted_table))
        check_columns(types, found, self.table)

    def opened(self, task: int, attempt: int, *, transactional: bool = True) -> TaskWriter:
        """Return the writer of one task, in a Spark worker."""
        return TransactionOfTask(self, self._tables, task, attempt, transactional=transactional)

    @property
    def written_table(self) -> str:
        """See :attr:`TableSink.written_table`."""
        return self.quoted_table

    @cached_property
    def quoted_table(self) -> str:
        """The table's name with its schema, quoted for a statement.

        Raises:
            ConfigurationError: there is no such table.
            StoreError: the database does not answer.
        """

        def ask(connection: Connection) -> str:
            found = connection.execute(TARGET, [self.table]).fetchone()
            if found is None:
                raise ConfigurationError(
                    f"There is no table {self.table} in {printable(self.dsn)}, or its role cannot "
                    "see it. Create it first; the sink creates no tables of yours."
                )
            return str(found[0])

        return self._ask("looking for the table", ask)

    @property
    def _tables(self) -> PostgresTableNames:
        return PostgresTableNames(name_of(self.gid_prefix, self.name), self.schema)

    def _require(self, connection: Connection) -> None:
        require_table(connection, self.quoted_table, self._tables, two_phase=self.two_phase)
        if self.two_phase:
            require_slots(connection, self._tables.name, self.tasks or 1)
            return
        require_numbers(connection, self.quoted_table)
        if by := may_refuse(connection, self.quoted_table):
            warn_of_refusals(self.quoted_table, by)

    def _session(self) -> PostgresConnection:
        return PostgresConnection(
            self.dsn,
            timeout_s=self.answer_within.total_seconds(),
            lock_timeout_s=self.lock_timeout.total_seconds(),
        )

    def _ask(self, doing: str, look: Callable[[Connection], T]) -> T:
        with closing(self._session()) as session:
            return session.run(doing, look)


# --- configuration --------------------------------------------------------------------------------


class PostgresOptions(SinkOptions, frozen=True):
    """The options of a PostgreSQL sink, which only inserts; times are text like ``30 seconds``."""

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
