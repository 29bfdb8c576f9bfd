"""The table in which the rows of a task wait: it refuses what theirs would, and sooner.

What their table finds only when they are moved there is found after the decision, and then a person
has to make room for them. So a key that comes twice in a task, or that the table has already, is
looked for before. Rows of two tasks meet in the table alone: repartitioned by the key there are no
two that have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from airflow_eos.participants.sql.staged import key_is_there
from airflow_eos.sinks.postgres.columns import columns_of

if TYPE_CHECKING:
    from airflow_eos.participants.postgres.session import Connection

_REFUSING_NOTHING = """
SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE i.indrelid = to_regclass(%s) AND NOT i.indisunique AND NOT i.indisexclusion
"""
# In a column of its own only since PostgreSQL 15.
_KEYS = """
SELECT array_agg(a.attname::text ORDER BY k.place),
       coalesce(to_jsonb(i) ->> 'indnullsnotdistinct', 'false')::boolean
FROM pg_index i
CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (number, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND k.place <= i.indnkeyatts
AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid, 2
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


def make_holding(
    connection: Connection, holding: sql.Identifier, table: str, names: list[str]
) -> None:
    """A table for the columns ``names`` of the rows of one task, as strict as theirs is."""
    connection.execute(
        sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING CONSTRAINTS INCLUDING INDEXES)").format(
            holding, sql.SQL(table)
        )
    )
    others = [column.name for column in columns_of(connection, table) if column.name not in names]
    if others:
        drops = sql.SQL(", ").join(
            sql.SQL("DROP COLUMN {}").format(sql.Identifier(name)) for name in others
        )
        connection.execute(sql.SQL("ALTER TABLE {} {}").format(holding, drops))
    for (index,) in connection.execute(_REFUSING_NOTHING, [holding.as_string(connection)]):
        connection.execute(sql.SQL("DROP INDEX {}").format(sql.SQL(index)))


def require_new_keys(connection: Connection, holding: sql.Identifier, table: str) -> None:
    """Refuse rows that have a unique key of a row in their table (DeliveryError).

    Partial indexes and those of expressions are left to the table.
    """
    for key, has_one_null in connection.execute(_KEYS, [holding.as_string(connection)]).fetchall():
        same = sql.SQL("IS NOT DISTINCT FROM" if has_one_null else "=")
        equal = sql.SQL(" AND ").join(
            sql.SQL("held.{name} {same} there.{name}").format(name=sql.Identifier(name), same=same)
            for name in key
        )
        found = connection.execute(
            sql.SQL("SELECT 1 FROM {} AS held JOIN {} AS there ON {} LIMIT 1").format(
                holding, sql.SQL(table), equal
            )
        ).fetchone()
        if found is not None:
            raise key_is_there(table, key)
