"""Upserts into a table of MySQL or MariaDB.

The table is InnoDB's, its primary key is just the key columns, and ``eos_version`` (varchar) holds
the version of each row, which a statement assigns last: MySQL assigns from left to right, and each
column looks at the version that stands. What owns it is a row of ``airflow_eos_upserts``, a small
table of ours in the same database. One transaction a work, only while this checkpoint is the owner.

A deleted row stays as a tombstone: its flag, its key and its version, all else null. Times are
written in UTC.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.sql.servers import ABOUT, PINNED, TRANSACTIONS, parts_of, require_witness
from airflow_eos.kinds.upsert import mysql_sql as say
from airflow_eos.kinds.upsert.columns import (
    VERSION,
    Limits,
    refuse_long_rows,
    refuse_longer,
    refuse_numbers,
    refuse_texts,
    refuse_times,
)
from airflow_eos.kinds.upsert.mysql_sql import upserted
from airflow_eos.kinds.upsert.target import (
    Idle,
    Lacking,
    TargetOwner,
    epoch_text,
    not_ours,
    one_of_each_number,
)
from airflow_eos.protocol.participant import Note

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.kinds.upsert.target import RowSchema


class MySqlDatabase:
    """The database of a target.

    Args:
        url: how it is reached.
        table: its name, for people.
        timeout_s: seconds to connect.
    """

    def __init__(self, url: str, table: str, *, timeout_s: float) -> None:
        try:
            import pymysql
        except ModuleNotFoundError as error:
            raise ConfigurationError(str(Lacking("mysql", "PyMySQL"))) from error
        self.errors: Any = pymysql
        self._reach = parts_of(url)
        self._table = table
        self._timeout_s = timeout_s
        self._idle = Idle()
        self._connected: Any = None

    def close(self) -> None:
        """Close the connection, which rolls back what was not committed."""
        if self._connected is not None:
            with contextlib.suppress(self.errors.Error):
                self._connected.close()
            self._connected = None

    def _let_go_if_lost(self) -> None:
        """The server closes what nobody has used for ``wait_timeout``."""
        if self._idle.ends() and self._connected is not None:
            try:
                self._connected.ping(reconnect=False)
            except self.errors.Error:
                self.close()

    def _require_witness(self) -> None:
        """One server that takes writes, and loses none."""
        with self._connected.cursor() as cursor:
            cursor.execute(ABOUT)
            place = f"{self._reach['host']}:{self._reach['port']}/{self._reach['database']}"
            require_witness(dict(cursor.fetchall()), place)

    @contextlib.contextmanager
    def asking(self, doing: str) -> Iterator[Any]:
        """A cursor, on a connection that is opened again after every error.

        Raises:
            DeliveryError: the server refused, or did not answer.
            ConfigurationError: it is a replica, or may lose what it has committed.
        """
        try:
            self._let_go_if_lost()
            if self._connected is None:
                self._connected = self.errors.connect(
                    **self._reach,
                    autocommit=True,
                    charset="utf8mb4",
                    connect_timeout=max(2, int(self._timeout_s)),
                    read_timeout=300,
                    init_command=PINNED.format(locks_s=say.LOCKS_S, mode=say.MODE),
                    client_flag=self.errors.constants.CLIENT.FOUND_ROWS,
                )
                with self._connected.cursor() as cursor:
                    cursor.execute(TRANSACTIONS)
                self._require_witness()
            with self._connected.cursor() as cursor:
                yield cursor
        except BaseException as error:
            self.close()
            if not isinstance(error, self.errors.Error):
                raise
            number = error.args[0] if error.args else "?"  # its text may hold values of rows
            raise DeliveryError(
                f"MySQL refused or did not answer while {doing} ({self._table}): "
                f"{type(error).__name__} {number}. What was written is not known, and writing it "
                "again is harmless: put that right, then start the query again or run a recovery."
            ) from error


# --- mysql_rights ---------------------------------------------------------------------------------
# What of a table in MySQL could refuse or change a row beside its columns: rights, triggers.


_TRIGGERS = """
SELECT DISTINCT trigger_name FROM information_schema.triggers
WHERE event_object_schema = database() AND event_object_table = %s
AND event_manipulation IN ('INSERT', 'UPDATE')
"""
_DENIED = {1142, 1143, 1227, 1370}


def refuse_rights(cursor: Any, table: str, columns: Iterable[str], key: Sequence[str]) -> None:
    """Refuse a table that this user may not write to, or with triggers.

    Raises:
        ConfigurationError: what was found, and what to do.
    """
    import pymysql

    names = list(columns)
    try:
        # Who may not carry it out may not have it explained; nulls are no matter of rights.
        cursor.execute("EXPLAIN " + upserted(table, names, key), [None] * (len(names) + 1))
    except pymysql.MySQLError as error:
        if error.args[0] in _DENIED:
            raise ConfigurationError(
                f"This user may not write to table {table!r} as needed: GRANT SELECT, INSERT, "
                f"UPDATE ON {table} (its version, {VERSION}, is compared and replaced)."
            ) from None
    cursor.execute(_TRIGGERS, (table,))
    if found := [name for (name,) in cursor.fetchall()]:
        raise ConfigurationError(
            f"Table {table!r} has the trigger {', '.join(found)}, which could change or refuse a "
            "row once it is decided. Drop it, or deliver to a table of its own."
        )


# --- mysql ----------------------------------------------------------------------------------------
# Upserts into a table of MySQL or MariaDB.
#
# The table is InnoDB's, its primary key is just the key columns, and ``eos_version`` (varchar)
# holds
# the version of each row, which a statement assigns last: MySQL assigns from left to right, and
# each
# column looks at the version that stands. What owns it is a row of ``airflow_eos_upserts``, a small
# table of ours in the same database. One transaction a work, only while this checkpoint is the
# owner.
#
# A deleted row stays as a tombstone: its flag, its key and its version, all else null. Times are
# written in UTC.


_DEADLOCK, _LOCK_TIMEOUT = 1213, 1205
_TRIES = 5


@dataclass(frozen=True)
class MySqlUpsert:
    """A table of one database.

    Attributes:
        url: ``mysql://user:password@host:3306/database``; a password in percent-encoding.
        table: its name in that database.
        limits: how long its values may be; see :meth:`told`.
    """

    url: str = field(repr=False)
    table: str
    limits: Limits | None = field(default=None, repr=False, compare=False)

    def refuse(self, columns: Mapping[str, str], key: tuple[str, ...], deleted: str | None) -> None:
        """Refuse columns that the table has not, or that it could refuse once they are decided.

        Raises:
            ConfigurationError: which, and what to do.
            DeliveryError: the database does not answer.
        """
        target = self.open(timeout_s=30.0)
        try:
            with target.asking("looking at the table") as cursor:
                say.refuse_table(cursor, self.table, columns, key, deleted)
                refuse_rights(cursor, self.table, columns, key)
        finally:
            target.close()

    def told(self) -> MySqlUpsert:
        """This table, with how long its values may be: see :meth:`UpsertTarget.told`.

        Raises:
            DeliveryError: the database does not answer.
        """
        target = self.open(timeout_s=30.0)
        try:
            with target.asking("looking at the table") as cursor:
                return replace(self, limits=say.limits(cursor, self.table))
        finally:
            target.close()

    def refuse_rows(self, rows: pa.RecordBatch, key: Sequence[str]) -> None:
        """Refuse what no MySQL holds, and what is too long for this table."""
        del key  # an index over all of its columns is as long as they are
        refuse_numbers(rows, "MySQL")
        refuse_times(rows, "MySQL", first_year=1000)
        refuse_texts(rows, "MySQL")
        if self.limits is not None:
            refuse_longer(rows, self.limits)
            refuse_long_rows(rows, self.limits)

    def open(self, *, timeout_s: float) -> MySqlTarget:
        """Reach it; nothing is asked yet."""
        return MySqlTarget(self.url, self.table, timeout_s=timeout_s)


class MySqlTarget:
    """See :class:`~airflow_eos.kinds.upsert.target.UpsertConnection`."""

    def __init__(self, url: str, table: str, *, timeout_s: float) -> None:
        self._session = MySqlDatabase(url, table, timeout_s=timeout_s)
        self.asking = self._session.asking
        self._table = table

    @property
    def address(self) -> Mapping[str, str]:
        """The table, with its database."""
        return {"system": "mysql", "target": self._table}

    @property
    def give_up(self) -> str:
        """Keeps the mark and the last epoch."""
        return say.GIVE_UP.replace("%s", f"'{self._table}'")

    def go_on(self, tally: int) -> str:
        """See :meth:`UpsertConnection.go_on`."""
        return say.GO_ON.format(tally, self._table)

    def check(self) -> None:
        """Our table is there, in a server that keeps it."""
        with self.asking("looking at the server") as cursor:
            cursor.execute(say.CREATE_OURS)

    def marked(self) -> str:
        """See :meth:`UpsertConnection.marked`."""
        with self.asking("marking the target") as cursor:
            cursor.execute(say.MARK, (self._table, uuid.uuid4().hex))
        return self.mark() or ""

    def mark(self) -> str | None:
        """See :meth:`UpsertConnection.mark`."""
        with self.asking("reading the mark of the target") as cursor:
            if not cursor.execute(say.HAS_OURS):
                return None
            cursor.execute(say.MARK_OF, (self._table,))
            found = cursor.fetchone()
        return found[0] if found else None

    def claim(self, location: str, checkpoint: str) -> None:
        """See :meth:`UpsertConnection.claim`."""
        with self.asking("claiming the target") as cursor:
            claim = say.CLAIM.format(rows=say.quoted(self._table))
            cursor.execute(claim, (location, checkpoint, self._table))

    def owner(self) -> TargetOwner | None:
        """See :meth:`UpsertConnection.owner`."""
        with self.asking("reading whose the target is") as cursor:
            cursor.execute(say.OWNER, (self._table,))
            found = cursor.fetchone()
        return TargetOwner(*found) if found else None

    def note(self, note: Note, checkpoint: str) -> None:
        """See :meth:`UpsertConnection.note`."""
        with self.asking("noting a decision") as cursor:
            cursor.execute("BEGIN")
            cursor.execute(say.NOTED, (self._table, checkpoint))
            stands = cursor.fetchone()
            if stands and (stands[0] is None or (note.batch, note.attempt) >= stands):
                given = (note.batch, note.attempt, note.decision, self._table)
                cursor.execute(say.NOTE, given)
            cursor.execute("COMMIT")
        if not stands:
            raise self._not_ours(self.owner())

    def newest(self) -> Note | None:
        """See :meth:`UpsertConnection.newest`."""
        with self.asking("reading how far the target has come") as cursor:
            cursor.execute(say.NEWEST, (self._table,))
            found = cursor.fetchone()
        if not found:
            return None
        batch, attempt, decision = found
        return Note(batch, attempt, decision, pipeline="")

    def life(self) -> str:
        """See :meth:`UpsertConnection.life`: one that starts again has all that it committed."""
        with self.asking("asking which server it is") as cursor:
            cursor.execute(say.LIFE)
            return str(sorted(cursor.fetchall()))

    def tally(self) -> int:
        """See :meth:`UpsertConnection.tally`."""
        with self.asking("reading how far the target has counted") as cursor:
            cursor.execute(say.TALLY, (self._table,))
            found = cursor.fetchone()
        return int(found[0]) if found else 0

    def count(self, known: int) -> int | None:
        """See :meth:`UpsertConnection.count`."""
        with self.asking("counting what was written") as cursor:
            if not cursor.execute(say.COUNT, (self._table, known)):
                return None
            cursor.execute(say.COUNTED)
            return int(cursor.fetchone()[0])

    def apply(self, rows: pa.Table, about: RowSchema, checkpoint: str, order: str) -> int:
        """See :meth:`UpsertConnection.apply`; MySQL does not tell how many rows were older: 0."""
        rows = one_of_each_number(rows, about.key)
        statement = say.upserted(self._table, rows.column_names, about.key)
        for left in reversed(range(_TRIES)):
            with self.asking("writing rows") as cursor:
                cursor.execute("BEGIN")
                cursor.execute(say.OWNER + " LOCK IN SHARE MODE", (self._table,))
                found = cursor.fetchone()
                if not found or found[1] != checkpoint:
                    cursor.execute("ROLLBACK")
                    raise self._not_ours(TargetOwner(*found) if found else None)
                version = epoch_text(found[2]) + order
                try:
                    for some in say.values(rows, about, version):
                        cursor.executemany(statement, some)
                    cursor.execute("COMMIT")
                except self._session.errors.OperationalError as error:
                    # With another committer of the same rows; MySQL has rolled back, or not.
                    if error.args[0] not in {_DEADLOCK, _LOCK_TIMEOUT} or not left:
                        raise
                    cursor.execute("ROLLBACK")
                else:
                    break
        return 0

    def close(self) -> None:
        """See :meth:`MySqlDatabase.close`."""
        self._session.close()

    def _not_ours(self, owner: TargetOwner | None) -> Exception:
        return not_ours(f"Table {self._table!r} in MySQL", owner, self.give_up)
