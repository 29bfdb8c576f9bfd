"""The MySQL sink: a task's rows wait in a table of their own, and one transaction moves them.

Inserts only. The table of a task is made ``LIKE`` the target, with its keys: so rows that one task
alone can find wrong are refused before the decision. Every row is written twice, and no lock is
held meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pymysql import MySQLError

from airflow_eos.arguments import take_spans
from airflow_eos.closing import closed_on_error
from airflow_eos.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.delivery.workers import check_workers
from airflow_eos.errors import ConfigurationError, DeliveryError, EosError, Remedy
from airflow_eos.kinds.mysql.participant import (
    FORM,
    KIND,
    MySqlParticipant,
    MySqlTableNames,
    begin_staged,
    drop_staged,
    end_staging,
    make_tables,
    require_kept,
)
from airflow_eos.kinds.mysql.session import (
    Connection,
    MySqlConnection,
    asked,
    connected,
    done,
    meaning,
    printable,
    quoted,
)
from airflow_eos.kinds.sql.participant import (
    GENERATION,
    WRITTEN_TABLE,
    key_is_there,
    name_of,
    warn_of_refusals,
)
from airflow_eos.kinds.sql.servers import as_text, parts_of
from airflow_eos.kinds.sql.sink import TableSink, WorkOfTask
from airflow_eos.kinds.upsert.columns import (
    Limits,
    hex_digits,
    refuse_longer,
    refuse_nulls,
    refuse_numbers,
    refuse_times,
)
from airflow_eos.kinds.upsert.mysql import TRIGGERS, fits, limits
from airflow_eos.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork, check_name
from airflow_eos.texts import refuse_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from airflow_eos.delivery.port import TaskWriter


# --- task -----------------------------------------------------------------------------------------
# One task's rows go into a staging table, in one transaction that also marks them as whole.


_COLUMNS = """
SELECT column_name, lower(column_type),
       is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%%auto_increment%%',
       generation_expression IS NOT NULL AND generation_expression <> ''
FROM information_schema.columns WHERE table_schema = database() AND table_name = %s
ORDER BY ordinal_position
"""
_NEVER_NULL = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = database() AND table_name = %s AND is_nullable = 'NO'
"""
# A row for each column: joined names would be split by what the session takes for an escape.
_KEYS = """
SELECT index_name, coalesce(column_name, 'an expression'),
       column_name IS NOT NULL AND sub_part IS NULL
FROM information_schema.statistics
WHERE table_schema = database() AND table_name = %s AND non_unique = 0
ORDER BY index_name, seq_in_index
"""
_FOREIGN = """
SELECT constraint_name FROM information_schema.table_constraints
WHERE table_schema = database() AND table_name = %s AND constraint_type = 'FOREIGN KEY'
"""
# The next number of an AUTO_INCREMENT column, and its type, which tells its last number.
_NUMBERS = """
SELECT column_name, auto_increment, lower(column_type), @@auto_increment_increment
FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
WHERE table_schema = database() AND table_name = %s AND extra LIKE '%%auto_increment%%'
"""
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TEXTS = ("json", "longtext", "mediumtext", "text", "tinytext")


@dataclass(frozen=True)
class MySqlColumn:
    """A column of the table: its type, whether a row must give a value, whether it is generated."""

    type: str
    is_required: bool
    is_made: bool


def columns_of(connection: Connection, table: str) -> dict[str, MySqlColumn]:
    """Return the columns of ``table``; none where there is no such table."""
    return {
        name: MySqlColumn(kind, bool(required), bool(made))
        for name, kind, required, made in asked(connection, _COLUMNS, table)
    }


def never_null(connection: Connection, table: str) -> frozenset[str]:
    """Return the columns that hold no null: some replace one (AUTO_INCREMENT, timestamps)."""
    return frozenset(name for (name,) in asked(connection, _NEVER_NULL, table))


def check_columns(types: Mapping[str, str], columns: Mapping[str, MySqlColumn], table: str) -> None:
    """Refuse rows that the table could not take as they are.

    Args:
        types: the rows' column names, and Spark's simple names of their types.
        columns: the columns of the table.
        table: its name, for errors.

    Raises:
        ConfigurationError: all that is wrong, and what to do.
    """
    wrong = []
    for name, spark in types.items():
        column = columns.get(name)
        if column is None:
            wrong.append(f"has no column {name!r} (found: {', '.join(columns)}; capitals count)")
        elif column.is_made:
            wrong.append(f"generates {name!r} itself: drop it from the rows")
        elif not _fits(spark, column.type):
            wrong.append(
                f"has {name!r} as {column.type}, which does not hold every {spark}: cast it, or "
                "change the table (text for what is nested: to_json)"
            )
    wrong += [
        f"needs {name!r}, which the rows do not have (NOT NULL without a default)"
        for name, column in columns.items()
        if column.is_required and name not in types and not column.is_made
    ]
    if wrong:
        raise ConfigurationError(f"Table {table} {'; '.join(wrong)}.")


def _fits(spark: str, kind: str) -> bool:
    """Whether a column can take a Spark type, or its staging table refuses misfits by itself."""
    if spark == "string":
        return fits(spark, kind) or kind.startswith(_TEXTS)
    if spark.startswith("timestamp"):
        return fits(spark, kind) or (spark == "timestamp" and kind == "timestamp(6)")
    return fits(spark, kind)


def require_table(connection: Connection, table: str, probe: str) -> None:
    """Refuse a table into which rows cannot be moved with their witness (ConfigurationError).

    Args:
        connection: a connection to its database.
        table: its name, as the user gave it.
        probe: a name for a table that is made and dropped, to see whether the user may.
    """
    require_kept(connection, table)
    done(connection, f"EXPLAIN INSERT INTO {quoted(table)} VALUES ()")  # noqa: S608 - in quotes
    done(connection, f"CREATE TABLE {quoted(probe)} LIKE {quoted(table)}")
    done(connection, f"DROP TABLE {quoted(probe)}")


def may_refuse(connection: Connection, table: str) -> list[str]:
    """List keys, constraints and triggers that could refuse two tasks' rows only in the table."""
    return [
        *(f"UNIQUE ({', '.join(key)})" for key, _ in _keys(connection, table)),
        *(f"FOREIGN KEY {name}" for (name,) in asked(connection, _FOREIGN, table)),
        *(f"TRIGGER {name}" for (name,) in asked(connection, TRIGGERS, table, "INSERT", table)),
    ]


def require_taken(
    connection: Connection, holding: str, table: str, names: Sequence[str], rows: int
) -> None:
    """Refuse staged rows that their table would refuse once they are decided.

    The staging table is ``LIKE`` the table, so its columns, indexes, checks and partitions have
    refused such rows. Keys of rows in the table are looked for; for foreign keys, triggers, and
    keys that cannot be looked for, the rows are inserted into the table, and that is rolled back.
    Only such a trial takes numbers of AUTO_INCREMENT, which no rollback gives back.

    Raises:
        DeliveryError: with the rows that the table would not take.
        pymysql.MySQLError: with the table's reason to refuse a row.
    """
    numbers = asked(connection, _NUMBERS, table)
    made = {name for name, *_ in numbers} - set(names)
    unseen = [
        *asked(connection, _FOREIGN, table),
        *asked(connection, TRIGGERS, table, "INSERT", table),
    ]
    for key, is_whole in _keys(connection, table):
        if is_whole and set(key) <= set(names):
            _require_new_key(connection, holding, table, key)
        elif not made & set(key):
            unseen.append((key,))
    if unseen:
        _try(connection, holding, table, names, rows)
        numbers = asked(connection, _NUMBERS, table)
    for name, following, kind, step in numbers:
        if name in made and (following or 0) + rows * step > _last(kind):
            raise DeliveryError(
                f"Table {table} numbers its rows by {name} {kind}, next {following}, and {rows} "
                "more would not all have a number. Nothing was made visible.",
                Remedy(change=f"make {name} of table {table} a bigint", start=True),
            )


def _try(connection: Connection, holding: str, table: str, names: Sequence[str], rows: int) -> None:
    columns = quoted(*names)
    done(connection, "SAVEPOINT trial")
    taken = done(
        connection,
        f"INSERT INTO {quoted(table)} ({columns}) "  # noqa: S608 - names in quotes
        f"SELECT {columns} FROM {quoted(holding)}",
    )
    if taken != rows:
        raise DeliveryError(
            f"{rows} rows were sent to table {table}, which took {taken}. Nothing was made "
            "visible.",
            Remedy(change="drop the trigger that drops rows", start=True),
        )
    done(connection, "ROLLBACK TO SAVEPOINT trial")


def _last(kind: str) -> float:
    """Return a column's last number, which rows may not take: the server's counter stays there."""
    bits = _BITS.get(kind.partition("(")[0].partition(" ")[0])
    return float("inf") if bits is None else 2 ** (bits - ("unsigned" not in kind)) - 1


def _require_new_key(connection: Connection, holding: str, table: str, key: Sequence[str]) -> None:
    equal = " AND ".join(f"held.{quoted(name)} = there.{quoted(name)}" for name in key)
    if asked(
        connection,
        f"SELECT 1 FROM {quoted(holding)} AS held "  # noqa: S608 - names in quotes
        f"JOIN {quoted(table)} AS there ON {equal} LIMIT 1",
    ):
        raise key_is_there(table, ", ".join(key))


def _keys(connection: Connection, table: str) -> list[tuple[list[str], bool]]:
    """Return the columns of each unique key, and whether it is of whole columns alone."""
    keys: dict[str, list[tuple[str, bool]]] = {}
    for key, column, is_whole in asked(connection, _KEYS, table):
        keys.setdefault(key, []).append((column, bool(is_whole)))
    return [
        ([column for column, _ in columns], all(is_whole for _, is_whole in columns))
        for columns in keys.values()
    ]


# --- literals -------------------------------------------------------------------------------------
# Arrow rows as the literals of an INSERT; pure, and column by column.
#
# PyMySQL's own ``executemany`` makes a Python object of each value, and LOAD DATA LOCAL must be
# allowed on the server and lets it ask the client for files. Here no row ever is a Python object: a
# statement is a slice of a buffer that Arrow has joined.


_STATEMENT_BYTES = 4 << 20  # longer ones are no faster


def statements(rows: pa.RecordBatch, head: bytes, packet: int) -> Iterator[bytes]:
    """Yield statements of ``head`` and as many rows as fit; a longer row has one of its own.

    Raises:
        DeliveryError: a single row is longer than the ``packet`` that the server takes.
    """
    text = _tuples(rows)
    _, offsets, data = text.buffers()
    ends = np.frombuffer(offsets, np.int64, count=text.offset + len(text) + 1)[text.offset :]
    room = packet - len(head)
    if (longest := int(np.diff(ends).max(initial=0))) > room:
        raise DeliveryError(
            f"A row is {longest} bytes as a statement, and the server's max_allowed_packet leaves "
            f"{room}. Nothing was made visible. Raise it, or send less in a row."
        )
    at, room = 0, min(packet, _STATEMENT_BYTES) - len(head)
    while at < len(text):
        to = max(at + 1, int(np.searchsorted(ends, ends[at] + room, side="right")) - 1)
        yield head + data[int(ends[at]) : int(ends[to]) - 1].to_pybytes()  # not the last comma
        at = to


def _tuples(rows: pa.RecordBatch) -> pa.LargeStringArray:
    """Return each row as ``(1, 'a'),``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [
        pc.fill_null(_literals(column), pa.scalar("NULL", pa.large_string()))
        for column in rows.columns
    ]
    comma = _text(",")
    parts = [columns[0], *(part for column in columns[1:] for part in (comma, column))]
    return pc.binary_join_element_wise(_text("("), *parts, _text("),"), _text(""))


def _literals(column: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(pa.large_string())
    if pa.types.is_integer(kind):
        return column.cast(pa.large_string())
    if pa.types.is_floating(kind):
        # With an exponent MySQL reads a literal as a double, and not as a decimal of some digits.
        text = column.cast(pa.float64()).cast(pa.large_string())
        return pc.if_else(pc.match_substring(text, "e"), text, _joined(text, "e0"))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _joined("x'", hex_digits(column.cast(pa.large_binary())), "'")
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).cast(pa.timestamp("us"))
    text = column.cast(pa.large_string())
    return _joined("'", pc.replace_substring(text, "'", "''"), "'")


def _joined(*parts: pa.Array | str) -> pa.Array:
    import pyarrow.compute as pc

    whole = [_text(part) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*whole, _text(""))


def _text(value: str) -> pa.Scalar:
    import pyarrow as pa

    return pa.scalar(value, pa.large_string())


# --- writing --------------------------------------------------------------------------------------


class RowsOfTask(WorkOfTask):
    """See :class:`WorkOfTask`: writes by INSERT, into a staging table of the task."""

    kind = KIND
    errors = (MySQLError, EosError)
    _sink: MySqlSink
    _tables: MySqlTableNames

    def __init__(self, *given: Any, transactional: bool) -> None:
        super().__init__(*given, transactional=transactional)
        self._into = self._tables.holding(self._key) if transactional else self._sink.table
        self._limits = Limits({}, {}, 0)
        self._names: list[str] = []
        self._head = b""
        self._packet = 0
        self._never_null: frozenset[str] = frozenset()
        self._opened_at_ms = 0
        self._generation = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Insert a batch of rows."""
        refuse_numbers(rows, "MySQL")
        refuse_times(rows, "MySQL", first_year=1000)
        refuse_texts(rows, "MySQL")
        with self._meaning("writing rows"):
            if self._connection is None:
                self._begin(rows.schema.names)
            # However strict its mode, the server cuts spaces at the end in silence.
            refuse_longer(rows, self._limits)
            refuse_nulls(rows, self._never_null, self._sink.table)
            for statement in statements(rows, self._head, self._packet):
                self._rows += self._connection.query(statement)

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Check that the table takes the rows, and leave them staged until they are decided.

        Raises:
            DeliveryError: the table would refuse rows, or the work was aborted meanwhile.
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
        detail = {"form": FORM, GENERATION: self._generation, WRITTEN_TABLE: self._sink.table}
        return self._work(fingerprint, self._opened_at_ms, detail)

    def _drop(self, connection: Connection) -> None:
        drop_staged(connection, self._tables, self._key)

    def _begin(self, names: list[str]) -> None:
        self._names = names
        self._connection = self._connected()
        with self._connection.cursor() as cursor:
            self._limits = limits(cursor, self._sink.table)
        self._packet = self._limits.row - 1024
        columns = quoted(*names).replace("%%", "%")
        into = quoted(self._into).replace("%%", "%")
        self._head = f"INSERT INTO {into} ({columns}) VALUES ".encode()  # noqa: S608 - in quotes
        if self._transactional:
            # At once, any number of the table will do; staging tables would give one number twice.
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


# --- sink -----------------------------------------------------------------------------------------


T = TypeVar("T")
TASK_MODULES = ("pyarrow", "numpy", "msgspec", "pymysql", "airflow_eos.kinds.mysql.sink")


@dataclass(frozen=True)
class MySqlSink(TableSink):
    """The MySQL sink: table and settings.

    Attributes:
        url: ``mysql://user:password@host:3306/database``; a password in percent-encoding. One
            user for driver, tasks and recovery.
        table: the table's name in that database; its engine is InnoDB.
        prefix: of the keys of its work; owned by one checkpoint.
        lock_timeout: how long a statement of a task or the driver waits for a lock of another
            transaction; a recovery waits 30 seconds.
        answer_within: how long the server may be gone before a step fails.
        name: the participant's name in the decisions of the pipeline.
    """

    url: str = field(repr=False)
    table: str
    prefix: str
    lock_timeout: timedelta = timedelta(seconds=30)
    answer_within: timedelta = timedelta(seconds=30)
    name: str = DEFAULT_PARTICIPANT

    def __post_init__(self) -> None:
        take_spans(self, "lock_timeout", "answer_within")
        check_name(self.name)
        name_of(self.prefix, self.name, called="prefix")
        parts_of(self.url)

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`."""
        check_workers(spark, modules=TASK_MODULES)

    def connect(self, interval: timedelta) -> MySqlParticipant:
        """See :meth:`Sink.connect`; no interval is refused, since staged work does not expire."""
        del interval
        with closed_on_error(self._session()) as session:
            mark = make_tables(session, self._tables)
            session.run("looking at the table", self._require)
        return MySqlParticipant(session, self._tables, name=self.name, mark=mark, target=self.table)

    @property
    def place(self) -> str:
        """See :attr:`TableSink.place`."""
        return printable(self.url)

    def check_types(self, types: dict[str, str]) -> None:
        """See :meth:`TableSink.check_types`."""
        with closing(self._session()) as session:
            found = session.run("looking at columns", lambda c: columns_of(c, self.table))
        if not found:
            raise ConfigurationError(
                f"There is no table {self.table!r} in {self.place}, or its user cannot see it. "
                "Create it first; the sink creates no tables of yours."
            )
        check_columns(types, found, self.table)

    def opened(self, task: int, attempt: int, *, transactional: bool = True) -> TaskWriter:
        """Return the writer of one task, in a Spark worker."""
        return RowsOfTask(self, self._tables, task, attempt, transactional=transactional)

    @property
    def _tables(self) -> MySqlTableNames:
        return MySqlTableNames(name_of(self.prefix, self.name, called="prefix"))

    def _session(self) -> MySqlConnection:
        return MySqlConnection(
            self.url,
            timeout_s=self.answer_within.total_seconds(),
            lock_timeout_s=self.lock_timeout.total_seconds(),
        )

    def _require(self, connection: Connection) -> None:
        probe = self._tables.holding(self._tables.new_key(0, 0))
        require_table(connection, self.table, probe)
        if by := may_refuse(connection, self.table):
            warn_of_refusals(self.table, by)


# --- configuration --------------------------------------------------------------------------------


class MySqlOptions(SinkOptions, frozen=True):
    """The options of a MySQL sink, which only inserts; times are text, such as ``30 seconds``."""

    table: str
    prefix: str | None = None
    lock_timeout: str | None = None
    answer_within: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> MySqlSink:
        """See :meth:`SinkOptions.sink`."""
        url = as_text("mysql", how)
        if url is None:
            raise unreached("a URL of mysql, or an object of its parts")
        given = {"prefix": app.prefix, **self.given()}
        return MySqlSink(url, name=name, **given)


OPTIONS = MySqlOptions
