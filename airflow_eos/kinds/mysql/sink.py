"""The MySQL sink: a task's rows wait in the checkpoint, and one transaction inserts them.

Inserts only. A task inserts its rows into the table and rolls that back: so rows that one task
alone can find wrong are refused before the decision. Every row is written twice, and no lock is
held meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pymysql import MySQLError
from pymysql.constants import ER

from airflow_eos.core.arguments import Span, take_fields
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.closing import closed_on_error
from airflow_eos.core.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.core.delivery.workers import check_workers
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, check_name
from airflow_eos.errors import ConfigurationError, DeliveryError, Remedy
from airflow_eos.kinds.mysql.participant import (
    KIND,
    NAMES,
    ROOM,
    MySqlParticipant,
    inserted,
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
from airflow_eos.kinds.sql.columns import (
    hex_digits,
    refuse_longer,
    refuse_nulls,
    refuse_numbers,
    refuse_times,
)
from airflow_eos.kinds.sql.kept import kept_at
from airflow_eos.kinds.sql.keys import KeysOfName, name_of
from airflow_eos.kinds.sql.mysql_columns import TRIGGERS, fits, limits
from airflow_eos.kinds.sql.participant import key_is_there, took_other, warn_of_refusals
from airflow_eos.kinds.sql.servers import as_text, number_of, parts_of
from airflow_eos.kinds.sql.sink import KEEPING_MODULES, KeptOfTask, TableSink, not_for_batches
from airflow_eos.kinds.texts import refuse_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from airflow_eos.core.delivery.port import TaskWriter


# --- task -----------------------------------------------------------------------------------------
# What the table holds, and what it may refuse.


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
SELECT index_name, coalesce(column_name, 'an expression') FROM information_schema.statistics
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
_STAYS = 1196  # ER_WARNING_NOT_COMPLETE_ROLLBACK
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


def check_columns(
    types: Mapping[str, str],
    columns: Mapping[str, MySqlColumn],
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
        ConfigurationError: all that is wrong, and what to do.
    """
    wrong = []
    for name, spark in types.items():
        column = columns.get(name)
        if name == batch_column and (
            column is None
            or column.is_made
            or not (column.type.startswith("bigint") and _fits("bigint", column.type))
        ):
            made = "a generated column" if column is not None and column.is_made else ""
            found = "no such column" if column is None else made or column.type
            raise not_for_batches(table, name, found)
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
    """Whether a column can take a Spark type, or the trial refuses misfits by itself."""
    if spark == "string":
        return fits(spark, kind) or kind.startswith(_TEXTS)
    if spark.startswith("timestamp"):
        return fits(spark, kind) or (spark == "timestamp" and kind == "timestamp(6)")
    return fits(spark, kind)


def require_table(connection: Connection, table: str) -> None:
    """Refuse a table into which rows cannot go with their witness (ConfigurationError)."""
    require_kept(connection, table)
    done(connection, f"EXPLAIN INSERT INTO {quoted(table)} VALUES ()")  # noqa: S608 - in quotes


def may_refuse(connection: Connection, table: str) -> list[str]:
    """List keys, constraints and triggers that could refuse two tasks' rows only in the table."""
    return [
        *(f"UNIQUE ({', '.join(key)})" for key in _keys(connection, table).values()),
        *(f"FOREIGN KEY {name}" for (name,) in asked(connection, _FOREIGN, table)),
        *(f"TRIGGER {name}" for (name,) in asked(connection, TRIGGERS, table, "INSERT", table)),
    ]


def try_rows(connection: Connection, table: str, stream: bytes, rows: int) -> None:
    """Insert kept rows into their table and roll that back.

    Numbers of AUTO_INCREMENT are not given back.

    Raises:
        DeliveryError: the table does not take all rows.
        ConfigurationError: a trigger has written where nothing is rolled back.
        pymysql.MySQLError: with the table's reason to refuse a row.
    """
    done(connection, "BEGIN")
    try:
        taken = inserted(connection, stream, table)
    except MySQLError as error:
        if number_of(error) != ER.DUP_ENTRY:
            raise
        named = str(error.args[-1]).rpartition("for key ")[2].strip("'")
        index = named.rpartition(".")[2]  # MySQL 8.0.19 and newer name its table
        key = _keys(connection, table).get(index, [index])
        raise key_is_there(table, ", ".join(key)) from error
    done(connection, "ROLLBACK")
    if any(code == _STAYS for _, code, _ in asked(connection, "SHOW WARNINGS")):
        raise ConfigurationError(
            f"A trigger of table {table} has written into a table without transactions (MyISAM, "
            "Aria): what the trial of the rows has put there stays, and their delivery would put "
            "it there again. Nothing was made visible in the table itself.",
            Remedy(change="ALTER TABLE … ENGINE = InnoDB for the table it writes to", start=True),
            Remedy(
                change="use MySqlSink(…, trial=False)",
                start=True,
                costs="rows that the table refuses are found only after the decision, and then a "
                "person is asked",
            ),
        )
    if taken != rows:
        raise took_other(rows, taken, table)


def require_numbers(connection: Connection, table: str, names: list[str], rows: int) -> None:
    """Refuse rows for which AUTO_INCREMENT has no numbers left, after a trial (DeliveryError)."""
    for name, following, kind, step in asked(connection, _NUMBERS, table):
        if name not in names and (following or 0) + rows * step > _last(kind):
            raise DeliveryError(
                f"Table {table} numbers its rows by {name} {kind}, next {following}, and {rows} "
                "more would not all have a number. Nothing was made visible.",
                Remedy(change=f"make {name} of table {table} a bigint", start=True),
            )


def _last(kind: str) -> float:
    """Return a column's last number, which rows may not take: the server's counter stays there."""
    bits = _BITS.get(kind.partition("(")[0].partition(" ")[0])
    return float("inf") if bits is None else 2 ** (bits - ("unsigned" not in kind)) - 1


def _keys(connection: Connection, table: str) -> dict[str, list[str]]:
    """Return the columns of each unique key, by its name."""
    keys: dict[str, list[str]] = {}
    for key, column in asked(connection, _KEYS, table):
        keys.setdefault(key, []).append(column)
    return keys


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


class Statements:
    """The statements of a task's rows.

    Args:
        connection: a connection to the database, which is asked about the table.
        table: the name of the table.
        names: the columns of the rows.
    """

    def __init__(self, connection: Connection, table: str, names: list[str]) -> None:
        with connection.cursor() as cursor:
            self._limits = limits(cursor, table)
        self._packet = self._limits.row - ROOM
        into, columns = (each.replace("%%", "%") for each in (quoted(table), quoted(*names)))
        self._head = f"INSERT INTO {into} ({columns}) VALUES ".encode()  # noqa: S608 - in quotes

    def of(self, rows: pa.RecordBatch) -> Iterator[bytes]:
        """Yield the statements of some rows; refuse values that the table would change."""
        refuse_numbers(rows, "MySQL")
        refuse_times(rows, "MySQL", first_year=1000)
        refuse_texts(rows, "MySQL")
        # However strict its mode, the server cuts spaces at the end in silence.
        refuse_longer(rows, self._limits)
        yield from statements(rows, self._head, self._packet)


_GENERATION = f"SELECT generation FROM {NAMES} WHERE name = %s"  # noqa: S608 - ours


class StatementsOfTask(KeptOfTask):
    """See :class:`KeptOfTask`: what is sent are statements of many rows."""

    kind = KIND
    _sink: MySqlSink
    _session: MySqlConnection
    _names: list[str]
    _statements: Statements
    _never_null: frozenset[str]

    def begin(self, names: list[str]) -> Mapping[str, str]:
        """See :meth:`KeptOfTask.begin`."""
        self._names = names

        def look(connection: Connection) -> None:
            self._statements = Statements(connection, self._sink.table, names)
            self._never_null = never_null(connection, self._sink.table)

        self._session.run("looking at columns", look)
        return {}

    def pieces(self, rows: pa.RecordBatch) -> Iterator[bytes]:
        """See :meth:`KeptOfTask.pieces`."""
        # A null that the table replaces by a number or a time is another one at the commit.
        refuse_nulls(rows, self._never_null, self._sink.table)
        yield from self._statements.of(rows)

    def generation(self, connection: Connection) -> int:
        """See :meth:`KeptOfTask.generation`."""
        found = asked(connection, _GENERATION, self._tables.name)
        return int(found[0][0]) if found else 0

    def trial(self, connection: Connection, stream: bytes) -> None:
        """See :meth:`KeptOfTask.trial`; nothing where the sink was told so."""
        if self._sink.trial:
            try_rows(connection, self._sink.table, stream, self._rows)
            require_numbers(connection, self._sink.table, self._names, self._rows)


class RowsAtOnce:
    """See :class:`~airflow_eos.core.delivery.port.TaskWriter`: rows that are visible at once.

    Args:
        sink: the sink to write to.
    """

    def __init__(self, sink: MySqlSink) -> None:
        self._sink = sink
        self._connection: Connection = None
        self._statements: Statements | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Insert a batch of rows, in one transaction for all."""
        with meaning("writing rows", self._sink.address):
            if self._statements is None:
                self._connection = connected(
                    self._sink.url,
                    lock_timeout_s=self._sink.lock_timeout.total_seconds(),
                    timeout_s=self._sink.answer_within.total_seconds(),
                )
                names = rows.schema.names
                self._statements = Statements(self._connection, self._sink.table, names)
                done(self._connection, "BEGIN")
            for statement in self._statements.of(rows):
                self._connection.query(statement)

    def prepare(self, fingerprint: str) -> None:
        """Commit the rows: there is nothing to decide."""
        del fingerprint
        if self._connection is not None:
            with meaning("committing", self._sink.address):
                done(self._connection, "COMMIT")
            self._connection.close()

    def abort(self) -> None:
        """Close the connection, which rolls back what is not committed."""
        if self._connection is not None:
            with suppress(MySQLError):
                self._connection.close()


# --- sink -----------------------------------------------------------------------------------------


T = TypeVar("T")
TASK_MODULES = ("pymysql", *KEEPING_MODULES, "airflow_eos.kinds.mysql.sink")


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
        trial: False: rows are not tried in their table before the decision, for a table with a
            trigger that writes where nothing is rolled back; a row that the table refuses is then
            refused after it, and stops the pipeline.
        batch_column: see :class:`~airflow_eos.sinks.PostgresSink`.
        name: the participant's name in the decisions of the pipeline.
        store: the checkpoint; see :meth:`bound`.
    """

    url: str = field(repr=False)
    table: str
    prefix: str
    lock_timeout: Span = timedelta(seconds=30)
    answer_within: Span = timedelta(seconds=30)
    trial: bool = True
    batch_column: str | None = None
    name: str = DEFAULT_PARTICIPANT
    store: CheckpointStore | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        take_fields(self)
        check_name(self.name)
        name_of(self.prefix, self.name, called="prefix")
        parts_of(self.url)

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`."""
        check_workers(spark, modules=TASK_MODULES)

    def connect(self, interval: timedelta) -> MySqlParticipant:
        """See :meth:`Sink.connect`; no interval is refused, since kept rows do not expire."""
        del interval
        with closed_on_error(self.session()) as session:
            instance_id = make_tables(session, self._tables)
            session.run("looking at the table", self._require)
            self.keeping(self._tables).ensure_instance_id()
            return MySqlParticipant(
                session,
                self._tables,
                name=self.name,
                instance_id=instance_id,
                target=self.table,
                kept=kept_at(self.store, self.name, self._tables),
            )

    @property
    def address(self) -> str:
        """See :attr:`TableSink.place`."""
        return printable(self.url)

    def session(self) -> MySqlConnection:
        """See :meth:`TableSink.session`."""
        return MySqlConnection(
            self.url,
            timeout_s=self.answer_within.total_seconds(),
            lock_timeout_s=self.lock_timeout.total_seconds(),
        )

    def check_types(self, types: dict[str, str]) -> None:
        """See :meth:`TableSink.check_types`."""
        with closing(self.session()) as session:
            found = session.run("looking at columns", lambda c: columns_of(c, self.table))
        if not found:
            raise ConfigurationError(
                f"There is no table {self.table!r} in {self.address}, or its user cannot see it. "
                "Create it first; the sink creates no tables of yours."
            )
        check_columns(types, found, self.table, self.batch_column)

    def opened(self, task: int, task_attempt: int, *, transactional: bool = True) -> TaskWriter:
        """Return the writer of one task, in a Spark worker."""
        if not transactional:
            return self.stamped(RowsAtOnce(self))
        return self.stamped(StatementsOfTask(self, self._tables, task, task_attempt))

    @property
    def _tables(self) -> KeysOfName:
        return KeysOfName(name_of(self.prefix, self.name, called="prefix"))

    def _require(self, connection: Connection) -> None:
        require_table(connection, self.table)
        if by := may_refuse(connection, self.table):
            warn_of_refusals(self.table, by)


# --- configuration --------------------------------------------------------------------------------


class MySqlOptions(SinkOptions, frozen=True):
    """The options of a MySQL sink, which only inserts; times are text, such as ``30 seconds``."""

    table: str
    prefix: str | None = None
    lock_timeout: str | None = None
    answer_within: str | None = None
    trial: bool | None = None
    batch_column: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> MySqlSink:
        """See :meth:`SinkOptions.sink`."""
        url = as_text("mysql", how)
        if url is None:
            raise unreached("a URL of mysql, or an object of its parts")
        given = {"prefix": app.prefix, **self.given()}
        return MySqlSink(url, name=name, **given)


OPTIONS = MySqlOptions
