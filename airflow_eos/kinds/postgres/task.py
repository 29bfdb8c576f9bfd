"""One task's transaction: rows by COPY, then their witness, then PREPARE TRANSACTION."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from psycopg import Error, errors, sql

from airflow_eos.errors import ConfigurationError, DeliveryError, EosError, Remedy
from airflow_eos.kinds.postgres.participant import (
    COLUMNS,
    KIND,
    PREPARED,
    STAGED,
    PostgresTableNames,
    drop_staged,
    inserted,
    rollback_prepared,
)
from airflow_eos.kinds.postgres.session import (
    Connection,
    History,
    cannot_prepare,
    connected,
    meaning,
    printable,
)
from airflow_eos.kinds.sql.participant import GENERATION, key_is_there, name_of
from airflow_eos.kinds.sql.servers import OF_TRANSACTION
from airflow_eos.kinds.upsert.columns import Limits, refuse_longer
from airflow_eos.protocol.decision import PreparedWork

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.kinds.postgres.sink import PostgresSink

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
        name: as it is.
        type: PostgreSQL's own name of it (of a domain: what it is based on).
        modifier: ``atttypmod``: length, precision; -1 for none.
        is_enum: any label is sent as a string.
        is_required: it has neither nulls nor a default.
        is_made: why nobody may write it; None where one may.
    """

    name: str
    type: str
    modifier: int = -1
    is_enum: bool = False
    is_required: bool = False
    is_made: str | None = None


def columns_of(connection: Connection, table: str) -> list[PostgresColumn]:
    """The columns of ``table``; none where there is no such table."""
    return [PostgresColumn(*found) for found in connection.execute(_COLUMNS, [table])]


def limits_of(columns: list[PostgresColumn]) -> Limits:
    """How long texts may be: spaces beyond that PostgreSQL would cut in silence."""
    most = {c.name: c.modifier - 4 for c in columns if c.type == "varchar" and c.modifier > 0}
    return Limits(characters=most, octets={}, row=0)


def check_columns(types: dict[str, str], columns: list[PostgresColumn], table: str) -> None:
    """Refuse rows that the table could not take as they are.

    Args:
        types: of the rows, name to Spark's simple name of the type.
        columns: of the table.
        table: for people.

    Raises:
        ConfigurationError: which column, and what to do.
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
    """Precision and scale of ``numeric``, from ``atttypmod`` (numeric_typmod_precision)."""
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
    """The rows as COPY's CSV: nulls are empty, strings are quoted, also the empty one."""
    import pyarrow as pa
    from pyarrow import csv

    columns = [_as_text(column) for column in rows.columns]
    out = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, batch_size=max(1, rows.num_rows))
    csv.write_csv(pa.RecordBatch.from_arrays(columns, names=rows.schema.names), out, options)
    return memoryview(out.getvalue())


def _as_text(column: pa.Array) -> pa.Array:
    """What Arrow's CSV cannot say, or would say in another zone."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())  # a column may be wider, and hold more of its digits
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return column.cast(pa.timestamp("us", "UTC"))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return _as_hex(column.cast(pa.large_binary()))
    if kind == pa.string_view():
        return column.cast(pa.large_string())
    return column


def _as_hex(column: pa.LargeBinaryArray) -> pa.Array:
    r"""``\x…`` for each value: all bytes at once."""
    import pyarrow as pa
    from pyarrow import compute

    if not len(column):
        return column.cast(pa.large_string())
    # A slice has the buffers of the whole, and says where in them it begins.
    validity, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64, count=column.offset + len(column) + 1)
    digits = bytes(data or b"").hex().encode()
    text = pa.LargeStringArray.from_buffers(
        len(column), pa.py_buffer(ends * 2), pa.py_buffer(digits), validity, -1, column.offset
    )
    begin, between = (pa.scalar(each, pa.large_string()) for each in ("\\x", ""))
    return compute.binary_join_element_wise(begin, text, between)


# --- staging --------------------------------------------------------------------------------------
# The table in which the rows of a task wait, and the trial that they have passed before they do.
#
# What their table finds only when they are moved there is found after the decision, and then a
# person has to make room for them. So the task inserts them into it, whole, and rolls that back:
# values, indexes, constraints, triggers and partitions have met each row. Rows of two tasks meet in
# the table alone: repartitioned by the key there are no two that have it.


# Of each column: whether rows wait in it that do not give it (the table has a default), and the
# sequence of an identity.
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
    """What of the table could refuse rows of two tasks that each could have: its definition."""
    return [found for (found,) in connection.execute(_MAY_REFUSE, {"table": table})]


def require_numbers(connection: Connection, table: str) -> None:
    """Refuse a table whose numbers this role may not take (ConfigurationError)."""
    for (sequence,) in connection.execute(_NUMBERS, {"table": table}):
        raise ConfigurationError(
            f"Table {table} numbers its rows by the sequence {sequence}, which this role may not "
            "use: rows that wait for their decision have their number already.",
            Remedy(change=f"GRANT USAGE ON SEQUENCE {sequence} to the role", start=True),
        )


def make_holding(
    connection: Connection, holding: sql.Identifier, table: str, names: list[str]
) -> None:
    """A table for the rows of one task, with the columns that they give or the table fills.

    Defaults are made here, and moved as they are: a sequence at its end refuses no decided row.
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
    """Insert the rows into their table and roll that back, with the locks that it took.

    Deferred constraints and triggers are asked, too. What a trigger does outside of the transaction
    (dblink) it does here as well; a NOTIFY goes with the rest.

    Raises:
        DeliveryError: the table does not take all of them.
        psycopg.Error: why it refuses one.
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
    """Refuse a table that takes less rows than it is given, or more (DeliveryError)."""
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


# --- task -----------------------------------------------------------------------------------------


# Without a row of the name the driver decides nothing: this is not its database.
_NOW = """
SELECT (extract(epoch FROM now()) * 1000)::bigint,
       coalesce((SELECT generation FROM {names} WHERE name = %s), 0)
"""


class TransactionOfTask:
    """See :class:`~airflow_eos.delivery.task.TaskWriter`: begun by the first rows.

    Args:
        sink: where to.
        task: of the batch.
        attempt: of the task.
        transactional: leave it open; else it is committed at once.
    """

    def __init__(self, sink: PostgresSink, task: int, attempt: int, *, transactional: bool) -> None:
        self._sink = sink
        self._tables = PostgresTableNames(sink.schema, name_of(sink.gid_prefix, sink.name))
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
