"""What a table of HBase must be like; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_eos.errors import ConfigurationError

_FOREVER = 2147483647  # seconds
_UNSAFE = ("SKIP_WAL", "ASYNC_WAL")


def refuse_schema(table: str, family: str, schema: Mapping[str, Any] | None) -> None:
    """Refuse a table that is not there, or could forget rows; ``schema`` as the REST server says.

    Raises:
        ConfigurationError: all that is wrong, and what was expected.
    """
    if schema is None:
        raise ConfigurationError(
            f"There is no table {table!r} for this user: create it (in the HBase shell: "
            f"create '{table}', '{family}')."
        )
    families = {each["name"]: each for each in schema.get("ColumnSchema", ())}
    if family not in families:
        raise ConfigurationError(
            f"Table {table!r} has no column family {family!r}: it has "
            f"{', '.join(sorted(families))}. Create it (alter '{table}', '{family}'), or give one "
            "of these."
        )
    wrong = []
    if int(families[family].get("TTL", _FOREVER)) != _FOREVER:
        wrong.append(
            f"has a TTL of {families[family]['TTL']} s on {family}, and timestamps that are "
            "versions tell no age: expected none "
            f"(alter '{table}', {{NAME => '{family}', TTL => 'FOREVER'}})"
        )
    if schema.get("DURABILITY") in _UNSAFE:
        wrong.append(
            f"has the durability {schema['DURABILITY']}, which loses what was acknowledged: "
            f"expected SYNC_WAL (alter '{table}', DURABILITY => 'SYNC_WAL')"
        )
    if str(schema.get("READONLY", "false")).lower() == "true":
        wrong.append(f"is read-only (alter '{table}', READONLY => 'false')")
    if wrong:
        raise ConfigurationError(f"Table {table!r} {'; '.join(wrong)}.")
