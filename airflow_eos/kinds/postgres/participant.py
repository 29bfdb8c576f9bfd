"""PostgreSQL as a participant: one transaction commits a task's rows together with their witness.

Two forms, which may both be in flight: ``prepared`` (``PREPARE TRANSACTION``, whose gid is the
key) and ``staged`` (rows in a table of the work's own, moved by one transaction). A missing witness
means ABORTED only on the server that the work was prepared on, or one that took over from it; see
:meth:`PostgresParticipant.absent`.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors, sql

from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    DecisionNeededError,
    StoreError,
)
from airflow_eos.kinds.postgres.session import (
    Connection,
    PostgresConnection,
    checked_dsn,
    durable,
    refuses_rows,
)
from airflow_eos.kinds.sql.participant import (
    KeysOfName,
    OwnershipTable,
    SqlParticipant,
    cannot_be_moved,
    generation_of,
    would_not_all_arrive,
)
from airflow_eos.protocol.decision import Outcome, PreparedWork
from airflow_eos.protocol.participant import Member

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore

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
CREATE TABLE IF NOT EXISTS {schema}.staged (
    key text PRIMARY KEY, name text NOT NULL, target text NOT NULL, rows bigint NOT NULL,
    opened_at_ms bigint NOT NULL DEFAULT (extract(epoch FROM now()) * 1000)::bigint);
"""


# The mark is also a witness: so a table that has lost all witnesses is noticed.
_MADE = """
WITH made AS (
  INSERT INTO {names} (name, mark) VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING name, mark)
INSERT INTO {works} (key, name, rows) SELECT mark, name, 0 FROM made
"""


@dataclass(frozen=True)
class PostgresTableNames(KeysOfName):
    """The keys of a name, and the tables for its rows; makes statements with quoted names."""

    schema: str

    @property
    def place(self) -> str:
        """See :attr:`KeysOfName.place`: PostgreSQL lists prepared transactions of all schemas."""
        return hashlib.sha256(self.schema.encode()).hexdigest()[:8]

    def statement(self, text: str, **parts: sql.Composable) -> sql.Composed:
        """Return ``text`` with {names}, {works}, {staged}, {schema} and ``parts`` filled in."""
        ours = {table: sql.Identifier(self.schema, table) for table in ("names", "works", "staged")}
        return sql.SQL(text).format(schema=sql.Identifier(self.schema), **ours, **parts)

    def holding(self, key: str) -> sql.Identifier:
        """Return the table in which the rows of staged work wait.

        Raises:
            CheckpointFormatError: ``key`` is no key of this name.
        """
        return sql.Identifier(self.schema, f"staged_{self.own_part(key)}")


def make_tables(session: PostgresConnection, tables: PostgresTableNames) -> str:
    """Create missing tables; return the mark of the name, a random id that never changes.

    Raises:
        ConfigurationError: the role may not; with the statements for somebody who may.
    """

    def make(connection: Connection) -> str:
        if not _are_there(connection, tables):
            statements = tables.statement(_TABLES, newest=sql.Literal(_NEWEST))
            try:
                with durable(connection):
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
                    connection.execute(statements)
            except errors.InsufficientPrivilege as error:
                raise ConfigurationError(
                    f"The role may not create the tables of schema {tables.schema!r} "
                    f"({error.diag.message_primary}). Let somebody who may run this once:\n"
                    f"{statements.as_string(connection)}\nGRANT USAGE ON SCHEMA … TO the role, "
                    "and SELECT, INSERT, UPDATE, DELETE on its tables (CREATE on the schema too "
                    "for two_phase=False)."
                ) from error
        with durable(connection):
            connection.execute(tables.statement(_MADE), [tables.name, uuid.uuid4().hex])
        found = connection.execute(
            tables.statement("SELECT mark FROM {names} WHERE name = %s"), [tables.name]
        ).fetchone()
        assert found is not None  # noqa: S101 - it was inserted, and nobody deletes it
        return str(found[0])

    return session.run("making the tables of the pipeline", make)


def _are_there(connection: Connection, tables: PostgresTableNames) -> bool:
    found = connection.execute(
        "SELECT count(*) FROM pg_tables WHERE schemaname = %s AND tablename = ANY(%s)",
        [tables.schema, ["names", "works", "staged"]],
    ).fetchone()
    return found == (3,)


# --- works ----------------------------------------------------------------------------------------
# Statements that end prepared work, or tell how it ended; each may run twice at any point.
#
# The order of the questions is the proof. A prepared transaction leaves ``pg_prepared_xacts`` after
# its rows can be seen, and staged rows leave ``staged`` in the transaction that moves them. So a
# reader that asks for the witness second misses no commit in between: where neither is found, the
# work was rolled back, for good, since it was prepared before its decision and has its own key.


PREPARED, STAGED = "prepared", "staged"
"""The forms of work: a prepared transaction, or rows in a staging table."""
_BUSY_S = 10.0
_PAUSE_S = 0.05
_OPEN = """
SELECT gid, (extract(epoch FROM prepared) * 1000)::bigint, '' FROM pg_prepared_xacts
WHERE database = current_database() AND starts_with(gid, %(name)s || '-')
UNION ALL SELECT key, opened_at_ms, target FROM {staged} WHERE name = %(name)s
"""
_WAITING = """
SELECT gid FROM pg_prepared_xacts WHERE gid = ANY(%(keys)s)
UNION SELECT key FROM {staged} WHERE key = ANY(%(keys)s)
"""
_WITNESSED = "SELECT key FROM {works} WHERE key = ANY(%s)"
TARGET = """
SELECT format('%%I.%%I', n.nspname, c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_PARTS = """
SELECT c.oid::regclass::text, c.relkind::text, c.relpersistence::text FROM pg_class c
WHERE c.oid = to_regclass(%(t)s) OR c.oid IN (SELECT relid FROM pg_partition_tree(%(t)s::regclass))
"""
_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


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


def commit_staged(connection: Connection, tables: PostgresTableNames, work: PreparedWork) -> bool:
    """Commit witness and rows in one transaction; False where the rows do not wait any more.

    The session that deletes the row of ``staged`` may end the work; any other session waits for
    the row's lock, and then finds no row.

    Raises:
        DecisionNeededError: the table does not take the rows any more.
    """
    try:
        with durable(connection):
            found = connection.execute(
                tables.statement("DELETE FROM {staged} WHERE key = %s RETURNING target"), [work.key]
            ).fetchone()
            if found is None:
                return False
            connection.execute(
                tables.statement(
                    "INSERT INTO {works} (key, name, rows, generation) VALUES (%s, %s, %s, %s)"
                ),
                [work.key, tables.name, work.rows, generation_of(work)],
            )
            _move(connection, tables, work, target=found[0])
    except psycopg.Error as error:
        gone = isinstance(error, psycopg.ProgrammingError)  # a table or a column, since the trial
        if isinstance(error, errors.InsufficientPrivilege) or not (refuses_rows(error) or gone):
            raise
        why = f"{error.diag.message_primary} ({error.sqlstate})"
        holding = tables.holding(work.key).as_string(connection)
        raise cannot_be_moved(work.identity, why, holding) from error
    return True


def inserted(
    connection: Connection, target: str, names: Iterable[str], rows: sql.Composable
) -> int:
    """Insert all rows of the table ``rows`` into ``target``; return how many it has taken."""
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    return connection.execute(
        sql.SQL(
            "INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {rows}"
        ).format(target=sql.SQL(target), columns=columns, rows=rows)
    ).rowcount


def _move(
    connection: Connection, tables: PostgresTableNames, work: PreparedWork, *, target: str
) -> None:
    """Move all staged rows and DROP their table in the transaction, as MySQL cannot."""
    holding = tables.holding(work.key)
    names = connection.execute(COLUMNS, [holding.as_string(connection)]).fetchall()
    quoted = connection.execute(TARGET, [target]).fetchone()
    if not names or quoted is None:
        raise DecisionNeededError(
            f"The promised rows of {work.identity} wait for a table that is gone: "
            f"{target if names else holding.as_string(connection)}. Restore it, then start again."
        )
    moved = inserted(connection, quoted[0], (name for (name,) in names), holding)
    if moved != work.rows:
        raise would_not_all_arrive(work, moved, target, holding.as_string(connection))
    connection.execute(sql.SQL("DROP TABLE {rows}").format(rows=holding))


def drop_staged(connection: Connection, tables: PostgresTableNames, key: str) -> bool:
    """Remove staged rows that no decision will name; False where they do not wait any more."""
    with durable(connection):
        found = connection.execute(
            tables.statement("DELETE FROM {staged} WHERE key = %s RETURNING key"), [key]
        ).fetchone()
        if found is None:
            return False
        connection.execute(
            tables.statement("DROP TABLE IF EXISTS {rows}", rows=tables.holding(key))
        )
    return True


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

    def _waiting(self, connection: Connection, keys: Sequence[str]) -> set[str]:
        found = connection.execute(self._own.statement(_WAITING), {"keys": [*keys]})
        return {key for (key,) in found}

    def _witnessed(self, connection: Connection, keys: Sequence[str]) -> set[str]:
        found = connection.execute(self._own.statement(_WITNESSED), [[*keys]])
        return {key for (key,) in found}

    def _listed(self, connection: Connection) -> list[tuple[str, int, str]]:
        return connection.execute(self._own.statement(_OPEN), {"name": self.name}).fetchall()

    def _now_ms(self, connection: Connection) -> int:
        [(now_ms,)] = connection.execute(_CLOCK).fetchall()
        return int(now_ms)


# --- participant ----------------------------------------------------------------------------------


KIND = "postgres"


class PostgresParticipant(SqlParticipant):
    """See :class:`airflow_eos.protocol.participant.Participant`."""

    kind = KIND
    book = PostgresOwnershipTable
    where_it_waits = "pg_prepared_xacts"
    _session: PostgresConnection
    _tables: PostgresTableNames

    def check_detail(self, work: PreparedWork) -> None:
        """See :meth:`SqlParticipant.check_detail`."""
        detail = work.detail
        if (
            detail.get("form") not in (PREPARED, STAGED)
            or not isinstance(detail.get("system"), str)
            or not isinstance(detail.get("timeline"), int)
        ):
            raise CheckpointFormatError(
                f"Work {work.identity} has the detail {detail}: expected form ({PREPARED} or "
                f"{STAGED}), system and timeline. Was the checkpoint written by a newer release? "
                "Then use that one."
            )

    def require_kept(self, table: str) -> None:
        """See :meth:`SqlParticipant.require_kept`."""
        self._session.run("looking at the table", lambda c: require_kept(c, table))

    def end(self, work: PreparedWork) -> None:
        """See :meth:`SqlParticipant.end`."""
        if work.detail["form"] == STAGED:
            self._session.run("committing", lambda c: commit_staged(c, self._tables, work))
        else:
            self._session.run("committing", lambda c: end_prepared(c, "COMMIT", work.key))

    def remove(self, key: str) -> bool:
        """See :meth:`SqlParticipant.remove`."""
        return self._session.run(
            "rolling back",
            lambda c: end_prepared(c, "ROLLBACK", key) or drop_staged(c, self._tables, key),
        )

    def absent(self, work: PreparedWork) -> Outcome:
        """Return ABORTED on the server that prepared the work or took over; UNKNOWN on another.

        On a server that took over with a later timeline, missing rows were lost for good. A server
        with an earlier timeline was left behind, and its missing rows say nothing.

        Raises:
            StoreError: the server was left behind.
        """
        history = self._session.history
        if work.detail["system"] != history.system:
            return Outcome.UNKNOWN
        if work.detail["timeline"] > history.timeline:
            raise StoreError(
                f"{self._session.place} was left behind by a failover: it is on timeline "
                f"{history.timeline}, and {work.identity} was prepared on timeline "
                f"{work.detail['timeline']}. Nothing was concluded. Connect to the primary."
            )
        return Outcome.ABORTED


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
    del store
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
    participant = PostgresParticipant(session, tables, name=member.name, mark=address["mark"])
    return participant.reached()
