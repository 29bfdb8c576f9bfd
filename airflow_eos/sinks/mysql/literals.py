"""Rows in Arrow as the literals of an INSERT; pure, and column by column.

PyMySQL's own ``executemany`` makes a Python object of each value, and LOAD DATA LOCAL has to be
allowed on the server and lets it ask the client for files. Here no row is ever a Python object: a
statement is a slice of a buffer that Arrow has joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from airflow_eos.errors import DeliveryError

if TYPE_CHECKING:
    import pyarrow as pa


def statements(rows: pa.RecordBatch, head: bytes, most: int) -> Iterator[bytes]:
    """``head`` and as many rows as fit into ``most`` bytes, again and again.

    Raises:
        DeliveryError: a row alone is longer.
    """
    text = _tuples(rows)
    _, offsets, data = text.buffers()
    ends = np.frombuffer(offsets, np.int64, count=text.offset + len(text) + 1)[text.offset :]
    room = most - len(head)
    if (longest := int(np.diff(ends).max(initial=0))) > room:
        raise DeliveryError(
            f"A row is {longest} bytes as a statement, and the server's max_allowed_packet leaves "
            f"{room}. Nothing was made visible. Raise it, or send less in a row."
        )
    at = 0
    while at < len(text):
        to = int(np.searchsorted(ends, ends[at] + room, side="right")) - 1
        yield head + data[int(ends[at]) : int(ends[to]) - 1].to_pybytes()  # not the last comma
        at = to


def _tuples(rows: pa.RecordBatch) -> pa.LargeStringArray:
    """``(1, 'a'),`` for each row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [
        pc.fill_null(_literals(column), pa.scalar("NULL", pa.large_string()))
        for column in rows.columns
    ]
    comma = _text(",")
    parts = [columns[0], *(part for column in columns[1:] for part in (comma, column))]
    return pc.binary_join_element_wise(_text("("), *parts, _text("),"), _text(""))


def _literals(column: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(pa.large_string())
    if pa.types.is_integer(kind):
        return column.cast(pa.large_string())
    if pa.types.is_floating(kind):
        # With an exponent it is read as a double, and not as a decimal of some digits.
        text = column.cast(pa.float64()).cast(pa.large_string())
        return pc.if_else(pc.match_substring(text, "e"), text, _joined(text, "e0"))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _joined("x'", _hex(column.cast(pa.large_binary())), "'")
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).cast(pa.timestamp("us"))
    text = column.cast(pa.large_string())
    return _joined("'", pc.replace_substring(text, "'", "''"), "'")


def _hex(column: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """Two digits for each byte: all bytes at once."""
    import pyarrow as pa

    if not len(column):
        return column.cast(pa.large_string())
    # A slice has the buffers of the whole, and says where in them it begins.
    validity, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64, count=column.offset + len(column) + 1)
    digits = pa.py_buffer(bytes(data or b"").hex().encode())
    return pa.LargeStringArray.from_buffers(
        len(column), pa.py_buffer(ends * 2), digits, validity, -1, column.offset
    )


def _joined(*parts: pa.Array | str) -> pa.Array:
    import pyarrow.compute as pc

    whole = [_text(part) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*whole, _text(""))


def _text(value: str) -> pa.Scalar:
    import pyarrow as pa

    return pa.scalar(value, pa.large_string())
