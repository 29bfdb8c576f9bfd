"""PostgreSQL as a participant: one transaction commits a task's rows together with their witness.

Two forms, which may both be in flight: ``prepared`` (``PREPARE TRANSACTION``, whose gid is the
key) and ``kept`` (rows in the checkpoint, which one transaction COPYs). A missing witness means
ABORTED only on the server that the work was prepared on, or one that took over from it; see
:meth:`PostgresParticipant.absent`.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors, sql

from airflow_eos.core.protocol.decision import Outcome, PreparedWork, WorkIdentity
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import CheckpointFormatError, ConfigurationError, StoreError
from airflow_eos.kinds.postgres.session import (
    Connection,
    PostgresConnection,
    checked_dsn,
    durable,
    refuses_rows,
)
from airflow_eos.kinds.sql.kept import KEPT, about, kept_at, pieces_of
from airflow_eos.kinds.sql.keys import KeysOfName
from airflow_eos.kinds.sql.participant import (
    OwnershipTable,
    SqlParticipant,
    ddl_published,
    ddl_refused,
)
from airflow_eos.kinds.sql.servers import published

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.store import CheckpointStore

DEFAULT_SCHEMA = "airflow_eos"
_LOCK = 7_294_311_208_554_001  # an advisory lock, so that two first starts do not create at once

_NEWEST = 2**63 - 1  # the generation of a witness that a person writes: never below the floor
_TABLES = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.names (
    name text PRIMARY KEY, mark text NOT NULL, owner text,
    batch bigint, attempt integer, decision text, generation bigint NOT NULL DEFAULT 0,
    counted_batch bigint);
CREATE TABLE IF NOT EXISTS {schema}.works (
    key text PRIMARY KEY, name text NOT NULL, rows bigint NOT NULL,
    generation bigint NOT NULL DEFAULT {newest});
CREATE INDEX IF NOT EXISTS works_by_age ON {schema}.works (name, generation);
"""


# The mark is also a witness: so a table that has lost all witnesses is noticed.
_MADE = """
WITH made AS (
  INSERT INTO {names} (name, mark) VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING name, mark)
INSERT INTO {works} (key, name, rows) SELECT mark, name, 0 FROM made
"""


@dataclass(frozen=True)
class PostgresTableNames(KeysOfName):
    """The keys of a name, and our tables; makes statements with quoted names."""

    schema: str

    @property
    def digits(self) -> str:
        """See :attr:`KeysOfName.digits`: PostgreSQL lists prepared transactions of all schemas."""
        return hashlib.sha256(self.schema.encode()).hexdigest()[:8]

    def statement(self, text: str, **parts: sql.Composable) -> sql.Composed:
        """Return ``text`` with {names}, {works}, {schema} and ``parts`` filled in."""
        ours = {table: sql.Identifier(self.schema, table) for table in ("names", "works")}
        return sql.SQL(text).format(schema=sql.Identifier(self.schema), **ours, **parts)


def make_tables(session: PostgresConnection, tables: PostgresTableNames) -> str:
    """Create missing tables; return the mark of the name, a random id that never changes.

    Raises:
        ConfigurationError: the role may not, or an event trigger forbids it, or subscribers of a
            publication would miss them; with the statements for somebody who may.
    """

    def make(connection: Connection) -> str:
        if not _are_there(connection, tables):
            _make(connection, tables)
        with durable(connection):
            connection.execute(tables.statement(_MADE), [tables.name, uuid.uuid4().hex])
        found = connection.execute(
            tables.statement("SELECT mark FROM {names} WHERE name = %s"), [tables.name]
        ).fetchone()
        assert found is not None  # noqa: S101 - it was inserted, and nobody deletes it
        return str(found[0])

    return session.run("making the tables of the pipeline", make)


def _make(connection: Connection, tables: PostgresTableNames) -> None:
    statements = tables.statement(_TABLES, newest=sql.Literal(_NEWEST))
    by_hand = (
        f"{statements.as_string(connection)}\nGRANT USAGE ON SCHEMA … TO the role, and SELECT, "
        "INSERT, UPDATE, DELETE on its tables."
    )
    if names := published(connection, tables.schema):
        raise ddl_published(names, by_hand)
    try:
        with durable(connection):
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            connection.execute(statements)
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:  # a right, or an event trigger, which has any code
        said = f"{error.diag.message_primary} ({error.sqlstate})"
        raise ddl_refused(
            f"The tables of schema {tables.schema!r} cannot be made: {said}.", by_hand
        ) from error


def _are_there(connection: Connection, tables: PostgresTableNames) -> bool:
    found = connection.execute(
        "SELECT count(*) FROM pg_tables WHERE schemaname = %s AND tablename = ANY(%s)",
        [tables.schema, ["names", "works"]],
    ).fetchone()
    return found == (2,)


# --- works ----------------------------------------------------------------------------------------
# Statements that end prepared work, or tell how it ended; each may run twice at any point.
#
# The order of the questions is the proof. A prepared transaction leaves ``pg_prepared_xacts`` after
# its rows can be seen, and kept rows are removed after they can. So a reader that asks for the
# witness second misses no commit in between: where neither is found, the work was rolled back, for
# good, since it was prepared before its decision and has its own key.


PREPARED = "prepared"
"""The form of work that is a prepared transaction; the other one is KEPT."""
_BUSY_S = 10.0
_PAUSE_S = 0.05
_OPEN = """
SELECT gid, (extract(epoch FROM prepared) * 1000)::bigint, '' FROM pg_prepared_xacts
WHERE database = current_database() AND starts_with(gid, %s || '-')
"""
_WAITING = "SELECT gid FROM pg_prepared_xacts WHERE gid = ANY(%s)"
_WITNESSED = "SELECT key, rows FROM {works} WHERE key = ANY(%s)"
_WITNESS = """
INSERT INTO {works} (key, name, rows, generation) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
TARGET = """
SELECT format('%%I.%%I', n.nspname, c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_PARTS = """
SELECT c.oid::regclass::text, c.relkind::text, c.relpersistence::text FROM pg_class c
WHERE c.oid = to_regclass(%(t)s) OR c.oid IN (SELECT relid FROM pg_partition_tree(%(t)s::regclass))
"""
_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
STATEMENT = "statement"
"""What is noted beside kept rows: the COPY that they were tried with."""


def require_kept(connection: Connection, table: str) -> None:
    """Refuse a table that may lose rows that it has taken (ConfigurationError)."""
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


def end_prepared(connection: Connection, verb: str, key: str) -> bool:
    """Commit or roll back a prepared transaction (``verb``); False where there is none by now."""
    statement = sql.SQL(f"{verb} PREPARED {{gid}}").format(gid=sql.Literal(key))
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute(statement)
        except errors.UndefinedObject:
            return False
        except errors.ObjectNotInPrerequisiteState as busy:
            # Another session is ending it, perhaps our own on a connection that was lost.
            if time.monotonic() > deadline:
                raise StoreError(
                    f"The prepared transaction {key} has been ended by another session for "
                    f"{_BUSY_S:.0f} s (a synchronous standby that does not answer?). Nothing was "
                    "guessed: look at pg_stat_activity, then try again."
                ) from busy
            time.sleep(_PAUSE_S)
        else:
            return True


def copied(connection: Connection, stream: bytes, where: str) -> int:
    """COPY kept rows to their table, as they were tried; return how many it has taken."""
    cursor = connection.cursor()
    with cursor.copy(about(stream, where)[STATEMENT].encode()) as copy:
        for each in pieces_of(stream, where):
            copy.write(each)
    return cursor.rowcount


# --- ownership table ------------------------------------------------------------------------------


class PostgresOwnershipTable(OwnershipTable):
    """See :class:`~airflow_eos.kinds.sql.participant.OwnershipTable`."""

    _own: PostgresTableNames

    @property
    def tables(self) -> tuple[str, str]:
        """See :attr:`OwnershipTable.tables`."""
        return f"{self._own.schema}.names", f"{self._own.schema}.works"

    def _read(self, connection: Connection, statement: str, *given: Any) -> list[tuple[Any, ...]]:
        return connection.execute(self._own.statement(statement), given).fetchall()

    def _write(self, connection: Connection, *changes: tuple[str, Sequence[Any]]) -> None:
        with durable(connection):
            for statement, given in changes:
                connection.execute(self._own.statement(statement), given)

    def clock_ms(self) -> int | None:
        """Return the server's time, ms since the epoch; None where the checkpoint's dates work."""
        if self._kept is not None:
            return None
        [(now_ms,)] = self._session.run(
            "asking for the time", lambda c: c.execute(_CLOCK).fetchall()
        )
        return int(now_ms)

    def _waiting(self, connection: Connection, keys: Sequence[str]) -> set[str]:
        prepared = {key for (key,) in connection.execute(_WAITING, [[*keys]])}
        return prepared | super()._waiting(connection, keys)

    def _witnessed(self, connection: Connection, keys: Sequence[str]) -> dict[str, int]:
        found = connection.execute(self._own.statement(_WITNESSED), [[*keys]])
        return dict(found.fetchall())

    def witness(self, connection: Connection, key: str, rows: int, generation: int) -> bool:
        """See :meth:`OwnershipTable.witness`."""
        given = [key, self.name, rows, generation]
        return connection.execute(self._own.statement(_WITNESS), given).rowcount == 1

    def _listed(self, connection: Connection) -> list[tuple[str, int, str]]:
        return connection.execute(_OPEN, [self.name]).fetchall() + super()._listed(connection)


# --- participant ----------------------------------------------------------------------------------


KIND = "postgres"


class PostgresParticipant(SqlParticipant):
    """See :class:`airflow_eos.core.protocol.participant.Participant`."""

    kind = KIND
    book = PostgresOwnershipTable
    client_error = psycopg.Error
    _book: PostgresOwnershipTable
    _session: PostgresConnection
    _tables: PostgresTableNames

    def check_detail(self, work: PreparedWork) -> None:
        """See :meth:`SqlParticipant.check_detail`."""
        detail = work.detail
        if (
            detail.get("form") not in (PREPARED, KEPT)
            or not isinstance(detail.get("system"), str)
            or not isinstance(detail.get("timeline"), int)
        ):
            raise CheckpointFormatError(
                f"Work {work.identity} has the detail {detail}: expected form ({PREPARED} or "
                f"{KEPT}), system and timeline. Was the checkpoint written by a newer release? "
                "Then use that one."
            )

    def require_kept(self, table: str) -> None:
        """See :meth:`SqlParticipant.require_kept`."""
        self._session.run("looking at the table", lambda c: require_kept(c, table))

    def transaction(self, connection: Connection) -> AbstractContextManager[None]:
        """See :meth:`SqlParticipant.transaction`."""
        return durable(connection)

    def insert(self, connection: Connection, stream: bytes, where: str) -> int:
        """See :meth:`SqlParticipant.insert`."""
        return copied(connection, stream, where)

    def refusal(self, error: psycopg.Error) -> str | None:
        """See :meth:`SqlParticipant.refusal`."""
        gone = isinstance(error, psycopg.ProgrammingError)  # a table or a column, since the trial
        if isinstance(error, errors.InsufficientPrivilege) or not (refuses_rows(error) or gone):
            return None
        return f"{error.diag.message_primary} ({error.sqlstate})"

    def end(self, work: PreparedWork) -> None:
        """See :meth:`SqlParticipant.end`."""
        if work.detail["form"] == KEPT:
            super().end(work)
        else:
            self._session.run("committing", lambda c: end_prepared(c, "COMMIT", work.key))

    def remove(self, key: str) -> bool:
        """See :meth:`SqlParticipant.remove`."""
        rolled = self._session.run("rolling back", lambda c: end_prepared(c, "ROLLBACK", key))
        return rolled or super().remove(key)

    def clock_ms(self) -> int | None:
        """See :class:`TellsTime`: return the server's time."""
        return self._book.clock_ms()

    def _asked(
        self, works: Sequence[PreparedWork]
    ) -> tuple[dict[WorkIdentity, Outcome], list[str], list[str]]:
        # What waits in the checkpoint would be committed on a server left behind, and removed.
        self.check(works)
        for work in works:
            self._require_not_left_behind(work)
        return super()._asked(works)

    def absent(self, work: PreparedWork) -> Outcome:
        """Return ABORTED on the server that prepared the work or took over; UNKNOWN on another.

        On a server that took over with a later timeline, missing rows were lost for good.
        """
        if work.detail["system"] != self._session.history.system:
            return Outcome.UNKNOWN
        return super().absent(work)

    def _require_not_left_behind(self, work: PreparedWork) -> None:
        history = self._session.history
        if work.detail["system"] == history.system and work.detail["timeline"] > history.timeline:
            raise StoreError(
                f"{self._session.address} was left behind by a failover: it is on timeline "
                f"{history.timeline}, and {work.identity} was prepared on timeline "
                f"{work.detail['timeline']}. Nothing was concluded. Connect to the primary."
            )


def connect(
    member: Member,
    how: object,
    *,
    store: CheckpointStore | None = None,
    timeout_s: float = 30.0,
) -> PostgresParticipant:
    """Connect to the database of ``member`` by ``how``: a connection string, or its keywords.

    Raises:
        ConfigurationError: ``how`` is missing, or the address is not one of PostgreSQL.
        StoreError: the database does not answer, or is another one.
    """
    address = member.address
    if not address.keys() >= {"name", "schema", "mark"}:
        raise ConfigurationError(f"{member}: eos/pipeline.json is not of postgres.")
    if not how:
        raise ConfigurationError(
            f"{member}: give how to reach its database, by its name or its kind, such as "
            "reach={'postgres': 'host=… dbname=… user=…'}; the checkpoint holds no passwords."
        )
    session = PostgresConnection(checked_dsn(how), timeout_s=timeout_s)
    tables = PostgresTableNames(address["name"], address["schema"])
    participant = PostgresParticipant(
        session,
        tables,
        name=member.name,
        instance_id=address["mark"],
        kept=kept_at(store, member.name, tables),
    )
    return participant.reached()
