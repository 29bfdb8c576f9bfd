"""MySQL or MariaDB as a participant: a task's rows wait in a table, one transaction moves them.

A missing witness means ABORTED on the database that the work was staged in. A replica that took
over and lagged has lost work or witnesses for good; so each start looks whether the rows of the
last delivered batch are there. A server that a failover left behind must be read-only, as failover
tools make it: nothing here can tell it from the primary.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pymysql

from airflow_eos.errors import CheckpointFormatError, ConfigurationError
from airflow_eos.failpoints import failpoint
from airflow_eos.kinds.mysql.session import (
    LOCK_WAIT,
    Connection,
    MySqlConnection,
    asked,
    done,
    holes,
    quoted,
    refuses_rows,
)
from airflow_eos.kinds.sql.participant import (
    KeysOfName,
    NameRow,
    OwnershipTable,
    SqlParticipant,
    cannot_be_moved,
    generation_of,
    would_not_all_arrive,
)
from airflow_eos.kinds.sql.servers import as_text, number_of, reason
from airflow_eos.protocol.decision import PreparedWork
from airflow_eos.protocol.participant import Member, Note

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore

NAMES, WORKS, STAGED = "airflow_eos_names", "airflow_eos_works", "airflow_eos_staged"
_HAS = """
SELECT count(*) FROM information_schema.tables
WHERE table_schema = database() AND table_name IN (%s, %s, %s)
"""
_TABLES = (
    f"""
CREATE TABLE IF NOT EXISTS {NAMES} (
  name varchar(200) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
  mark char(32) NOT NULL, owner text, batch bigint, attempt int, decision text,
  generation bigint NOT NULL DEFAULT 0, counted_batch bigint)
  ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4
""",
    f"""
CREATE TABLE IF NOT EXISTS {WORKS} (
  work_key varchar(250) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
  name varchar(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, row_count bigint NOT NULL,
  generation bigint NOT NULL DEFAULT {2**63 - 1},
  INDEX by_age (name, generation)) ENGINE = InnoDB
""",
    f"""
CREATE TABLE IF NOT EXISTS {STAGED} (
  work_key varchar(250) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
  name varchar(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  target varchar(64) NOT NULL, held longtext NOT NULL, row_count bigint,
  opened_at_ms bigint NOT NULL, ended_at_ms bigint,
  INDEX by_name (name, ended_at_ms)) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4
""",
)


# The mark is written among the witnesses before the name: so a table that lost all of them is seen.
_WITNESS = f"""
INSERT INTO {WORKS} (work_key, name, row_count, generation) VALUES (%s, %s, %s, %s)
"""  # noqa: S608 - ours, as all here
_MADE = f"INSERT IGNORE INTO {NAMES} (name, mark) VALUES (%s, %s)"  # noqa: S608
_UNMADE = f"DELETE FROM {WORKS} WHERE work_key = %s"  # noqa: S608
_MARK = f"SELECT mark FROM {NAMES} WHERE name = %s"  # noqa: S608


class MySqlTableNames(KeysOfName):
    """The keys of a name, and the tables in which its staged rows wait."""

    def holding(self, key: str) -> str:
        """Return the table in which the rows of staged work wait (CheckpointFormatError)."""
        return f"{STAGED}_{self.own_part(key)}"


def make_tables(session: MySqlConnection, tables: MySqlTableNames) -> str:
    """Create missing tables; return the mark of the name, a random id that never changes.

    Raises:
        ConfigurationError: the user may not create tables.
    """

    def make(connection: Connection) -> str:
        if asked(connection, _HAS, NAMES, WORKS, STAGED) != [(3,)]:
            for statement in _TABLES:
                done(connection, statement)
        if not asked(connection, _MARK, tables.name):
            mark = uuid.uuid4().hex
            done(connection, _WITNESS, mark, tables.name, 0, 2**63 - 1)
            if done(connection, _MADE, tables.name, mark) == 0:
                done(connection, _UNMADE, mark)  # another start was first
        [(mark,)] = asked(connection, _MARK, tables.name)
        return str(mark)

    return session.run("making the tables of the pipeline", make)


# --- works ----------------------------------------------------------------------------------------
# Prepared work in MySQL: rows in a staging table, moved by one transaction with a witness.


NOW_MS = "floor(unix_timestamp(now(3)) * 1000)"
_LATE_MS = 3_600_000  # within this, a task that was given up for lost may yet make its table
_SWEPT = 100  # works in one sweep

_WAITING = f"SELECT work_key FROM {STAGED} WHERE ended_at_ms IS NULL AND work_key IN "  # noqa: S608
_WITNESSED = f"SELECT work_key FROM {WORKS} WHERE work_key IN "  # noqa: S608 - ours, as all here
_LISTED = f"""
SELECT work_key, opened_at_ms, target FROM {STAGED} WHERE name = %s AND ended_at_ms IS NULL
"""  # noqa: S608
_ENGINE = """
SELECT table_type, coalesce(engine, '') FROM information_schema.tables
WHERE table_schema = database() AND table_name = %s
"""
_WORKS_NOTE = f"""
INSERT INTO {STAGED} (work_key, name, target, held, opened_at_ms)
VALUES (%s, %s, %s, %s, {NOW_MS})
"""  # noqa: S608
# LEFT JOIN: without a row of the name this is another database, where the driver decides nothing.
_OPENED = f"""
SELECT opened_at_ms, coalesce(generation, 0) FROM {STAGED} LEFT JOIN {NAMES} USING (name)
WHERE work_key = %s
"""  # noqa: S608
_WHOLE = f"""
UPDATE {STAGED} SET row_count = %s WHERE work_key = %s AND ended_at_ms IS NULL
"""  # noqa: S608
_TAKEN = f"""
SELECT target, held FROM {STAGED} WHERE work_key = %s AND ended_at_ms IS NULL FOR UPDATE
"""  # noqa: S608
_ENDED = f"""
UPDATE {STAGED} SET ended_at_ms = {NOW_MS} WHERE work_key = %s AND ended_at_ms IS NULL
"""  # noqa: S608
# The row of work that never became whole stays for a while: see sweep.
_OVER = f"""
DELETE FROM {STAGED} WHERE work_key = %s AND ended_at_ms IS NOT NULL AND row_count IS NOT NULL
"""  # noqa: S608
_LEFT = f"""
SELECT work_key FROM {STAGED} WHERE name = %s AND ended_at_ms < {NOW_MS} - {_LATE_MS}
LIMIT {_SWEPT}
"""  # noqa: S608
_FORGOTTEN = f"DELETE FROM {STAGED} WHERE work_key = %s AND ended_at_ms IS NOT NULL"  # noqa: S608


def require_kept(connection: Connection, table: str) -> None:
    """Refuse a table that cannot take rows together with their witness (ConfigurationError)."""
    found = asked(connection, _ENGINE, table)
    if not found:
        raise ConfigurationError(
            f"There is no table {table!r} in this database, or its user cannot see it. Create it "
            "first; the sink creates no tables of yours."
        )
    kind, engine = found[0]
    is_table = kind in ("BASE TABLE", "SYSTEM VERSIONED")  # MariaDB's, which keeps what was
    if not is_table or engine != "InnoDB":
        todo = f"ALTER TABLE {table} ENGINE = InnoDB" if is_table else "Deliver to one of them"
        raise ConfigurationError(
            f"{table!r} is {engine if is_table else kind}: rows can be moved together with their "
            f"witness into InnoDB's tables alone. {todo}."
        )


def begin_staged(
    connection: Connection, tables: MySqlTableNames, key: str, *, target: str, names: Sequence[str]
) -> tuple[int, int]:
    """Note the work, then make its table; return the time (server's clock, ms) and the generation.

    The note comes first, so that a listing of waiting work knows of every table that is there.
    """
    held = msgspec.json.encode(list(names)).decode()
    done(connection, _WORKS_NOTE, key, tables.name, target, held)
    failpoint("task-noted")
    done(connection, f"CREATE TABLE {quoted(tables.holding(key))} LIKE {quoted(target)}")
    [(opened_at_ms, generation)] = asked(connection, _OPENED, key)
    return int(opened_at_ms), int(generation)


def end_staging(connection: Connection, key: str, rows: int) -> bool:
    """Mark the work's rows as whole, in their own transaction; False where it was aborted."""
    return done(connection, _WHOLE, rows, key) == 1


def commit_staged(connection: Connection, tables: MySqlTableNames, work: PreparedWork) -> bool:
    """Commit witness and rows in one transaction; False where the rows do not wait any more.

    The session that locks the row of ``airflow_eos_staged`` may end the work; any other session
    waits for the lock, and then finds the work ended.

    Raises:
        DecisionNeededError: the table does not take the rows any more.
    """
    done(connection, "BEGIN")
    found = asked(connection, _TAKEN, work.key)
    if not found:
        done(connection, "ROLLBACK")
        return False
    [(target, held)] = found
    done(connection, _WITNESS, work.key, tables.name, work.rows, generation_of(work))
    columns = quoted(*msgspec.json.decode(held, type=list[str]))
    holding = tables.holding(work.key)
    try:
        moved = done(
            connection,
            f"INSERT INTO {quoted(target)} ({columns}) "  # noqa: S608 - names in quotes
            f"SELECT {columns} FROM {quoted(holding)}",
        )
    except pymysql.MySQLError as error:
        if not refuses_rows(error):
            raise
        raise cannot_be_moved(work.identity, reason(error), holding) from error
    if moved != work.rows:
        raise would_not_all_arrive(work, moved, target, holding)
    done(connection, _ENDED, work.key)
    done(connection, "COMMIT")
    failpoint("moved")
    _drop(connection, tables, work.key)
    return True


def drop_staged(connection: Connection, tables: MySqlTableNames, key: str) -> bool:
    """Remove staged rows that no decision will name; False where they do not wait any more."""
    if not done(connection, _ENDED, key):
        return False
    _drop(connection, tables, key)
    return True


def sweep(connection: Connection, tables: MySqlTableNames) -> None:
    """Remove staging tables that a crash or a task that was given up has left."""
    for (key,) in asked(connection, _LEFT, tables.name):
        if _drop(connection, tables, key):
            done(connection, _FORGOTTEN, key)


def _drop(connection: Connection, tables: MySqlTableNames, key: str) -> bool:
    """Drop the table of ended work; False where a task still writes to it: :func:`sweep` does."""
    [(patience,)] = asked(connection, "SELECT @@lock_wait_timeout")
    done(connection, "SET SESSION lock_wait_timeout = 1")
    try:
        done(connection, f"DROP TABLE IF EXISTS {quoted(tables.holding(key))}")
    except pymysql.MySQLError as error:
        if number_of(error) != LOCK_WAIT:
            raise
        return False
    finally:
        done(connection, "SET SESSION lock_wait_timeout = %s", patience)
    done(connection, _OVER, key)
    return True


# --- ownership table ------------------------------------------------------------------------------


class MySqlOwnershipTable(OwnershipTable):
    """See :class:`~airflow_eos.kinds.sql.participant.OwnershipTable`."""

    tables = (NAMES, WORKS)
    _own: MySqlTableNames

    def note(self, note: Note, owner: str) -> NameRow:
        """See :meth:`OwnershipTable.note`; also remove staging tables that crashes have left."""
        before = super().note(note, owner)
        self._session.run("noting a decision", lambda c: sweep(c, self._own))
        return before

    def _read(self, connection: Connection, statement: str, *given: Any) -> list[tuple[Any, ...]]:
        return asked(connection, statement.format(names=NAMES, works=WORKS), *given)

    def _write(self, connection: Connection, *changes: tuple[str, Sequence[Any]]) -> None:
        for statement, given in changes:
            done(connection, statement.format(names=NAMES, works=WORKS), *given)

    def _waiting(self, connection: Connection, keys: Sequence[str]) -> set[str]:
        return {key for (key,) in asked(connection, f"{_WAITING}({holes(keys)})", *keys)}

    def _witnessed(self, connection: Connection, keys: Sequence[str]) -> set[str]:
        return {key for (key,) in asked(connection, f"{_WITNESSED}({holes(keys)})", *keys)}

    def _listed(self, connection: Connection) -> list[tuple[str, int, str]]:
        found = asked(connection, _LISTED, self.name)
        return [(key, int(at), target) for key, at, target in found]

    def _now_ms(self, connection: Connection) -> int:
        [(now_ms,)] = asked(connection, f"SELECT {NOW_MS}")
        return int(now_ms)


# --- participant ----------------------------------------------------------------------------------


KIND = "mysql"
FORM = "staged"


class MySqlParticipant(SqlParticipant):
    """See :class:`airflow_eos.protocol.participant.Participant`."""

    kind = KIND
    book = MySqlOwnershipTable
    where_it_waits = STAGED
    _session: MySqlConnection
    _tables: MySqlTableNames

    def check_detail(self, work: PreparedWork) -> None:
        """See :meth:`SqlParticipant.check_detail`."""
        if work.detail.get("form") != FORM:
            raise CheckpointFormatError(
                f"Work {work.identity} has the detail {work.detail}: expected form ({FORM}). Was "
                "the checkpoint written by a newer release? Then use that one."
            )

    def require_kept(self, table: str) -> None:
        """See :meth:`SqlParticipant.require_kept`."""
        self._session.run("looking at the table", lambda c: require_kept(c, table))

    def end(self, work: PreparedWork) -> None:
        """See :meth:`SqlParticipant.end`."""
        self._session.run("committing", lambda c: commit_staged(c, self._tables, work))

    def remove(self, key: str) -> bool:
        """See :meth:`SqlParticipant.remove`."""
        return self._session.run("removing rows", lambda c: drop_staged(c, self._tables, key))


def connect(
    member: Member, how: object, *, store: CheckpointStore | None = None, timeout_s: float = 30.0
) -> MySqlParticipant:
    """Connect to the database of ``member`` by ``how``: a URL, or its parts as a mapping.

    Raises:
        ConfigurationError: ``how`` is missing, or the address is not one of MySQL.
        StoreError: the database does not answer, or is another one.
    """
    del store
    address = member.address
    if not address.keys() >= {"name", "mark"}:
        raise ConfigurationError(f"{member}: eos/pipeline.json is not of mysql.")
    url = as_text("mysql", how)
    if url is None:
        raise ConfigurationError(
            f"{member}: give how to reach its database, by its name or its kind, such as "
            "reach={'mysql': 'mysql://user:password@host:3306/database'}; the checkpoint holds no "
            "passwords."
        )
    session = MySqlConnection(url, timeout_s=timeout_s)
    participant = MySqlParticipant(
        session, MySqlTableNames(address["name"]), name=member.name, mark=address["mark"]
    )
    return participant.reached()
