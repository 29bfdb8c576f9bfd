"""Upserts into a table of MySQL or MariaDB.

The table is InnoDB's, its primary key is just the key columns, and ``eos_version`` (varchar) holds
the version of each row, which a statement assigns last: MySQL assigns from left to right, and each
column looks at the version that stands. The owner is in a row of ``airflow_eos_upserts``, a small
table of ours in the same database. One transaction a work, only while this checkpoint is the owner.

A deleted row stays as a tombstone: its flag, its key and its version, all else null. Times are
written in UTC.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_eos.core.arguments import take_fields
from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.sql.columns import (
    VERSION,
    Limits,
    refuse_long_rows,
    refuse_longer,
    refuse_numbers,
    refuse_times,
)
from airflow_eos.kinds.sql.mysql_columns import TRIGGERS, fits, limits, rows_of
from airflow_eos.kinds.sql.participant import ddl_refused
from airflow_eos.kinds.sql.servers import (
    ABOUT,
    DENIED,
    PINNED,
    TRANSACTIONS,
    number_of,
    of_innodb,
    parts_of,
    reason,
    require_witness,
)
from airflow_eos.kinds.texts import refuse_texts
from airflow_eos.kinds.upsert.target import (
    LAST_ORDER,
    OURS,
    OWNER,
    TRYING,
    TableSession,
    TableTarget,
    TargetOwner,
    epoch_text,
    lacking,
    left_by,
    one_of_each_number,
    with_tombstones,
)

if TYPE_CHECKING:
    from airflow_eos.core.protocol.participant import Note
    from airflow_eos.kinds.upsert.target import RowSchema

_ROWS = 2000
_PACKET_HEAD = 16  # bytes that a packet has besides its statement

MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
LOCKS_S = 60
HAS_OURS = "SHOW TABLES LIKE 'airflow\\_eos\\_upserts'"
CREATE_OURS = """
CREATE TABLE IF NOT EXISTS airflow_eos_upserts (
  target varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY,
  mark char(32) NOT NULL, last_epoch bigint NOT NULL DEFAULT 0,
  owner_location text, owner_checkpoint text, owner_epoch bigint,
  note_batch bigint, note_attempt bigint, note_decision text,
  tally bigint NOT NULL DEFAULT 0) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4
"""
ENSURE_INSTANCE_ID = "INSERT IGNORE INTO airflow_eos_upserts (target, mark) VALUES (%s, %s)"
# Assigned from left to right. An epoch is greater than all former ones, and than those of rows that
# came from elsewhere. A clock is not used: set back, it would make new rows older.
CLAIM = """
UPDATE airflow_eos_upserts SET
  last_epoch = 1 + greatest(last_epoch, (SELECT cast(coalesce(max(left(eos_version, 16)), '0')
    AS signed) FROM {rows} WHERE eos_version REGEXP '^[0-9]{{16}}')),
  owner_epoch = last_epoch, owner_location = %s, owner_checkpoint = %s
WHERE target = %s AND owner_location IS NULL
"""
NOTED = """
SELECT note_batch, note_attempt FROM airflow_eos_upserts
WHERE target = %s AND owner_checkpoint = %s FOR UPDATE
"""
NOTE = """
UPDATE airflow_eos_upserts SET note_batch = %s, note_attempt = %s, note_decision = %s
WHERE target = %s
"""
LIFE = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_id', 'server_uuid', 'hostname')"
COUNT = """
UPDATE airflow_eos_upserts SET tally = last_insert_id(tally + 1) WHERE target = %s AND tally >= %s
"""
COUNTED = "SELECT last_insert_id()"
_ENGINE = """
SELECT engine, table_name FROM information_schema.tables
WHERE table_schema = database() AND table_name = %s
"""
_COLUMNS = """
SELECT column_name, lower(column_type), is_nullable = 'NO' AND column_default IS NULL,
       extra LIKE '%%generated%%' OR extra LIKE '%%auto_increment%%', coalesce(collation_name, '')
FROM information_schema.columns WHERE table_schema = database() AND table_name = %s
"""
# An index on the beginning of a column is no key: rows that differ after it would be one.
_KEYS = """
SELECT index_name, group_concat(concat_ws('(', column_name, sub_part) SEPARATOR '\\0')
FROM information_schema.statistics
WHERE table_schema = database() AND table_name = %s AND non_unique = 0 GROUP BY index_name
"""
_PARTITIONS = """
SELECT partition_method FROM information_schema.partitions WHERE table_schema = database()
AND table_name = %s AND (partition_method LIKE 'RANGE%%' OR partition_method LIKE 'LIST%%')
GROUP BY partition_method HAVING sum(partition_description IN ('MAXVALUE', 'DEFAULT')) = 0
"""
# An index of an expression, which MySQL has, evaluates it for each row.
_CONSTRAINTS = """
SELECT constraint_name FROM information_schema.table_constraints
WHERE table_schema = database() AND table_name = %s
AND constraint_type IN ('CHECK', 'FOREIGN KEY')
UNION SELECT index_name FROM information_schema.statistics
WHERE table_schema = database() AND table_name = %s AND column_name IS NULL
"""

_EXACT = ("_nopad_bin", "_0900_bin")
"""The ends of collations that take no two texts for one; ``_bin`` alone ignores end spaces."""


def refuse_table(
    cursor: Any, table: str, columns: Mapping[str, str], key: Sequence[str], deleted: str | None
) -> None:
    """Refuse a table that lacks a column, or that could refuse a row.

    Raises:
        ConfigurationError: all that is wrong, and what was expected.
    """
    engines = rows_of(cursor, _ENGINE, table)
    if not engines:
        raise ConfigurationError(
            f"There is no table {table!r} for this user: create it, with its key as primary key "
            "and a column eos_version varchar(64)."
        )
    [(engine, called)] = engines
    wrong = [] if engine == "InnoDB" else [f"is {engine}'s, which has no transactions"]
    if called != table:  # else a second pipeline could own the table by its other name
        wrong.append(f"is called {called!r}, and this server takes both for one: name it so")
    found = {name: tuple(rest) for name, *rest in rows_of(cursor, _COLUMNS, table)}
    wrong += _of_columns(found, columns, set(key), deleted)
    keys = [set(names.split("\0")) for _, names in rows_of(cursor, _KEYS, table)]
    wrong += [
        f"has the constraint {name}, which could refuse a row"
        for (name,) in rows_of(cursor, _CONSTRAINTS, table, table)
    ]
    wrong += [
        f"is partitioned by {method} and has none for every row (MAXVALUE, DEFAULT)"
        for (method,) in rows_of(cursor, _PARTITIONS, table)
    ]
    wrong += [
        f"fills {name} itself (by an expression, or by numbers that end): it could refuse a row"
        for name, (_, _, generated, _) in found.items()
        if generated and name not in {*columns, VERSION, *key}
    ]
    if keys != [set(key)]:
        wrong.append(f"has other keys than one primary key of just {', '.join(key)}, as a whole")
    if wrong:
        raise ConfigurationError(
            f"Table {table!r} {'; '.join(wrong)}. What is decided must be written, or the pipeline "
            "stands still: change the table, or the columns (cast, drop) before the first row."
        )


def _of_columns(
    found: Mapping[str, tuple[str, int, int, str]],
    columns: Mapping[str, str],
    key: set[str],
    deleted: str | None,
) -> list[str]:
    wrong = []
    for name, spark in {VERSION: "version", **columns}.items():
        if name not in found:
            wrong.append(f"has no column {name} ({'varchar(64)' if name == VERSION else spark})")
            continue
        kind, required, generated, collation = found[name]
        if not fits(spark, kind):
            wrong.append(f"has {name} as {kind}, which does not hold every {spark}")
        if collation and name != VERSION and not collation.startswith("utf8mb4"):
            wrong.append(f"has {name} in {collation}, which does not hold every text (utf8mb4)")
        if collation and name in key and not collation.endswith(_EXACT):
            wrong.append(
                f"has the key {name} in {collation}, which takes different texts for one "
                "(utf8mb4_nopad_bin in MariaDB, utf8mb4_0900_bin in MySQL)"
            )
        if "%" in name:
            wrong.append(f"has a per cent sign in the name {name}, which PyMySQL cannot write")
        if generated:
            wrong.append(f"generates {name} itself")
        if required and name not in {*key, deleted}:
            wrong.append(f"has {name} NOT NULL, and the query may give a null")
    wrong += [
        f"needs a value for {name}, which the rows do not have"
        for name, (_, required, generated, _) in found.items()
        if required and not generated and name not in columns and name != VERSION
    ]
    if VERSION in columns:
        wrong.append(f"keeps the versions of rows in {VERSION}, which is a column of the query too")
    return wrong


def upserted(table: str, names: Sequence[str], key: Sequence[str]) -> str:
    """Return the statement to upsert one row, its version last; PyMySQL repeats the values."""
    version = quoted(VERSION)
    later = f"{version} IS NULL OR {version} <= VALUES({version})"
    given = [quoted(name) for name in names if name not in key]
    columns = ", ".join([*map(quoted, names), version])
    values = "".join(f"{each} = IF({later}, VALUES({each}), {each}), " for each in given)
    # No number is so great (_TOO_GREAT): of a greater epoch no row may stand, and none is left out.
    outranked = f"LEFT({version}, 16) > LEFT(VALUES({version}), 16)"
    stands = f"IF({outranked}, LENGTH({version}) + ~0, {version})"
    values += f"{version} = IF({later}, VALUES({version}), {stands})"
    holes = ", ".join(["%s"] * (len(names) + 1))
    return (
        f"INSERT INTO {quoted(table)} ({columns}) VALUES ({holes}) "  # noqa: S608 - names in quotes
        f"ON DUPLICATE KEY UPDATE {values}"
    )


def values(rows: pa.Table, about: RowSchema, version: str) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows with their version, ordered by key, so that two committers seldom deadlock."""
    rows = with_tombstones(rows.sort_by([(name, "ascending") for name in about.key]), about)
    columns = []
    for column in rows.columns:
        if pa.types.is_timestamp(column.type) and column.type.tz is not None:
            column = column.cast(pa.timestamp("us", "UTC"))
        columns.append(column)
    for at in range(0, rows.num_rows, _ROWS):
        some = [column.slice(at, _ROWS).to_pylist() for column in columns]
        yield [(*row, version) for row in zip(*some, strict=True)]


def quoted(name: str) -> str:
    """Quote a name for a statement."""
    return "`" + name.replace("`", "``") + "`"


class MySqlDatabase(TableSession):
    """The database of a target; see :class:`TableSession`.

    Args:
        url: the database's URL.
        table: the table's name.
        timeout_s: seconds to connect.
    """

    ours = OURS

    def __init__(self, url: str, table: str, *, timeout_s: float) -> None:
        try:
            import pymysql
        except ModuleNotFoundError as error:
            raise lacking("mysql", "PyMySQL") from error
        super().__init__(pymysql, timeout_s=timeout_s)
        self._reach = parts_of(url)
        self._table = table

    @property
    def table(self) -> str:
        """See :attr:`TableSession.table`."""
        return self._table

    def rows(self, doing: str, statement: str, *given: object) -> list[Any]:
        """See :meth:`TableSession.rows`."""
        with self.asking(doing) as cursor:
            return rows_of(cursor, statement, *given)

    def has_ours(self, doing: str) -> bool:
        """See :meth:`TableSession.has_ours`."""
        return bool(self.rows(doing, HAS_OURS))

    def _ping(self) -> None:
        self.connected.ping(reconnect=False)

    def _require_witness(self) -> None:
        """Refuse a server that does not take writes, or may lose them (ConfigurationError)."""
        with self.connected.cursor() as cursor:
            address = f"{self._reach['host']}:{self._reach['port']}/{self._reach['database']}"
            settings = dict(rows_of(cursor, ABOUT))
            require_witness(settings, address)
            for statement in of_innodb(settings):
                cursor.execute(statement)

    @contextlib.contextmanager
    def asking(self, doing: str) -> Iterator[Any]:
        """Yield a cursor, on a connection that is opened again after every error.

        Raises:
            DeliveryError: the server refused, or did not answer.
            StoreError: it is a replica.
            ConfigurationError: it may lose what it has committed.
        """
        try:
            self._let_go_if_lost()
            if self.connected is None:
                self.connected = self.client.connect(
                    **self._reach,
                    autocommit=True,
                    charset="utf8mb4",
                    connect_timeout=max(2, int(self._timeout_s)),
                    read_timeout=300,
                    init_command=PINNED.format(locks_s=LOCKS_S, mode=MODE),
                    client_flag=self.client.constants.CLIENT.FOUND_ROWS,
                )
                with self.connected.cursor() as cursor:
                    cursor.execute(TRANSACTIONS)
                self._require_witness()
            with self.connected.cursor() as cursor:
                yield cursor
        except BaseException as error:
            self.close()
            if not isinstance(error, self.client.Error):
                raise
            raise DeliveryError(
                f"MySQL refused or did not answer while {doing} ({self.table}): "
                f"{reason(error)}. {left_by(doing)}"
            ) from error


# --- mysql rights ---------------------------------------------------------------------------------
# Causes besides columns by which a MySQL table could refuse or change a row: rights, triggers.


"""Arguments: the table, an event besides INSERT, the table again. To a user without the right
TRIGGER MySQL lists no trigger, which says nothing; MariaDB lists them."""
_DENIED = {1142, 1143, 1227, 1370}


def refuse_rights(cursor: Any, table: str, columns: Iterable[str], key: Sequence[str]) -> None:
    """Refuse a table that this user may not write to, or with triggers.

    Raises:
        ConfigurationError: with the missing right or the trigger, and what to do.
    """
    import pymysql

    names = list(columns)
    try:
        # EXPLAIN needs the rights of the statement itself; its values do not matter, so nulls.
        cursor.execute("EXPLAIN " + upserted(table, names, key), [None] * (len(names) + 1))
    except pymysql.MySQLError as error:
        if error.args[0] in _DENIED:
            raise ConfigurationError(
                f"This user may not write to table {table!r} as needed: GRANT SELECT, INSERT, "
                f"UPDATE, TRIGGER ON {table} (its version, {VERSION}, is compared and replaced)."
            ) from None
    if found := [name for (name,) in rows_of(cursor, TRIGGERS, table, "UPDATE", table)]:
        raise ConfigurationError(
            f"Table {table!r} has the trigger {', '.join(found)}, which could change or refuse a "
            "row once it is decided. Drop it, or deliver to a table of its own."
        )


# --- mysql ----------------------------------------------------------------------------------------


_DEADLOCK, _LOCK_TIMEOUT, _TOO_GREAT = 1213, 1205, 1690
_TRIES = 5


@dataclass(frozen=True)
class MySqlUpsert:
    """An upsert target: a table of one MySQL database.

    Attributes:
        url: ``mysql://user:password@host:3306/database``; a password in percent-encoding.
        table: the table's name in that database.
        limits: the greatest lengths of its values; see :meth:`told`.
    """

    url: str = field(repr=False)
    table: str
    limits: Limits | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        take_fields(self)

    def refuse(self, columns: Mapping[str, str], key: tuple[str, ...], deleted: str | None) -> None:
        """Refuse columns that the table lacks, or could refuse once they are decided.

        Raises:
            ConfigurationError: with the columns, and what to do.
            DeliveryError: the database does not answer.
        """
        database = MySqlDatabase(self.url, self.table, timeout_s=30.0)
        with closing(database), database.asking("looking at the table") as cursor:
            refuse_table(cursor, self.table, columns, key, deleted)
            refuse_rights(cursor, self.table, columns, key)

    def with_limits(self) -> MySqlUpsert:
        """See :meth:`UpsertTarget.told`: return this table with its limits.

        Raises:
            DeliveryError: the database does not answer.
        """
        database = MySqlDatabase(self.url, self.table, timeout_s=30.0)
        with closing(database), database.asking("looking at the table") as cursor:
            return replace(self, limits=limits(cursor, self.table))

    def refuse_rows(self, rows: pa.RecordBatch, key: Sequence[str]) -> None:
        """Refuse values that MySQL cannot hold, or that are too long for this table."""
        del key  # an index of whole columns has room for all that they hold
        refuse_numbers(rows, "MySQL")
        refuse_times(rows, "MySQL", first_year=1000)
        refuse_texts(rows, "MySQL")
        if self.limits is not None:
            refuse_longer(rows, self.limits)
            refuse_long_rows(rows, self.limits)

    def open(self, *, timeout_s: float) -> MySqlTarget:
        """Return a connection to the target; nothing is connected yet."""
        return MySqlTarget(self.url, self.table, timeout_s=timeout_s)


class MySqlTarget(TableTarget):
    """See :class:`~airflow_eos.kinds.upsert.target.UpsertConnection`."""

    system = ("mysql", "MySQL")
    _session: MySqlDatabase

    def __init__(self, url: str, table: str, *, timeout_s: float) -> None:
        self._session = MySqlDatabase(url, table, timeout_s=timeout_s)
        self.asking = self._session.asking
        self._table = table

    def check(self) -> None:
        """Create our own table where it is missing; refuse a server that may lose writes.

        Raises:
            ConfigurationError: the user may not create it; with the statement for who may.
        """
        if self._session.has_ours("looking at the server"):
            return
        with self.asking("looking at the server") as cursor:
            try:
                cursor.execute(CREATE_OURS)
            except self._session.client.MySQLError as error:
                if number_of(error) not in DENIED:
                    raise
                raise ddl_refused(
                    f"The table {OURS} cannot be made: {reason(error)}.",
                    f"{CREATE_OURS.strip()};\nGRANT SELECT, INSERT, UPDATE ON {OURS} to the user.",
                ) from error

    def ensure_instance_id(self) -> str:
        """See :meth:`UpsertConnection.ensure_instance_id`."""
        self._session.rows("marking the target", ENSURE_INSTANCE_ID, self._table, uuid.uuid4().hex)
        return self.instance_id() or ""

    def claim(self, location: str, checkpoint: str) -> None:
        """See :meth:`UpsertConnection.claim`."""
        if self.owner() is not None:
            return  # the update would wait for whoever writes: it locks the row before it looks
        claim = CLAIM.format(rows=quoted(self._table))
        self._session.rows("claiming the target", claim, location, checkpoint, self._table)

    def note(self, note: Note, checkpoint: str) -> None:
        """See :meth:`UpsertConnection.note`."""
        with self.asking("noting a decision") as cursor:
            cursor.execute("BEGIN")
            cursor.execute(NOTED, (self._table, checkpoint))
            stands = cursor.fetchone()
            if stands and (stands[0] is None or (note.batch, note.attempt) >= stands):
                given = (note.batch, note.attempt, note.decision, self._table)
                cursor.execute(NOTE, given)
            cursor.execute("COMMIT")
        if not stands:
            raise self.not_ours(self.owner())

    def life(self) -> str:
        """See :meth:`UpsertConnection.life`: the same after a restart, which loses no commit."""
        return str(sorted(self._session.rows("asking which server it is", LIFE)))

    def count(self, known: int) -> int | None:
        """See :meth:`UpsertConnection.count`."""
        with self.asking("counting what was written") as cursor:
            if not cursor.execute(COUNT, (self._table, known)):
                return None
            cursor.execute(COUNTED)
            return int(cursor.fetchone()[0])

    def apply(self, rows: pa.Table, about: RowSchema, checkpoint: str, order: str) -> int:
        """See :meth:`UpsertConnection.apply`; returns 0, since MySQL does not count older rows."""

        def version_of(cursor: Any) -> str:
            cursor.execute(OWNER + " LOCK IN SHARE MODE", (self._table,))
            found = cursor.fetchone()
            if not found or found[1] != checkpoint:
                cursor.execute("ROLLBACK")
                raise self.not_ours(TargetOwner(*found) if found else None)
            return epoch_text(found[2]) + order

        self._write(rows, about, version_of)
        return 0

    def tried(self, rows: pa.Table, about: RowSchema) -> None:
        """See :meth:`UpsertConnection.tried`."""

        def version_of(cursor: Any) -> str:
            owner = rows_of(cursor, OWNER, self._table)
            if not owner:
                raise self.not_ours(None)
            return epoch_text(owner[0][2]) + LAST_ORDER

        self._write(rows, about, version_of, is_trial=True)

    def _write(
        self,
        rows: pa.Table,
        about: RowSchema,
        version_of: Callable[[Any], str],
        *,
        is_trial: bool = False,
    ) -> None:
        """Write the rows in a transaction, as often as a deadlock or a lock lets nobody."""
        rows = one_of_each_number(rows, about.key)
        statement = upserted(self._table, rows.column_names, about.key)
        for left in reversed(range(_TRIES)):
            with self.asking(TRYING if is_trial else "writing rows") as cursor:
                [(packet,)] = rows_of(cursor, "SELECT @@max_allowed_packet")
                cursor.max_stmt_length = min(cursor.max_stmt_length, packet - _PACKET_HEAD)
                cursor.execute("BEGIN")
                version = version_of(cursor)
                try:
                    for some in values(rows, about, version):
                        again = some[:is_trial]  # a row that stands now is replaced
                        cursor.executemany(statement, [*some, *again])
                    cursor.execute("ROLLBACK" if is_trial else "COMMIT")
                except self._session.client.Error as error:
                    if error.args[0] == _TOO_GREAT:
                        raise self.outranked() from None  # the cause quotes values of the row
                    # Another committer writes the same rows; MySQL may not have rolled back yet.
                    if error.args[0] not in {_DEADLOCK, _LOCK_TIMEOUT} or not left:
                        raise
                    cursor.execute("ROLLBACK")
                else:
                    break
