"""The table in which the rows of a task wait, and the trial that they have passed before they do.

What their table finds only when they are moved there is found after the decision, and then a person
has to make room for them. So the task inserts them into it, whole, and rolls that back: values,
indexes, constraints, triggers and partitions have met each row. Rows of two tasks meet in the table
alone: repartitioned by the key there are no two that have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import errors, sql

from airflow_eos.errors import ConfigurationError, DeliveryError, Remedy
from airflow_eos.participants.postgres.works import COLUMNS, inserted
from airflow_eos.participants.sql.staged import key_is_there

if TYPE_CHECKING:
    from airflow_eos.participants.postgres.session import Connection

# Of each column: whether rows wait in it that do not give it (the table has a default), and the
# sequence of an identity.
_OTHERS = """
SELECT attname, atthasdef AND attgenerated = '',
       CASE WHEN attidentity <> '' THEN pg_get_serial_sequence(%(table)s, attname) END
FROM pg_attribute WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped
"""
_NUMBERS = """
SELECT wanted FROM (SELECT CASE WHEN attidentity <> ''
  THEN pg_get_serial_sequence(%(table)s, attname) END AS wanted
FROM pg_attribute WHERE attrelid = to_regclass(%(table)s) AND NOT attisdropped) AS own
WHERE wanted IS NOT NULL AND NOT has_sequence_privilege(wanted, 'USAGE')
"""
_MAY_REFUSE = """
SELECT pg_get_indexdef(indexrelid) FROM pg_index
WHERE indrelid = to_regclass(%(table)s) AND (indisunique OR indisexclusion)
UNION ALL SELECT pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = to_regclass(%(table)s) AND contype = 'f'
UNION ALL SELECT pg_get_ruledef(oid) FROM pg_rewrite
WHERE ev_class = to_regclass(%(table)s) AND ev_type = '3' -- of inserts
UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger
WHERE tgrelid = to_regclass(%(table)s) AND NOT tgisinternal AND tgtype & 4 <> 0 -- of inserts
"""


def may_refuse(connection: Connection, table: str) -> list[str]:
    """What of the table could refuse rows of two tasks that each could have: its definition."""
    return [found for (found,) in connection.execute(_MAY_REFUSE, {"table": table})]


def require_numbers(connection: Connection, table: str) -> None:
    """Refuse a table whose numbers this role may not take (ConfigurationError)."""
    for (sequence,) in connection.execute(_NUMBERS, {"table": table}):
        raise ConfigurationError(
            f"Table {table} numbers its rows by the sequence {sequence}, which this role may not "
            "use: rows that wait for their decision have their number already.",
            Remedy(change=f"GRANT USAGE ON SEQUENCE {sequence} to the role", start=True),
        )


def make_holding(
    connection: Connection, holding: sql.Identifier, table: str, names: list[str]
) -> None:
    """A table for the rows of one task, with the columns that they give or the table fills.

    Defaults are made here, and moved as they are: a sequence at its end refuses no decided row.
    """
    connection.execute(
        sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS)").format(holding, sql.SQL(table))
    )
    changes = []
    for name, has_default, sequence in connection.execute(_OTHERS, {"table": table}):
        if sequence is not None:
            changes.append(
                sql.SQL("ALTER COLUMN {} SET DEFAULT nextval({})").format(
                    sql.Identifier(name), sql.Literal(sequence)
                )
            )
        elif name not in names and not has_default:
            changes.append(sql.SQL("DROP COLUMN {}").format(sql.Identifier(name)))
    if changes:
        connection.execute(
            sql.SQL("ALTER TABLE {} {}").format(holding, sql.SQL(", ").join(changes))
        )


def try_rows(connection: Connection, holding: sql.Identifier, table: str, rows: int) -> None:
    """Insert the rows into their table and roll that back, with the locks that it took.

    Deferred constraints and triggers are asked, too. What a trigger does outside of the transaction
    (dblink) it does here as well; a NOTIFY goes with the rest.

    Raises:
        DeliveryError: the table does not take all of them.
        psycopg.Error: why it refuses one.
    """
    connection.execute("SAVEPOINT trial")
    names = [name for (name,) in connection.execute(COLUMNS, [holding.as_string(connection)])]
    try:
        taken = inserted(connection, table, names, holding)
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except errors.UniqueViolation as error:
        raise key_is_there(table, error.diag.constraint_name or "?") from error
    require_all(rows, taken, table)
    connection.execute("ROLLBACK TO SAVEPOINT trial")


def require_all(rows: int, taken: int, table: str) -> None:
    """Refuse a table that takes less rows than it is given, or more (DeliveryError)."""
    if taken != rows:
        raise DeliveryError(
            f"{rows} rows were sent to table {table}, which took {taken}. Nothing was made "
            "visible.",
            Remedy(
                change="drop the trigger or rule that drops or redirects rows, or deliver to a "
                "table without one",
                start=True,
            ),
        )
