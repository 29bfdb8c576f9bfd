"""PostgreSQL as a participant: a task's rows are one transaction, and its witness is one of them.

Two forms, which may both be in flight: ``prepared`` (``PREPARE TRANSACTION``, whose gid is the
key) and ``staged`` (rows in a table of the work's own, moved by one transaction). A witness that is
not there means ABORTED only on the server that the work was prepared on, or one that took over from
it; see :meth:`PostgresParticipant.absent`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors, sql

from airflow_eos.closing import closed_on_error
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    DecisionNeededError,
    StoreError,
)
from airflow_eos.kinds.postgres.session import (
    Connection,
    History,
    PostgresConnection,
    checked_dsn,
    durable,
    refuses_rows,
)
from airflow_eos.kinds.sql.participant import (
    KeysOfName,
    NameRow,
    OwnershipTable,
    SqlParticipant,
    cannot_be_moved,
    floor_of,
    generation_of,
    name_of,
    would_not_all_arrive,
)
from airflow_eos.protocol.decision import Outcome, PreparedWork
from airflow_eos.protocol.participant import Member, Note

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore

DEFAULT_SCHEMA = "airflow_eos"
_LOCK = 7_294_311_208_554_001  # of our own, so that two first starts do not create at once

_NEWEST = 2**63 - 1  # of a witness that a person writes: never below the floor
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


# The mark stands among the witnesses: where all are gone, that is seen.
_MADE = """
WITH made AS (
  INSERT INTO {names} (name, mark) VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING name, mark)
INSERT INTO {works} (key, name, rows) SELECT mark, name, 0 FROM made
"""


@dataclass(frozen=True)
class PostgresTableNames(KeysOfName):
    """Where a name's rows are kept; gives statements with all names quoted."""

    schema: str
    name: str

    def statement(self, text: str, **parts: sql.Composable) -> sql.Composed:
        """``text`` with {names}, {works}, {staged}, {schema} and ``parts`` put in."""
        ours = {table: sql.Identifier(self.schema, table) for table in ("names", "works", "staged")}
        return sql.SQL(text).format(schema=sql.Identifier(self.schema), **ours, **parts)

    def holding(self, key: str) -> sql.Identifier:
        """The table in which the rows of staged work wait.

        Raises:
            CheckpointFormatError: it is no key of this name.
        """
        return sql.Identifier(self.schema, f"staged_{self.own_part(key)}")


def make_tables(session: PostgresConnection, tables: PostgresTableNames) -> str:
    """Create what is missing; returns the mark of the name, a random id that never changes.

    Raises:
        ConfigurationError: the role may not: the statements that somebody else may run.
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
# What ends prepared work, and what tells how it ended; each may run twice at any point.
#
# The order of the questions is the proof. A prepared transaction leaves ``pg_prepared_xacts`` after
# its rows can be seen, and staged rows leave ``staged`` in the transaction that moves them. So who
# asks for the witness second misses no commit in between: neither there nor here was rolled back.
# What a decision names was prepared before, and no key is used twice: so that is for good.


PREPARED, STAGED = "prepared", "staged"
"""The forms of work: a prepared transaction, or rows in a table of their own."""
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
_TARGET = """
SELECT format('%%I.%%I', n.nspname, c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


def absent(work: PreparedWork, history: History, place: str) -> Outcome:
    """What it means that neither the work nor its witness is there.

    Raises:
        StoreError: the server was left behind, and cannot know.
    """
    if work.detail["system"] != history.system:
        return Outcome.UNKNOWN
    if work.detail["timeline"] > history.timeline:
        raise StoreError(
            f"{place} was left behind by a failover: it is on timeline {history.timeline}, and "
            f"{work.identity} was prepared on timeline {work.detail['timeline']}. Nothing was "
            "concluded. Connect to the primary."
        )
    return Outcome.ABORTED


def check_detail(work: PreparedWork) -> None:
    """Refuse what another release wrote (CheckpointFormatError)."""
    detail = work.detail
    if (
        detail.get("form") not in (PREPARED, STAGED)
        or not isinstance(detail.get("system"), str)
        or not isinstance(detail.get("timeline"), int)
    ):
        raise CheckpointFormatError(
            f"Work {work.identity} has the detail {detail}: expected form ({PREPARED} or "
            f"{STAGED}), system and timeline. Was the checkpoint written by a newer release? Then "
            "use that one."
        )


def commit_prepared(connection: Connection, key: str) -> bool:
    """End a prepared transaction; False where another did, or nobody can any more."""
    return _end(connection, "COMMIT PREPARED {gid}", key)


def rollback_prepared(connection: Connection, key: str) -> bool:
    """Remove a prepared transaction, whatever it holds; False where there is none."""
    return _end(connection, "ROLLBACK PREPARED {gid}", key)


def _end(connection: Connection, statement: str, key: str) -> bool:
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute(sql.SQL(statement).format(gid=sql.Literal(key)))
        except errors.UndefinedObject:
            return False
        except errors.ObjectNotInPrerequisiteState as busy:
            # Another process is just ending it, perhaps ourselves on a connection that was lost.
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
    """Witness and rows in one transaction; False where the rows do not wait any more.

    Who deletes the row of ``staged`` may end the work; whoever else tries waits for that, and then
    finds none.

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
    """Let ``target`` take all ``rows`` that wait; how many it says it has taken."""
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    return connection.execute(
        sql.SQL(
            "INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {rows}"
        ).format(target=sql.SQL(target), columns=columns, rows=rows)
    ).rowcount


def _move(
    connection: Connection, tables: PostgresTableNames, work: PreparedWork, *, target: str
) -> None:
    """All rows, or none: PostgreSQL's DROP is a part of the transaction, as MySQL's is not."""
    holding = tables.holding(work.key)
    names = connection.execute(COLUMNS, [holding.as_string(connection)]).fetchall()
    quoted = connection.execute(_TARGET, [target]).fetchone()
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
    """Remove staged rows that nobody will name; False where they do not wait any more."""
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
# The ownership table: owner, newest batch, and the batch below which records were deleted.


_STANDING = """
SELECT mark, owner, batch, attempt, decision, generation, counted_batch
FROM {names} WHERE name = %s
"""
_CLAIM = "UPDATE {names} SET owner = %s WHERE name = %s AND owner IS NULL"
_NOTE = """
UPDATE {names} SET batch = %(batch)s, attempt = %(attempt)s, decision = %(decision)s
WHERE name = %(name)s AND owner = %(owner)s
  AND (batch IS NULL OR (batch, attempt) < (%(batch)s, %(attempt)s))
"""
_BEGIN = """
UPDATE {names} SET generation = greatest(generation, %s), counted_batch = %s WHERE name = %s
"""
_FORGET = "DELETE FROM {works} WHERE name = %s AND generation < %s"


class PostgresOwnershipTable(OwnershipTable):
    """See :class:`~airflow_eos.kinds.sql.participant.OwnershipTable`."""

    def __init__(self, session: PostgresConnection, tables: PostgresTableNames, mark: str) -> None:
        super().__init__(session, tables, mark)
        self._own = tables

    @property
    def tables(self) -> tuple[str, str]:
        """See :attr:`OwnershipTable.tables`."""
        return f"{self._own.schema}.names", f"{self._own.schema}.works"

    def note(self, note: Note, owner: str) -> NameRow:
        """See :meth:`OwnershipTable.note`."""

        def act(connection: Connection) -> NameRow:
            before = self.row(connection)
            noted = {"batch": note.batch, "attempt": note.attempt, "decision": note.decision}
            given = {**noted, "name": self.name, "owner": owner}
            with durable(connection):
                connection.execute(self._own.statement(_NOTE), given)
            return before

        return self._session.run("noting a decision", act)

    def begin_generation(self, generation: int, counted: int) -> None:
        """See :meth:`OwnershipTable.begin_generation`."""

        def act(connection: Connection) -> None:
            with durable(connection):
                connection.execute(self._own.statement(_BEGIN), [generation, counted, self.name])
                floor = floor_of(generation)
                connection.execute(self._own.statement(_FORGET), [self.name, floor])

        self._session.run("forgetting old witnesses", act)

    def _row(self, connection: Connection) -> Sequence[Any] | None:
        return connection.execute(self._own.statement(_STANDING), [self.name]).fetchone()

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

    def _claim(self, connection: Connection, owner: str) -> None:
        with durable(connection):
            connection.execute(self._own.statement(_CLAIM), [owner, self.name])


# --- participant ----------------------------------------------------------------------------------


KIND = "postgres"


class PostgresParticipant(SqlParticipant):
    """See :class:`airflow_eos.protocol.participant.Participant`.

    Args:
        session: to the database; closed with this.
        tables: of the name under which all of it goes.
        name: the participant's name in decisions.
        mark: the random id of the name in this database, which another one does not have.
        target: the table, for people.
    """

    _session: PostgresConnection
    kind = KIND
    where_it_waits = "pg_prepared_xacts"

    def __init__(
        self,
        session: PostgresConnection,
        tables: PostgresTableNames,
        *,
        name: str,
        mark: str,
        target: str = "",
    ) -> None:
        super().__init__(
            session, PostgresOwnershipTable(session, tables, mark), keys=tables, name=name
        )
        self._tables = tables
        self._mark = mark
        self._target = target

    @property
    def members(self) -> tuple[Member, ...]:
        """By the mark in the database, which hosts and upgrades do not change."""
        address = {"name": self._tables.name, "schema": self._tables.schema, "mark": self._mark}
        target = f"postgres:{self._session.place} {self._target}".strip()
        return (Member(self._name, KIND, address, target),)

    def check_detail(self, work: PreparedWork) -> None:
        """See :meth:`SqlParticipant.check_detail`."""
        check_detail(work)

    def end(self, work: PreparedWork) -> None:
        """See :meth:`SqlParticipant.end`."""
        if work.detail["form"] == STAGED:
            self._session.run("committing", lambda c: commit_staged(c, self._tables, work))
        else:
            self._session.run("committing", lambda c: commit_prepared(c, work.key))

    def remove(self, key: str) -> bool:
        """See :meth:`SqlParticipant.remove`."""
        return self._session.run(
            "rolling back",
            lambda c: rollback_prepared(c, key) or drop_staged(c, self._tables, key),
        )

    def absent(self, work: PreparedWork) -> Outcome:
        """ABORTED where both would be here.

        A server that took over with a later timeline has what it has: rows that are not there were
        lost, for good. One with an earlier timeline was left behind, and concludes nothing.
        """
        return absent(work, self._session.history, self._session.place)


def made(
    dsn: str,
    *,
    gid_prefix: str,
    name: str,
    schema: str,
    target: str = "",
    timeout_s: float = 30.0,
    lock_timeout_s: float = 30.0,
) -> PostgresParticipant:
    """The participant of a sink that starts: its tables are made if they are not there yet.

    Raises:
        ConfigurationError: the connection or a right is wrong.
        StoreError: the database does not answer.
    """
    opened = PostgresConnection(
        checked_dsn(dsn), timeout_s=timeout_s, lock_timeout_s=lock_timeout_s
    )
    with closed_on_error(opened) as session:
        tables = PostgresTableNames(schema, name_of(gid_prefix, name))
        mark = make_tables(session, tables)
    return PostgresParticipant(session, tables, name=name, mark=mark, target=target)


def connect(
    member: Member,
    how: object,
    *,
    store: CheckpointStore | None = None,
    timeout_s: float = 30.0,
) -> PostgresParticipant:
    """Reach the database of ``member`` by ``how``: a connection string, or a dict of keywords.

    Raises:
        ConfigurationError: nothing says how, or the address is not one of PostgreSQL.
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
    tables = PostgresTableNames(address["schema"], address["name"])
    participant = PostgresParticipant(session, tables, name=member.name, mark=address["mark"])
    return participant.reached()
