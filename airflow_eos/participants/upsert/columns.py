"""Whether a table takes what a query gives; pure.

Asked before the first row: what is decided and then refused would hold the pipeline up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_eos.errors import ConfigurationError

VERSION = "eos_version"

_FITS = {
    "boolean": ("boolean",),
    "tinyint": ("smallint", "integer", "bigint", "numeric"),
    "smallint": ("smallint", "integer", "bigint", "numeric"),
    "int": ("integer", "bigint", "numeric"),
    "bigint": ("bigint", "numeric"),
    "float": ("real", "double precision"),
    "double": ("double precision",),
    "string": ("text", "character varying"),
    "binary": ("bytea",),
    "date": ("date",),
    "timestamp": ("timestamp with time zone",),
    "timestamp_ntz": ("timestamp without time zone",),
}
"""By Spark's type, those of PostgreSQL that hold every value of it; without a length."""
_OF_ANY_TEXT = ("UTF8", "SQL_ASCII")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")


@dataclass(frozen=True)
class Described:
    """What the database says of a table.

    Attributes:
        columns: by name: type, whether a row must give a value, whether the table makes it.
        keys: the columns of each unique index that tells rows apart for an upsert.
        uniques: those of every unique index, also of a part of the rows; none of an expression.
        constraints: checks, foreign keys and exclusions.
        lacking: the rights that this user does not have.
        unfit: what else is wrong with the table as a whole.
        inexact: columns whose collation takes different texts for one.
        encoding: of the database.
    """

    columns: dict[str, tuple[str, bool, bool]]
    keys: list[set[str]]
    uniques: list[set[str]]
    constraints: list[str]
    lacking: list[str] = field(default_factory=list)
    unfit: list[str] = field(default_factory=list)
    inexact: frozenset[str] = frozenset()
    encoding: str = "UTF8"


def refuse_columns(
    table: str,
    found: Described,
    columns: Mapping[str, str],
    key: Sequence[str],
    deleted: str | None,
) -> None:
    """Refuse a table that lacks a column, or that could refuse a row.

    Raises:
        ConfigurationError: all that is wrong, and what was expected.
    """
    wrong = [
        *found.unfit,
        *_of_columns(found, columns, {*key, deleted}),
        *_of_key(found, set(key)),
        *(f"gives this user no right to {right}" for right in found.lacking),
        *(f"has the constraint {name}, which could refuse a row" for name in found.constraints),
    ]
    if wrong:
        raise ConfigurationError(
            f"Table {table!r} {'; '.join(wrong)}. What is decided must be written, or the pipeline "
            "stands still: change the table, or the columns (cast, drop) before the first row."
        )


def _of_columns(
    found: Described, columns: Mapping[str, str], never_null: set[str | None]
) -> list[str]:
    wrong = []
    for name, spark in {VERSION: "string", **columns}.items():
        if name not in found.columns:
            wrong.append(f"has no column {name} ({'text' if name == VERSION else spark})")
            continue
        kind, required, generated = found.columns[name]
        if not _fits(spark, kind):
            wrong.append(f"has {name} as {kind}, which does not hold every {spark}")
        if generated:
            wrong.append(f"generates {name} itself")
        if required and name not in never_null:
            wrong.append(f"has {name} NOT NULL, and the query may give a null")
    wrong += [
        f"needs a value for {name}, which the rows do not have"
        for name, (_, required, _) in found.columns.items()
        if required and name not in columns and name != VERSION
    ]
    if "string" in columns.values() and found.encoding not in _OF_ANY_TEXT:
        wrong.append(
            f"is in a database of encoding {found.encoding}, which does not hold every string"
        )
    if VERSION in columns:
        wrong.append(f"keeps the versions of rows in {VERSION}, which is a column of the query too")
    return wrong


def _of_key(found: Described, key: set[str]) -> list[str]:
    named = ", ".join(sorted(key))
    wrong = [] if key in found.keys else [f"has no primary key or unique index of just {named}"]
    if any(each != key for each in found.uniques):
        wrong.append("has another unique index, which could refuse a row")
    if inexact := sorted(key & found.inexact):
        wrong.append(
            f"has the key {', '.join(inexact)} in a nondeterministic collation, which takes "
            'different texts for one (COLLATE "C")'
        )
    return wrong


def _fits(spark: str, kind: str) -> bool:
    if decimal := _DECIMAL.fullmatch(spark):
        if kind == "numeric":
            return True
        numeric = _NUMERIC.fullmatch(kind)
        digits, scale = int(decimal[1]), int(decimal[2])
        return numeric is not None and (
            int(numeric[2]) >= scale and int(numeric[1]) - int(numeric[2]) >= digits - scale
        )
    return kind in _FITS.get(spark, ())
