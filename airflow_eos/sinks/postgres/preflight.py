"""What a database and a table must be, asked before the first row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.errors import ConfigurationError
from airflow_eos.participants.postgres.session import Connection, Session, checked_dsn

if TYPE_CHECKING:
    from airflow_eos.participants.postgres.tables import Tables

TABLE = """
SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_PARTS = """
SELECT c.oid::regclass::text, c.relkind::text, c.relpersistence::text FROM pg_class c
WHERE c.oid = to_regclass(%(t)s) OR c.oid IN (SELECT relid FROM pg_partition_tree(%(t)s::regclass))
"""
_RIGHTS = """
SELECT current_user, has_table_privilege(%(t)s, 'INSERT')
       AND (%(two_phase)s OR has_table_privilege(%(t)s, 'SELECT')), row_security_active(%(t)s),
       has_schema_privilege(%(schema)s, 'USAGE'), has_schema_privilege(%(schema)s, 'CREATE')
"""
_SLOTS = """
SELECT current_setting('max_prepared_transactions')::int, count(*)::int FROM pg_prepared_xacts
WHERE NOT (database = current_database() AND starts_with(gid, %s || '-'))
"""


def session_of(dsn: str, answer_within_s: float) -> Session:
    """A session for looking; close it."""
    return Session(checked_dsn(dsn), timeout_s=answer_within_s)


def require_table(connection: Connection, table: str, tables: Tables, *, two_phase: bool) -> None:
    """Refuse a table that cannot keep what is promised of it (ConfigurationError)."""
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
    rights = {"t": table, "schema": tables.schema, "two_phase": two_phase}
    role, may_insert, secured, may_use, may_create = (
        connection.execute(_RIGHTS, rights).fetchone() or ()
    )
    if not may_insert:
        right = "INSERT" if two_phase else "INSERT, SELECT"
        raise ConfigurationError(
            f"Role {role!r} may not write as needed: GRANT {right} ON {table} TO {role}."
        )
    if not may_use or not (two_phase or may_create):
        what = "USAGE" if two_phase else "USAGE, CREATE"
        raise ConfigurationError(
            f"Role {role!r} may not use the schema of the pipelines: GRANT {what} ON SCHEMA "
            f"{tables.schema} TO {role}, and SELECT, INSERT, UPDATE, DELETE on its tables."
        )
    if secured:
        raise ConfigurationError(
            f"Table {table} has row-level security, under which role {role!r} cannot COPY. Use a "
            "role with BYPASSRLS, or a table without it."
        )


def require_slots(connection: Connection, name: str, tasks: int) -> None:
    """Refuse a server on which the tasks of a batch cannot all be prepared, twice over.

    Twice: what a failed attempt left is there until it is ended, and tasks may be tried again.
    What other outputs will need is not known here; where slots run out, a task says so.

    Raises:
        ConfigurationError: what to set in postgresql.conf.
    """
    most, taken = connection.execute(_SLOTS, [name]).fetchone() or (0, 0)
    if most - taken >= 2 * tasks:
        return
    off = "which switches them off (PostgreSQL's default)" if most == 0 else f"{taken} are taken"
    raise ConfigurationError(
        f"max_prepared_transactions is {most}, {off}: {tasks} tasks a batch need {2 * tasks} free. "
        f"Set max_prepared_transactions = {taken + 2 * tasks} or more in postgresql.conf and "
        "restart the server (for several outputs at one server, the sum of what each needs); or "
        "let fewer tasks write (coalesce); or use PostgresSink(…, two_phase=False), which needs "
        "none."
    )
