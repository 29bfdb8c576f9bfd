"""Rows in Arrow as the text that COPY reads, and the columns of a table that can take them.

Text, since it goes through PostgreSQL's own input functions: a string may become jsonb or uuid. It
is made by Arrow, column by column; no row is ever a Python object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from airflow_eos.errors import ConfigurationError
from airflow_eos.participants.upsert.values import Limits

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.participants.postgres.session import Connection

_TEXT = ("text", "varchar", "bpchar", "citext", "json", "jsonb", "uuid", "xml", "inet", "cidr")
_WHOLE = ("int2", "int4", "int8")
_ACCEPTED: dict[str, tuple[str, ...]] = {
    "string": _TEXT,
    "binary": ("bytea",),
    "boolean": ("bool",),
    "tinyint": _WHOLE,
    "smallint": _WHOLE,
    "int": _WHOLE[1:],
    "bigint": _WHOLE[2:],
    "float": ("float4", "float8"),
    "double": ("float8",),
    "date": ("date",),
    "timestamp": ("timestamptz",),
    "timestamp_ntz": ("timestamp",),
}
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_MICROSECONDS = 6
_COLUMNS = """
SELECT a.attname, coalesce(b.typname, t.typname),
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
       coalesce(b.typtype, t.typtype) = 'e',
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
       CASE WHEN a.attgenerated <> '' THEN 'is generated'
            WHEN a.attidentity = 'a' THEN 'is GENERATED ALWAYS AS IDENTITY' END
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type b ON b.oid = t.typbasetype
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        name: as it is.
        type: PostgreSQL's own name of it (of a domain: what it is based on).
        modifier: ``atttypmod``: length, precision; -1 for none.
        is_enum: any label is sent as a string.
        is_required: it has neither nulls nor a default.
        is_made: why nobody may write it; None where one may.
    """

    name: str
    type: str
    modifier: int = -1
    is_enum: bool = False
    is_required: bool = False
    is_made: str | None = None


def columns_of(connection: Connection, table: str) -> list[Column]:
    """The columns of ``table``; none where there is no such table."""
    return [Column(*found) for found in connection.execute(_COLUMNS, [table])]


def limits_of(columns: list[Column]) -> Limits:
    """How long texts may be: spaces beyond that PostgreSQL would cut in silence."""
    most = {c.name: c.modifier - 4 for c in columns if c.type == "varchar" and c.modifier > 0}
    return Limits(characters=most, octets={}, row=0)


def check_columns(types: dict[str, str], columns: list[Column], table: str) -> None:
    """Refuse rows that the table could not take as they are.

    Args:
        types: of the rows, name to Spark's simple name of the type.
        columns: of the table.
        table: for people.

    Raises:
        ConfigurationError: which column, and what to do.
    """
    there = {column.name: column for column in columns}
    for name, found in types.items():
        column = there.get(name)
        if column is None:
            raise ConfigurationError(
                f"Table {table} has no column {name!r} (found: {', '.join(there)}; capitals "
                "count). Drop it, or rename it."
            )
        if column.is_made:
            raise ConfigurationError(
                f"Column {name!r} of table {table} {column.is_made}: the database fills it. Drop "
                "it from the rows."
            )
        if not fits(found, column):
            raise ConfigurationError(
                f"Column {name!r} is of type {found}, and of type {column.type}"
                f"{_modified(column)} in table {table}. {_hint(name, found, column)}"
            )
    missing = [c.name for c in columns if c.is_required and c.name not in types]
    if missing:
        raise ConfigurationError(
            f"Table {table} needs {', '.join(missing)}, which the rows do not have: NOT NULL "
            "without a default. Select them."
        )


def fits(spark: str, column: Column) -> bool:
    """Whether each value of the Spark type is the same value in the column, none rounded."""
    decimal = _DECIMAL.fullmatch(spark)
    if decimal is not None:
        if column.type != "numeric" or column.modifier < 0:
            return column.type == "numeric"
        precision, scale = numeric(column.modifier)
        return int(decimal[2]) <= scale and int(decimal[1]) - int(decimal[2]) <= precision - scale
    if column.type in ("timestamp", "timestamptz") and column.modifier not in (-1, _MICROSECONDS):
        return False
    if spark == "string" and column.is_enum:
        return True
    return column.type in _ACCEPTED.get(spark, ())


def numeric(modifier: int) -> tuple[int, int]:
    """Precision and scale of ``numeric``, from ``atttypmod`` (numeric_typmod_precision)."""
    packed = modifier - 4
    return (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024


def _modified(column: Column) -> str:
    if column.modifier < 0:
        return ""
    if column.type == "numeric":
        return "({},{})".format(*numeric(column.modifier))
    return f"({column.modifier})"


def _hint(name: str, spark: str, column: Column) -> str:
    taken = [each for each, types in _ACCEPTED.items() if column.type in types]
    if spark.startswith(("array", "map", "struct")):
        return f"Send it as text into a jsonb column: to_json({name})."
    if column.type == "numeric":
        return "Cast it to a decimal that fits without being rounded."
    return f"Expected {' or '.join(taken) or 'another type in the table'}: cast it."


def as_csv(rows: pa.RecordBatch) -> memoryview:
    """The rows as COPY's CSV: nulls are empty, strings are quoted, also the empty one."""
    import pyarrow as pa
    from pyarrow import csv

    columns = [_as_text(column) for column in rows.columns]
    out = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, batch_size=max(1, rows.num_rows))
    csv.write_csv(pa.RecordBatch.from_arrays(columns, names=rows.schema.names), out, options)
    return memoryview(out.getvalue())


def _as_text(column: pa.Array) -> pa.Array:
    """What Arrow's CSV cannot say, or would say in another zone."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())  # a column may be wider, and hold more of its digits
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return column.cast(pa.timestamp("us", "UTC"))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return _as_hex(column.cast(pa.large_binary()))
    if kind == pa.string_view():
        return column.cast(pa.large_string())
    return column


def _as_hex(column: pa.LargeBinaryArray) -> pa.Array:
    r"""``\x…`` for each value: all bytes at once."""
    import pyarrow as pa
    from pyarrow import compute

    if not len(column):
        return column.cast(pa.large_string())
    # A slice has the buffers of the whole, and says where in them it begins.
    validity, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64, count=column.offset + len(column) + 1)
    digits = bytes(data or b"").hex().encode()
    text = pa.LargeStringArray.from_buffers(
        len(column), pa.py_buffer(ends * 2), pa.py_buffer(digits), validity, -1, column.offset
    )
    begin, between = (pa.scalar(each, pa.large_string()) for each in ("\\x", ""))
    return compute.binary_join_element_wise(begin, text, between)
