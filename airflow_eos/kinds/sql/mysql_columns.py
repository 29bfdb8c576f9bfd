"""What a column of MySQL or MariaDB holds, and which triggers a table has."""

from __future__ import annotations

import re
from typing import Any

from airflow_eos.kinds.sql.columns import Limits

__all__ = ["TRIGGERS", "fits", "limits", "rows_of"]

_LENGTHS = """
SELECT column_name, character_maximum_length, character_octet_length, character_set_name
FROM information_schema.columns WHERE table_schema = database() AND table_name = %s
AND character_octet_length IS NOT NULL
"""
TRIGGERS = """
SELECT DISTINCT trigger_name FROM information_schema.triggers
WHERE event_object_schema = database() AND event_object_table = %s
AND event_manipulation IN ('INSERT', %s)
/*!80000 UNION SELECT '(any: GRANT TRIGGER to this user itself, who may not see them)' FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM (
  SELECT grantee, privilege_type AS may FROM information_schema.user_privileges
  UNION ALL SELECT grantee, privilege_type FROM information_schema.schema_privileges
  WHERE database() LIKE table_schema
  UNION ALL SELECT grantee, privilege_type FROM information_schema.table_privileges
  WHERE table_schema = database() AND table_name = %s) AS rights
WHERE may = 'TRIGGER'
AND grantee = (SELECT concat(quote(substring_index(current_user(), '@', 1)), '@',
  quote(substring_index(current_user(), '@', -1))))) */
"""

_FITS = {
    "boolean": r"tinyint\(1\)|bool(ean)?",
    "tinyint": r"(tiny|small|big)?int(\(\d+\))?",
    "smallint": r"(small|big)?int(\(\d+\))?",
    "int": r"(big)?int(\(\d+\))?",
    "bigint": r"bigint(\(\d+\))?",
    "float": r"double",
    "double": r"double",
    "string": r"(medium|long)?text|varchar\(\d+\)",
    "version": r"(medium|long)?text|varchar\((4[5-9]|[5-9]\d|\d{3,})\)",
    "binary": r"(medium|long)?blob|varbinary\(\d+\)",
    "date": r"date",
    "timestamp": r"datetime\(6\)",
    "timestamp_ntz": r"datetime\(6\)",
}
"""The types of MySQL, as a pattern, for each Spark type; tasks check the lengths of texts."""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def rows_of(cursor: Any, statement: str, *given: object) -> list[Any]:
    """Run a statement and return the rows of its answer."""
    cursor.execute(statement, given or None)
    return list(cursor.fetchall())


def limits(cursor: Any, table: str) -> Limits:
    """Return the greatest lengths of the table's values."""
    lengths = rows_of(cursor, _LENGTHS, table)
    [(packet,)] = rows_of(cursor, "SELECT @@max_allowed_packet")
    return Limits(
        characters={name: most for name, most, _, charset in lengths if charset is not None},
        # Our texts are UTF-8: octets of another character set are no limit for them.
        octets={
            name: octets
            for name, _, octets, charset in lengths
            if (charset or "utf8")[:4] == "utf8"
        },
        row=packet,
    )


def fits(spark: str, kind: str) -> bool:
    """Whether a column of MySQL's ``kind`` holds every value of a Spark type."""
    if decimal := _DECIMAL.fullmatch(spark):
        held = _DECIMAL.fullmatch(kind)
        digits, scale = int(decimal[1]), int(decimal[2])
        return held is not None and (
            int(held[2]) >= scale and int(held[1]) - int(held[2]) >= digits - scale
        )
    return re.fullmatch(_FITS.get(spark, "(?!)"), kind) is not None
