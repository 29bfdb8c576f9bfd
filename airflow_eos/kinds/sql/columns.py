"""Checks whether a table, or a system, takes a query's columns and values; pure.

They come before the decision: a decided row that is refused would hold the pipeline up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.errors import ConfigurationError, DeliveryError

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
"""The types of PostgreSQL, without a length, that hold every value of a Spark type."""
_OF_ANY_TEXT = ("UTF8", "SQL_ASCII")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")


@dataclass(frozen=True)
class TableDescription:
    """A table as the database describes it.

    Attributes:
        columns: by name: type, whether a row must give a value, whether the table generates it.
        keys: the columns of each unique index that an upsert can use as its key.
        uniques: the columns of every unique index, also of a partial one; empty for an expression.
        constraints: checks, foreign keys and exclusions.
        lacking: the rights that this user does not have.
        unfit: other faults of the table as a whole.
        inexact: columns whose collation takes different texts for one.
        encoding: the encoding of the database.
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
    description: TableDescription,
    columns: Mapping[str, str],
    key: Sequence[str],
    deleted: str | None,
) -> None:
    """Refuse a table that lacks a column, or that could refuse a row.

    Raises:
        ConfigurationError: all that is wrong, and what was expected.
    """
    wrong = [
        *description.unfit,
        *_of_columns(description, columns, {*key, deleted}),
        *_of_key(description, set(key)),
        *(f"gives this user no right to {right}" for right in description.lacking),
        *(
            f"has the constraint {name}, which could refuse a row"
            for name in description.constraints
        ),
    ]
    if wrong:
        raise ConfigurationError(
            f"Table {table!r} {'; '.join(wrong)}. What is decided must be written, or the pipeline "
            "stands still: change the table, or the columns (cast, drop) before the first row."
        )


def _of_columns(
    description: TableDescription, columns: Mapping[str, str], never_null: set[str | None]
) -> list[str]:
    wrong = []
    for name, spark in {VERSION: "string", **columns}.items():
        if name not in description.columns:
            wrong.append(f"has no column {name} ({'text' if name == VERSION else spark})")
            continue
        kind, required, generated = description.columns[name]
        if not _fits(spark, kind):
            wrong.append(f"has {name} as {kind}, which does not hold every {spark}")
        if generated:
            wrong.append(f"generates {name} itself")
        if required and name not in never_null:
            wrong.append(f"has {name} NOT NULL, and the query may give a null")
    wrong += [
        f"needs a value for {name}, which the rows do not have"
        for name, (_, required, _) in description.columns.items()
        if required and name not in columns and name != VERSION
    ]
    if "string" in columns.values() and description.encoding not in _OF_ANY_TEXT:
        wrong.append(
            f"is in a database of encoding {description.encoding}, which does not hold every string"
        )
    if VERSION in columns:
        wrong.append(f"keeps the versions of rows in {VERSION}, which is a column of the query too")
    return wrong


def _of_key(description: TableDescription, key: set[str]) -> list[str]:
    named = ", ".join(sorted(key))
    wrong = (
        [] if key in description.keys else [f"has no primary key or unique index of just {named}"]
    )
    if any(each != key for each in description.uniques):
        wrong.append("has another unique index, which could refuse a row")
    if inexact := sorted(key & description.inexact):
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


# --- values ---------------------------------------------------------------------------------------
# Checks in the task for values that a system could never write: once decided, they would stop it.
#
# Pure, and by whole columns.


_DAY_US = 86_400_000_000
_LAST_YEAR = 9999
_SLACK = 4096  # bytes for the parts of a statement besides a row's values
_ESCAPED = 2  # bytes that a byte of a value may take in a statement


@dataclass(frozen=True)
class Limits:
    """The greatest lengths of a table's values.

    Attributes:
        characters: of a text, by column.
        octets: of a text or of bytes, by column.
        row: the bytes of a row in a statement.
    """

    characters: Mapping[str, int]
    octets: Mapping[str, int]
    row: int


def refuse_numbers(rows: pa.RecordBatch, system: str) -> None:
    """Refuse NaN and infinite numbers (DeliveryError)."""
    for name, column in _columns(rows, pa.types.is_floating):
        # ``any`` of nulls alone is null, so they pass: a NaN should become one.
        if pc.any(pc.invert(pc.is_finite(column))).as_py():
            raise refused(
                f"A number in column {name} is NaN or infinite, which {system} cannot hold",
                "Make it null (nanvl, nullif)",
            )


def refuse_times(rows: pa.RecordBatch, system: str, *, first_year: int = 1) -> None:
    """Refuse dates and times before ``first_year`` or after 9999 (DeliveryError)."""
    epoch = date(1970, 1, 1)
    first = (date(first_year, 1, 1) - epoch).days
    last = (date(_LAST_YEAR, 12, 31) - epoch).days
    for name, column in _columns(rows, pa.types.is_temporal):
        # Compared as numbers: an instant counts in UTC, whatever zone it is shown in.
        if pa.types.is_timestamp(column.type):
            numbers = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
            low, high = first * _DAY_US, (last + 1) * _DAY_US - 1
        else:
            numbers = column.cast(pa.date32()).cast(pa.int32())
            low, high = first, last
        found = pc.min_max(numbers).as_py()
        if found["min"] is not None and (found["min"] < low or found["max"] > high):
            raise refused(
                f"A time in column {name} is before the year {first_year} or after {_LAST_YEAR}, "
                f"which {system} cannot hold",
                "Make it null, or take it out (filter)",
            )


def refuse_nulls(rows: pa.RecordBatch, never_null: Collection[str], table: str) -> None:
    """Refuse nulls in columns where the table would replace them by own values (DeliveryError)."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if name in never_null and column.null_count:
            raise refused(
                f"A row has no {name}, and no column of that name in {table} holds a null",
                "Drop the column from the rows where the table fills it, or give it a value",
            )


def refuse_nul(rows: pa.RecordBatch) -> None:
    """Refuse the character NUL, which no text of PostgreSQL can hold (DeliveryError)."""
    for name, column in _columns(rows, _is_text):
        if pc.any(pc.match_substring(column, "\0")).as_py():
            raise refused(
                f"A text in column {name} holds the character NUL, which PostgreSQL refuses",
                "Take it out (translate), or use bytea",
            )


def refuse_long_keys(rows: pa.RecordBatch, key: Sequence[str], octets: int) -> None:
    """Refuse columns of an index with more than ``octets``: it cannot hold them (DeliveryError)."""
    found = _octets([c for _, c in _columns(rows.select(list(key)), _has_length)])
    if found is not None and pc.any(pc.greater(found, pa.scalar(octets, pa.int64()))).as_py():
        raise refused(
            f"A key ({', '.join(key)}) is longer than {octets} bytes, which no index can hold",
            "Use a shorter one, such as a hash of it (sha2), or drop the index",
        )


def refuse_cells(rows: pa.RecordBatch, octets: int, system: str) -> None:
    """Refuse values of more than ``octets`` in a system that has no types (DeliveryError)."""
    for name, column in _columns(rows, _has_length):
        longest = pc.max(pc.binary_length(column)).as_py() or 0
        if longest > octets:
            raise refused(
                f"A value of column {name} has {longest} bytes: more than the {octets} that a "
                f"cell of {system} holds",
                "Cut it (left), or store it elsewhere and its place here",
            )


def refuse_longer(rows: pa.RecordBatch, limits: Limits) -> None:
    """Refuse values longer than their columns (DeliveryError)."""
    measured = (
        (limits.characters, _is_text, pc.utf8_length, "characters"),
        (limits.octets, _has_length, pc.binary_length, "bytes"),
    )
    for most, has_limit, length, unit in measured:
        for name, column in _columns(rows, has_limit):
            longest = pc.max(length(column)).as_py() or 0
            if longest > most.get(name, longest):
                raise refused(
                    f"A value of column {name} has {longest} {unit}: longer than the table's "
                    f"{most[name]} {unit}",
                    "Widen the column and start the query again, or cut the value (left)",
                )


def refuse_long_rows(rows: pa.RecordBatch, limits: Limits) -> None:
    """Refuse rows longer than a statement (DeliveryError)."""
    found = _octets([column for _, column in _columns(rows, _has_length)])
    longest = 0 if found is None else (pc.max(found).as_py() or 0) * _ESCAPED + _SLACK
    if longest > limits.row:
        raise refused(
            f"A row is longer than a statement: a row of up to {longest} bytes, and the server's "
            f"max_allowed_packet is {limits.row}",
            "Raise that, in the server's configuration, and start the query again",
        )


def hex_digits(column: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """Return the hex digits of each value, computed for all bytes at once."""
    if not len(column):
        return column.cast(pa.large_string())
    # A slice shares the buffers of its whole array, and has its offset in them.
    validity, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64, count=column.offset + len(column) + 1)
    digits = pa.py_buffer(bytes(data or b"").hex().encode())
    return pa.LargeStringArray.from_buffers(
        len(column), pa.py_buffer(ends * 2), digits, validity, -1, column.offset
    )


def bytea_text(column: pa.LargeBinaryArray) -> pa.LargeStringArray:
    r"""Return each value as ``\x…``, as PostgreSQL reads it."""
    begin, between = (pa.scalar(each, pa.large_string()) for each in ("\\x", ""))
    return pc.binary_join_element_wise(begin, hex_digits(column), between)


def _octets(columns: Sequence[pa.Array]) -> pa.Array | None:
    """Return the sum of each row's bytes in these columns."""
    total = None
    for column in columns:
        length = pc.fill_null(pc.binary_length(column).cast(pa.int64()), 0)
        total = length if total is None else pc.add(total, length)
    return total


def _columns(rows: pa.RecordBatch, wanted: Callable[[Any], bool]) -> Iterator[tuple[str, pa.Array]]:
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if wanted(column.type):
            yield name, column


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _has_length(kind: pa.DataType) -> bool:
    return bool(_is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def refused(what: str, instead: str) -> DeliveryError:
    """Return the error for rows that cannot be written."""
    return DeliveryError(f"{what}. Nothing of its batch was written. {instead}.")
