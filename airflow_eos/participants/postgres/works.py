"""What ends prepared work, and what tells how it ended; each may run twice at any point.

The order of the questions is the proof. A prepared transaction leaves ``pg_prepared_xacts`` after
its rows can be seen, and staged rows leave ``staged`` in the transaction that moves them. So who
asks for the witness second misses no commit in between: neither there nor here was rolled back.
What a decision names was prepared before, and no key is used twice: so that is for good.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

import psycopg
from psycopg import errors, sql

from airflow_eos.errors import CheckpointFormatError, DecisionNeededError, StoreError
from airflow_eos.participants.postgres.faults import refuses_rows
from airflow_eos.participants.postgres.session import Connection, History, durable
from airflow_eos.participants.postgres.tables import Tables
from airflow_eos.participants.sql.ledger import generation_of
from airflow_eos.participants.sql.staged import cannot_be_moved, would_not_all_arrive
from airflow_eos.protocol.decision import Outcome, PreparedWork

PREPARED, STAGED = "prepared", "staged"
"""The forms of work: a prepared transaction, or rows in a table of their own."""
_BUSY_S = 10.0
_PAUSE_S = 0.05
_OPEN = """
SELECT gid, (extract(epoch FROM prepared) * 1000)::bigint, '' FROM pg_prepared_xacts
WHERE database = current_database() AND starts_with(gid, %(name)s || '-')
UNION ALL SELECT key, opened_at_ms, target FROM {staged} WHERE name = %(name)s
"""
_TARGET = """
SELECT format('%%I.%%I', n.nspname, c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


def listed(connection: Connection, tables: Tables) -> list[tuple[str, int, str]]:
    """What waits under the name in this database: key, since when (ms), and for which table."""
    return connection.execute(tables.statement(_OPEN), {"name": tables.name}).fetchall()


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


def waiting(connection: Connection, tables: Tables, keys: Collection[str]) -> set[str]:
    """Those that have not ended; to be asked *before* :func:`witnessed`."""
    asked = list(keys)
    found = connection.execute(
        tables.statement(
            "SELECT gid FROM pg_prepared_xacts WHERE gid = ANY(%s) "
            "UNION SELECT key FROM {staged} WHERE key = ANY(%s)"
        ),
        [asked, asked],
    )
    return {key for (key,) in found}


def witnessed(connection: Connection, tables: Tables, keys: Collection[str]) -> set[str]:
    """Those whose rows are visible."""
    found = connection.execute(
        tables.statement("SELECT key FROM {works} WHERE key = ANY(%s)"), [list(keys)]
    )
    return {key for (key,) in found}


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


def commit_staged(connection: Connection, tables: Tables, work: PreparedWork) -> bool:
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


def _move(connection: Connection, tables: Tables, work: PreparedWork, *, target: str) -> None:
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


def drop_staged(connection: Connection, tables: Tables, key: str) -> bool:
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
