"""Rows as the cells of HBase, in the form that its REST server reads; pure, and by whole columns.

A request is a ``CellSet`` of Protocol Buffers: rows, each a key and its cells, each a column, a
timestamp and a value. Here every row of a work has one timestamp, which is its version::

    bits  62 … 51   50 … 20   19 … 0
          epoch     batch     task

Greater than any clock's milliseconds from the first epoch on, and less than the greatest number,
which HBase takes for *now*.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_eos.errors import DeliveryError
from airflow_eos.participants.upsert.arguments import joined_keys, text_of

if TYPE_CHECKING:
    from airflow_eos.participants.upsert.target import About

NULLS = "_eos"
"""The cell that every row has: the names of the columns that are null, as JSON."""
LAST_EPOCH = (1 << 12) - 2
NEWEST = (1 << 63) - 2
"""A timestamp that no version exceeds."""

_BATCH_BITS, _TASK_BITS = 31, 20
_ROWS = 50_000  # encoded at once
_REQUEST = 4 << 20  # bytes, or one row
_BYTES = pa.large_binary()
_KEY, _CELL, _ROW = b"\x0a", b"\x12", b"\x0a"  # a field's number and kind, of its message
_COLUMN, _TIMESTAMP, _DATA = b"\x12", b"\x18", b"\x22"


def version_of(epoch: int, batch: int, task: int) -> int:
    """The timestamp of a row.

    Raises:
        DeliveryError: no timestamp can hold it.
    """
    if epoch > LAST_EPOCH or batch >> _BATCH_BITS or task >> _TASK_BITS:
        raise DeliveryError(
            f"A timestamp of HBase holds epochs to {LAST_EPOCH}, batches below 2^{_BATCH_BITS} and "
            f"tasks below 2^{_TASK_BITS}: epoch {epoch}, batch {batch}, task {task} is beyond "
            "that. Nothing of it was written. Use a new table, or fewer partitions."
        )
    return (epoch << _BATCH_BITS | batch) << _TASK_BITS | task


def epoch_in(timestamp: int) -> int:
    """The epoch of a version."""
    return timestamp >> (_BATCH_BITS + _TASK_BITS)


def requests_of(rows: pa.Table, about: About, family: str, version: int) -> Iterator[pa.Buffer]:
    """Bodies of requests that write the rows, some megabytes each."""
    for at in range(0, rows.num_rows, _ROWS):
        some = rows.slice(at, _ROWS)
        yield from _cut(_encoded(_keys(some, about), _cells(some, about), family, version))


def _keys(rows: pa.Table, about: About) -> pa.Array:
    return _bytes(joined_keys(rows, about.key))


def _cells(rows: pa.Table, about: About) -> dict[str, pa.Array]:
    """Values by column; a null is empty, and named in one more cell."""
    gone = None
    if about.deleted is not None:
        gone = pc.fill_null(rows[about.deleted], False)  # noqa: FBT003
    cells, nulls = {}, []
    for name in rows.column_names:
        if name in about.key:
            continue
        column = gone if name == about.deleted and gone is not None else rows[name]
        if gone is not None and name != about.deleted:
            column = pc.if_else(gone, pa.scalar(None, column.type), column)
        cells[name] = _bytes(pc.fill_null(text_of(column), b""))
        named, nothing = pa.scalar(f"{json.dumps(name)},".encode(), _BYTES), pa.scalar(b"", _BYTES)
        nulls.append(pc.if_else(_whole(pc.is_null(column)), named, nothing))
    cells[NULLS] = _list(nulls) if nulls else pa.repeat(pa.scalar(b"[]", _BYTES), rows.num_rows)
    return cells


def _list(names: list[pa.Array]) -> pa.Array:
    """Of each row those that are there, as a list of JSON; each ends with a comma so far."""
    joined = _joined([pa.scalar(b"[", _BYTES), *names, pa.scalar(b"]", _BYTES)])
    return pc.replace_substring_regex(joined, pattern=r",\]$", replacement="]")


def _encoded(
    keys: pa.Array, cells: dict[str, pa.Array], family: str, version: int
) -> pa.LargeBinaryArray:
    """Each row as a field of the message."""
    row = [_field(_KEY, keys)]
    for name, values in cells.items():
        column = f"{family}:{name}".encode()
        head = _COLUMN + _varint(len(column)) + column + _TIMESTAMP + _varint(version)
        row.append(_field(_CELL, _joined([pa.scalar(head, _BYTES), _field(_DATA, values)])))
    return _field(_ROW, _joined(row))


def _field(tag: bytes, content: pa.Array) -> pa.Array:
    lengths = pc.binary_length(content).to_numpy(zero_copy_only=False)
    return _joined([pa.scalar(tag, _BYTES), _varints(lengths), content])


def _joined(parts: list[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", _BYTES))


def _varints(numbers: NDArray[np.int64]) -> pa.LargeBinaryArray:
    """Numbers below 2^35, seven bits a byte, lowest first; the top bit says that more come."""
    shifts = np.arange(0, 35, 7)
    width = 1 + (numbers[:, None] >= (1 << shifts[1:])).sum(axis=1)
    place = np.arange(len(shifts))
    codes = (numbers[:, None] >> shifts) & 0x7F
    codes[place < (width - 1)[:, None]] |= 0x80
    data = codes[place < width[:, None]].astype(np.uint8)
    offsets = np.concatenate([[0], np.cumsum(width)]).astype(np.int64)
    return pa.LargeBinaryArray.from_buffers(
        _BYTES, len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _cut(rows: pa.LargeBinaryArray) -> Iterator[pa.Buffer]:
    """What lies one after the other, in pieces of whole rows."""
    _, offsets, data = rows.buffers()
    ends = np.frombuffer(offsets, np.int64)[rows.offset : rows.offset + len(rows) + 1]
    at = 0
    while at < len(rows):
        until = int(np.searchsorted(ends, ends[at] + _REQUEST, side="right")) - 1
        until = max(until, at + 1)
        yield data.slice(int(ends[at]), int(ends[until] - ends[at]))
        at = until


def _bytes(column: pa.ChunkedArray) -> pa.Array:
    return _whole(column).cast(_BYTES)


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
