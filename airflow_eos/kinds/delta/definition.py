"""Columns that rows have and a Delta table has not.

delta-rs commits new columns by themselves: a column that may be null changes no row, so it comes
just before the commit of its rows, and who is killed in between finds it there. It widens no type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from deltalake import DeltaTable

EVOLVES = "evolves"
"""What a decision says of files that may have columns which the table has not."""
_NO_NAME = re.compile(r"[ ,;{}()\n\t=]")


def new_columns(rows: Mapping[str, Any], table: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the fields of rows that the table is to get, which may be null.

    Raises:
        ConfigurationError: a column that the table cannot get.
    """
    there = {field["name"]: field["name"].lower() for field in table["fields"]}
    new: list[Mapping[str, Any]] = [
        {**field, "nullable": True} for field in rows["fields"] if field["name"] not in there
    ]
    for field in new:
        name = field["name"]
        if name.lower() in there.values() or _NO_NAME.search(name):
            raise ConfigurationError(
                f"The table cannot get a column {name!r}: expected a name that differs from the "
                "others not only by case, without spaces and ,;{}()=. Rename it in the rows, which "
                f"have {_said(rows)}; the table has {_said(table)}."
            )
    return new


def without(rows: Mapping[str, Any], columns: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rows' schema without some columns."""
    left_out = {field["name"] for field in columns}
    fields = [field for field in rows["fields"] if field["name"] not in left_out]
    return {**rows, "fields": fields}


def add(table: DeltaTable, columns: list[Mapping[str, Any]]) -> None:
    """Commit new columns."""
    from deltalake import Schema

    given = json.dumps(
        {"type": "struct", "fields": [{**field, "metadata": {}} for field in columns]}
    )
    table.alter.add_columns(list(Schema.from_json(given).fields))


def both(rows: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    """Say the columns of rows and of a table."""
    return f"The rows have {_said(rows)}; the table has {_said(table)}"


def _said(fields: Mapping[str, Any]) -> str:
    kinds = ((field["name"], field["type"]) for field in fields["fields"])
    return ", ".join(
        f"{name} {kind if isinstance(kind, str) else kind['type']}" for name, kind in kinds
    )
