"""The PostgreSQL sink: a task COPYs its rows in one transaction, which the decision commits.

Inserts only. With ``two_phase`` the rows are in the table before they can be seen, and locks and
vacuum wait for the decision; without it they are tried there, wait in the checkpoint and are sent
again, which costs twice the writing and needs no ``max_prepared_transactions``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from psycopg import errors, sql

from airflow_eos.core.arguments import Count, Span, take_fields
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.closing import closed_on_error
from airflow_eos.core.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.core.delivery.workers import check_workers
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork, check_name
from airflow_eos.errors import ConfigurationError, EosError, Remedy
from airflow_eos.kinds.postgres.participant import (
    DEFAULT_SCHEMA,
    KIND,
    PREPARED,
    STATEMENT,
    TARGET,
    PostgresParticipant,
    PostgresTableNames,
    copied,
    end_prepared,
    make_tables,
    require_kept,
)
from airflow_eos.kinds.postgres.session import (
    HISTORY,
    UNPREPARED,
    Connection,
    History,
    PostgresConnection,
    cannot_prepare,
    checked_dsn,
    meaning,
    printable,
)
from airflow_eos.kinds.sql.columns import Limits, bytea_text, refuse_longer
from airflow_eos.kinds.sql.kept import kept_at
from airflow_eos.kinds.sql.keys import name_of
from airflow_eos.kinds.sql.participant import (
    GENERATION,
    WRITTEN_TABLE,
    key_is_there,
    took_other,
    warn_of_refusals,
)
from airflow_eos.kinds.sql.servers import OF_TRANSACTION
from airflow_eos.kinds.sql.sink import (
    KEEPING_MODULES,
    KeptOfTask,
    TableSink,
    leave,
    not_for_batches,
    session_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from airflow_eos.core.delivery.port import TaskWriter


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


def check_columns(
    types: dict[str, str],
    columns: list[PostgresColumn],
    table: str,
    batch_column: str | None = None,
) -> None:
    """Refuse rows that the table could not take as they are.

    Args:
        types: the rows' column names, and Spark's simple names of their types.
        columns: the columns of the table.
        table: its name, for errors.
        batch_column: which of the rows' columns the sink fills.

    Raises:
        ConfigurationError: with the column, and what to do.
    """
    there = {column.name: column for column in columns}
    for name, found in types.items():
        column = there.get(name)
        if name == batch_column and (column is None or column.is_made or column.type != "int8"):
            found = "no such column" if column is None else column.is_made or column.type
            raise not_for_batches(table, name, found)
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


# --- rows that are kept ---------------------------------------------------------------------------
# A row that its table refuses only at the commit is refused after the decision, and then a person
# has to make room for it. So the task COPYs all rows into the table, and rolls that back: values,
# indexes, constraints, triggers and partitions have met each row. Only rows of two tasks have not
# met; where the rows are repartitioned by the key, no two tasks have one key.
#
# A default is made once: a second evaluation at the commit would give another number or time than
# the one that was tried, and a sequence may be at its end by then.


_DEFAULTS = """
SELECT attname, CASE WHEN attidentity = '' THEN pg_get_expr(adbin, adrelid)
  ELSE format('nextval(%%L)', pg_get_serial_sequence(%(table)s, attname)) END
FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
AND (atthasdef OR attidentity <> '') ORDER BY attnum
"""
# Values are read by another session than the one that has written them.
_PLAIN = """
SELECT set_config('datestyle', 'ISO', true), set_config('intervalstyle', 'postgres', true),
       set_config('extra_float_digits', '1', true)
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
UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger
WHERE tgrelid = to_regclass(%(table)s) AND NOT tgisinternal AND tgtype & 4 <> 0 -- of inserts
"""


def may_refuse(connection: Connection, table: str) -> list[str]:
    """List definitions of indexes, keys and triggers that could refuse two tasks' rows."""
    return [found for (found,) in connection.execute(_MAY_REFUSE, {"table": table})]


def require_numbers(connection: Connection, table: str) -> None:
    """Refuse a table with an identity sequence that this role may not use (ConfigurationError)."""
    for (sequence,) in connection.execute(_NUMBERS, {"table": table}):
        raise ConfigurationError(
            f"Table {table} numbers its rows by the sequence {sequence}, which this role may not "
            "use: rows that wait for their decision have their number already.",
            Remedy(change=f"GRANT USAGE ON SEQUENCE {sequence} to the role", start=True),
        )


def defaults_of(connection: Connection, table: str, names: list[str]) -> dict[str, str]:
    """Return the expressions by which the table fills columns that the rows do not give."""
    found = connection.execute(_DEFAULTS, {"table": table}).fetchall()
    return {name: made for name, made in found if name not in names}


def with_defaults(
    connection: Connection, rows: pa.RecordBatch, defaults: Mapping[str, str]
) -> pa.RecordBatch:
    """Return the rows with a column of text for each of the ``defaults``, made by the server."""
    import pyarrow as pa
    from pyarrow import csv

    made = sql.SQL("COPY (SELECT {} FROM generate_series(1, {})) TO STDOUT (FORMAT csv)").format(
        sql.SQL(", ").join(map(sql.SQL, defaults.values())), sql.Literal(rows.num_rows)
    )
    with connection.transaction():
        connection.execute(_PLAIN)
        with connection.cursor().copy(made) as copy:
            text = b"".join(copy)
    types = dict.fromkeys(defaults, pa.large_string())
    found = csv.read_csv(
        pa.py_buffer(text),
        csv.ReadOptions(column_names=list(defaults), block_size=max(1, len(text))),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    for name in defaults:
        rows = rows.append_column(name, found[name].combine_chunks())
    return rows


def try_rows(connection: Connection, table: str, stream: bytes, rows: int) -> None:
    """COPY kept rows into their table and roll that back, with the locks that it took.

    Deferred constraints and triggers are checked, too. A trigger that acts outside of the
    transaction (dblink) does so here as well; a NOTIFY is rolled back.

    Raises:
        DeliveryError: the table does not take all rows.
        psycopg.Error: with the table's reason to refuse a row.
    """
    with connection.transaction(force_rollback=True):
        connection.execute(OF_TRANSACTION)
        try:
            taken = copied(connection, stream, table)
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except errors.UniqueViolation as error:
            raise key_is_there(table, error.diag.constraint_name or "?") from error
        if taken != rows:
            raise took_other(rows, taken, table)


class CsvOfTask(KeptOfTask):
    """See :class:`KeptOfTask`: what is sent is CSV, by the COPY that is noted beside it."""

    kind = KIND
    _sink: PostgresSink
    _session: PostgresConnection
    _tables: PostgresTableNames
    _defaults: Mapping[str, str]
    _limits: Limits
    _history: History

    def begin(self, names: list[str]) -> Mapping[str, str]:
        """See :meth:`KeptOfTask.begin`."""
        table = self._sink.quoted_table

        def look(connection: Connection) -> str:
            self._limits = limits_of(columns_of(connection, table))
            self._defaults = defaults_of(connection, table, names)
            return copy_into(table, [*names, *self._defaults]).as_string(connection)

        return {STATEMENT: self._session.run("looking at columns", look)}

    def pieces(self, rows: pa.RecordBatch) -> Iterator[bytes | memoryview]:
        """See :meth:`KeptOfTask.pieces`."""
        refuse_longer(rows, self._limits)
        if self._defaults and rows.num_rows:
            rows = self._session.run(
                "making default values", lambda c: with_defaults(c, rows, self._defaults)
            )
        yield as_csv(rows)

    def generation(self, connection: Connection) -> int:
        """See :meth:`KeptOfTask.generation`."""
        _, generation, self._history = begun_at(connection, self._tables)
        return generation

    def trial(self, connection: Connection, stream: bytes) -> None:
        """See :meth:`KeptOfTask.trial`."""
        try_rows(connection, self._sink.quoted_table, stream, self._rows)

    def detail(self) -> dict[str, Any]:
        """See :meth:`KeptOfTask.detail`: the history of the server that tries the rows."""
        return self._history._asdict()


# --- writing --------------------------------------------------------------------------------------


# Coalesced: without a row of the name this is another database, where the driver decides nothing.
_NOW = f"""
SELECT (extract(epoch FROM now()) * 1000)::bigint,
       coalesce((SELECT generation FROM {{names}} WHERE name = %s), 0), {HISTORY}
"""  # noqa: S608 - ours


def begun_at(connection: Connection, tables: PostgresTableNames) -> tuple[int, int, History]:
    """Return when the transaction began (server's clock, ms), the name's generation, the server.

    Of this transaction: a pooler may have another server behind it than for the last one.
    """
    [(opened_at_ms, generation, *history)] = connection.execute(
        tables.statement(_NOW), [tables.name]
    )
    return int(opened_at_ms), int(generation), History(*history)


def copy_into(table: str, names: list[str]) -> sql.Composed:
    """Return the statement that takes rows with these columns as CSV."""
    columns = sql.SQL(", ").join(sql.Identifier(name) for name in names)
    return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')").format(
        sql.SQL(table), columns
    )


class TransactionOfTask:
    """See :class:`~airflow_eos.core.delivery.port.TaskWriter`: writes by COPY, in one transaction.

    The connection is what an earlier task of the worker has left, or is made for the first rows.

    Args:
        sink: the sink to write to.
        tables: the keys of the name that the work goes under.
        task: the number of the task in the batch.
        task_attempt: the task's attempt.
        transactional: prepare the transaction for the decision; else commit it.
    """

    def __init__(
        self,
        sink: PostgresSink,
        tables: PostgresTableNames,
        task: int,
        task_attempt: int,
        *,
        transactional: bool,
    ) -> None:
        self._sink = sink
        self._tables = tables
        self._key = tables.new_key(task, task_attempt)
        self._transactional = transactional
        self._session = session_of(sink)
        self._connection: Any = None
        self._rows = 0
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
        """End the COPY and leave the transaction prepared for the decision."""
        if self._connection is None:
            leave(self._sink, self._session)
            return None
        with self._meaning("ending the copy"):
            self._copying.__exit__(None, None, None)
        if self._cursor.rowcount != self._rows:
            raise took_other(self._rows, self._cursor.rowcount, self._sink.table)
        with self._meaning("preparing the transaction"):
            work = self._ended(fingerprint)
        leave(self._sink, self._session)
        return work

    def abort(self) -> None:
        """Remove the rows, as far as possible; also prepared ones, since a reply may be lost."""
        self._session.close()
        if self._connection is not None and self._transactional:
            # Where this fails, recovery or the next batch finds the work.
            with suppress(EosError), closing(self._session) as again:
                again.once("rolling back", lambda c: end_prepared(c, "ROLLBACK", self._key))

    def _begin(self, names: list[str]) -> None:
        self._connection = self._session.run("beginning", self._begun)
        self._cursor = self._connection.cursor()
        self._copying = self._cursor.copy(copy_into(self._sink.quoted_table, names))
        self._copy = self._copying.__enter__()

    def _begun(self, connection: Connection) -> Connection:
        # Set again: a pooler may have applied the session's setting to another connection.
        limit = sql.Literal(f"{max(1, round(self._sink.lock_timeout.total_seconds() * 1000))}ms")
        connection.execute(
            sql.SQL(
                "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = {}; {}"
            ).format(limit, sql.SQL(OF_TRANSACTION))
        )
        self._limits = limits_of(columns_of(connection, self._sink.quoted_table))
        return connection

    def _ended(self, fingerprint: str) -> PreparedWork | None:
        """Prepare the transaction, so that the work can be decided; or commit it."""
        if not self._transactional:
            self._connection.execute("COMMIT")
            return None
        opened_at_ms, generation, history = begun_at(self._connection, self._tables)
        self._connection.execute(
            self._tables.statement(
                "INSERT INTO {works} (key, name, rows, generation) VALUES (%s, %s, %s, %s)"
            ),
            [self._key, self._tables.name, self._rows, generation],
        )
        prepare = sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(self._key))
        try:
            self._connection.execute(prepare)
        except UNPREPARED as error:
            raise cannot_prepare(error, printable(self._sink.dsn)) from error
        return PreparedWork(
            kind=KIND,
            participant=self._sink.name,
            key=self._key,
            rows=self._rows,
            fingerprint=fingerprint,
            opened_at_ms=opened_at_ms,
            timeout_ms=None,
            detail={
                "form": PREPARED,
                **history._asdict(),
                GENERATION: generation,
                WRITTEN_TABLE: self._sink.quoted_table,
            },
        )

    def _meaning(self, doing: str) -> contextlib.AbstractContextManager[None]:
        return meaning(doing, printable(self._sink.dsn))


# --- slots ----------------------------------------------------------------------------------------


_RIGHTS = """
SELECT current_user, has_table_privilege(%(t)s, 'INSERT'), row_security_active(%(t)s),
       has_schema_privilege(%(schema)s, 'USAGE')
"""
_SLOTS = """
SELECT current_setting('max_prepared_transactions')::int, count(*)::int FROM pg_prepared_xacts
WHERE NOT (database = current_database() AND starts_with(gid, %s || '-'))
"""


def require_table(connection: Connection, table: str, tables: PostgresTableNames) -> None:
    """Refuse a table or role with which rows cannot be prepared and kept (ConfigurationError)."""
    require_kept(connection, table)
    rights = {"t": table, "schema": tables.schema}
    role, may_insert, secured, may_use = connection.execute(_RIGHTS, rights).fetchone() or ()
    if not may_insert:
        raise ConfigurationError(
            f"Role {role!r} may not write as needed: GRANT INSERT ON {table} TO {role}."
        )
    if not may_use:
        raise ConfigurationError(
            f"Role {role!r} may not use the schema of the pipelines: GRANT USAGE ON SCHEMA "
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
TASK_MODULES = ("pyarrow.csv", "psycopg", *KEEPING_MODULES, "airflow_eos.kinds.postgres.sink")


@dataclass(frozen=True)
class PostgresSink(TableSink):
    """The PostgreSQL sink: table and settings.

    Attributes:
        dsn: of the primary, with a role that driver, tasks and recovery share.
        table: as SQL names it, with its schema where that is not on the role's search path.
        gid_prefix: of the prepared transactions; owned by one checkpoint.
        two_phase: whether to use PREPARE TRANSACTION; else rows wait in the checkpoint.
        tasks: the most that a batch has; as many as Spark has cores where None. Twice as many
            prepared transactions must be free.
        lock_timeout: how long a statement of a task or the driver waits for a row or a unique key
            of another transaction; a recovery waits 30 seconds.
        answer_within: how long the server may be gone before a step fails.
        schema: the schema of the tables that the pipelines of the database share.
        batch_column: a bigint column of the table that the sink fills, by which a reader stays
            behind a batch (``docs/cuts.md``); None: there is none.
        name: the participant's name in the decisions of the pipeline.
        store: the checkpoint; see :meth:`bound`.
    """

    dsn: str = field(repr=False)
    table: str
    gid_prefix: str
    two_phase: bool = True
    tasks: Count | None = None
    lock_timeout: Span = timedelta(seconds=30)
    answer_within: Span = timedelta(seconds=30)
    schema: str = DEFAULT_SCHEMA
    batch_column: str | None = None
    name: str = DEFAULT_PARTICIPANT
    store: CheckpointStore | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        take_fields(self)
        check_name(self.name)
        name_of(self.gid_prefix, self.name)
        checked_dsn(self.dsn)

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
        with closed_on_error(self.session()) as session:
            instance_id = make_tables(session, self._tables)
            session.run("looking at the table", self._require)
            if not self.two_phase:
                self.keeping(self._tables).ensure_instance_id()
            return PostgresParticipant(
                session,
                self._tables,
                name=self.name,
                instance_id=instance_id,
                target=target,
                kept=kept_at(self.store, self.name, self._tables),
            )

    @property
    def address(self) -> str:
        """See :attr:`TableSink.place`."""
        return printable(self.dsn)

    def session(self) -> PostgresConnection:
        """See :meth:`TableSink.session`."""
        return PostgresConnection(
            self.dsn,
            timeout_s=self.answer_within.total_seconds(),
            lock_timeout_s=self.lock_timeout.total_seconds(),
        )

    def check_types(self, types: dict[str, str]) -> None:
        """See :meth:`TableSink.check_types`."""
        found = self._ask("looking at columns", lambda c: columns_of(c, self.quoted_table))
        check_columns(types, found, self.table, self.batch_column)

    def opened(self, task: int, task_attempt: int, *, transactional: bool = True) -> TaskWriter:
        """Return the writer of one task, in a Spark worker."""
        if transactional and not self.two_phase:
            return self.stamped(CsvOfTask(self, self._tables, task, task_attempt))
        return self.stamped(
            TransactionOfTask(self, self._tables, task, task_attempt, transactional=transactional)
        )

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
        require_table(connection, self.quoted_table, self._tables)
        if self.two_phase:
            require_slots(connection, self._tables.name, self.tasks or 1)
            return
        require_numbers(connection, self.quoted_table)
        if by := may_refuse(connection, self.quoted_table):
            warn_of_refusals(self.quoted_table, by)

    def _ask(self, doing: str, look: Callable[[Connection], T]) -> T:
        with closing(self.session()) as session:
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
    batch_column: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> PostgresSink:
        """See :meth:`SinkOptions.sink`."""
        if not how:
            raise unreached("libpq's 'host=… dbname=… user=…', a URL, or an object of its keywords")
        given = {"gid_prefix": app.prefix, **self.given()}
        return PostgresSink(checked_dsn(how), name=name, **given)


OPTIONS = PostgresOptions
