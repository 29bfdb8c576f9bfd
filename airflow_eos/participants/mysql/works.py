"""Prepared work in MySQL: rows in a table of their own, moved by one transaction with a witness."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pymysql

from airflow_eos.failpoints import failpoint
from airflow_eos.participants.mysql.faults import LOCK_WAIT, number_of, reason, refuses_rows
from airflow_eos.participants.mysql.session import Connection, asked, done, holes, quoted
from airflow_eos.participants.mysql.tables import NAMES, STAGED, WORKS, Tables
from airflow_eos.participants.sql.ledger import generation_of
from airflow_eos.participants.sql.staged import cannot_be_moved, would_not_all_arrive
from airflow_eos.protocol.decision import PreparedWork

NOW_MS = "floor(unix_timestamp(now(3)) * 1000)"
_LATE_MS = 3_600_000  # a task that was given up for lost may yet make its table
_SWEPT = 100  # works at once

_WAITING = f"SELECT work_key FROM {STAGED} WHERE ended_at_ms IS NULL AND work_key IN "  # noqa: S608
_WITNESSED = f"SELECT work_key FROM {WORKS} WHERE work_key IN "  # noqa: S608 - ours, as all here
_LISTED = f"""
SELECT work_key, opened_at_ms, target FROM {STAGED} WHERE name = %s AND ended_at_ms IS NULL
"""  # noqa: S608
_NOTE = f"""
INSERT INTO {STAGED} (work_key, name, target, held, opened_at_ms)
VALUES (%s, %s, %s, %s, {NOW_MS})
"""  # noqa: S608
# Without a row of the name the driver decides nothing: this is not its database.
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
_WITNESS = f"""
INSERT INTO {WORKS} (work_key, name, row_count, generation) VALUES (%s, %s, %s, %s)
"""  # noqa: S608
_ENDED = f"""
UPDATE {STAGED} SET ended_at_ms = {NOW_MS} WHERE work_key = %s AND ended_at_ms IS NULL
"""  # noqa: S608
# Of what never became whole the row stays for a while: see sweep.
_OVER = f"""
DELETE FROM {STAGED} WHERE work_key = %s AND ended_at_ms IS NOT NULL AND row_count IS NOT NULL
"""  # noqa: S608
_LEFT = f"""
SELECT work_key FROM {STAGED} WHERE name = %s AND ended_at_ms < {NOW_MS} - {_LATE_MS}
LIMIT {_SWEPT}
"""  # noqa: S608
_FORGOTTEN = f"DELETE FROM {STAGED} WHERE work_key = %s AND ended_at_ms IS NOT NULL"  # noqa: S608


def waiting(connection: Connection, keys: Sequence[str]) -> set[str]:
    """Those that have not ended; to be asked *before* :func:`witnessed`."""
    return {key for (key,) in asked(connection, f"{_WAITING}({holes(keys)})", *keys)}


def witnessed(connection: Connection, keys: Sequence[str]) -> set[str]:
    """Those whose rows are visible."""
    return {key for (key,) in asked(connection, f"{_WITNESSED}({holes(keys)})", *keys)}


def listed(connection: Connection, tables: Tables) -> list[tuple[str, int, str]]:
    """What waits under the name: key, since when (ms), and for which table."""
    return [(key, int(at), target) for key, at, target in asked(connection, _LISTED, tables.name)]


def begin_staged(
    connection: Connection, tables: Tables, key: str, *, target: str, names: Sequence[str]
) -> tuple[int, int]:
    """Note the work, then make its table; when, ms by the server's clock, in which generation.

    Noted first: whoever lists what waits knows of every table that is there.
    """
    held = msgspec.json.encode(list(names)).decode()
    done(connection, _NOTE, key, tables.name, target, held)
    failpoint("task-noted")
    done(connection, f"CREATE TABLE {quoted(tables.holding(key))} LIKE {quoted(target)}")
    [(opened_at_ms, generation)] = asked(connection, _OPENED, key)
    return int(opened_at_ms), int(generation)


def end_staging(connection: Connection, key: str, rows: int) -> bool:
    """The rows are whole, in the transaction that wrote them; False where it was aborted."""
    return done(connection, _WHOLE, rows, key) == 1


def commit_staged(connection: Connection, tables: Tables, work: PreparedWork) -> bool:
    """Witness and rows in one transaction; False where the rows do not wait any more.

    Who locks the row of ``airflow_eos_staged`` may end the work; whoever else tries waits for that,
    and then finds it ended.

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


def drop_staged(connection: Connection, tables: Tables, key: str) -> bool:
    """Remove staged rows that nobody will name; False where they do not wait any more."""
    if not done(connection, _ENDED, key):
        return False
    _drop(connection, tables, key)
    return True


def sweep(connection: Connection, tables: Tables) -> None:
    """Remove tables that a crash has left, also those of tasks that made them when given up."""
    for (key,) in asked(connection, _LEFT, tables.name):
        if _drop(connection, tables, key):
            done(connection, _FORGOTTEN, key)


def _drop(connection: Connection, tables: Tables, key: str) -> bool:
    """The table of work that is over; False where a task still writes there: left to the sweep."""
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
