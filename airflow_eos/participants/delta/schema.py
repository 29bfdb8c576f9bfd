"""Which columns fit a Delta table; Delta and Spark write types in the same JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_eos.participants.lake.nullability import is_looser

Fields = Mapping[str, Any]
"""A struct as Spark's ``StructType.jsonValue()`` gives it, or Delta's ``Schema.to_json()``."""

_REFUSED_OF_FIELDS = ("delta.generationExpression", "delta.invariants", "delta.identity.")


def misfit(rows: Fields, table: Fields) -> str | None:
    """Why rows of these columns cannot be appended to the table; None where they can.

    A column that the table allows to be null may be missing.
    """
    ours = {field["name"]: field for field in rows["fields"]}
    theirs = {field["name"]: field for field in table["fields"]}
    foreign = sorted(ours.keys() - theirs.keys())
    if foreign:
        return f"the table has no column {', '.join(foreign)}"
    for name, field in theirs.items():
        nullable = name not in ours or ours[name]["nullable"]
        if nullable and not field["nullable"]:
            return f"column {name} may be null or missing, and the table says NOT NULL"
        if name in ours and _plain(ours[name]["type"]) != _plain(field["type"]):
            return (
                f"column {name} is {_plain(ours[name]['type'])}, and {_plain(field['type'])} in "
                "the table"
            )
        if name in ours and is_looser(ours[name]["type"], field["type"], _within):
            return f"column {name} may be null within, where the table says NOT NULL"
    return None


def _within(kind: Any) -> list[tuple[bool, Any]]:
    """See :data:`Within`."""
    if not isinstance(kind, dict):
        return []
    if kind["type"] == "struct":
        return [(field["nullable"], field["type"]) for field in kind["fields"]]
    if kind["type"] == "array":
        return [(kind["containsNull"], kind["elementType"])]
    return [(False, kind["keyType"]), (kind["valueContainsNull"], kind["valueType"])]


def computed(schema: Fields) -> list[str]:
    """The columns that the table wants its writer to compute or to check, at any depth."""
    found = []
    for field in schema["fields"]:
        if any(key.startswith(_REFUSED_OF_FIELDS) for key in field["metadata"]):
            found.append(field["name"])
        found += [f"{field['name']}.{name}" for name in _computed_within(field["type"])]
    return found


def _computed_within(kind: Any) -> list[str]:
    if not isinstance(kind, dict):
        return []
    if kind["type"] == "struct":
        return computed(kind)
    inner = [kind.get(part) for part in ("elementType", "keyType", "valueType")]
    return [name for each in inner for name in _computed_within(each)]


def _plain(kind: Any) -> Any:
    """A type without what is no matter of its bytes: nullability within, and comments."""
    if isinstance(kind, list):
        return [_plain(each) for each in kind]
    if not isinstance(kind, dict):
        return kind
    left_out = {"nullable", "containsNull", "valueContainsNull", "metadata"}
    return {key: _plain(value) for key, value in kind.items() if key not in left_out}
