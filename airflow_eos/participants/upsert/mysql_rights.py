"""What of a table in MySQL could refuse or change a row beside its columns: rights, triggers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from airflow_eos.errors import ConfigurationError
from airflow_eos.participants.upsert.columns import VERSION
from airflow_eos.participants.upsert.mysql_statements import upserted

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
