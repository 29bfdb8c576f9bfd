"""Arrow columns as rows of 16-byte views, and views put together to one run of bytes.

Arrow's *view* layout (https://arrow.apache.org/docs/format/Columnar.html, "Variable-size Binary
View") describes a value in two 64-bit words, little endian::

    up to 12 bytes:  | length u32 | bytes 0-3 |   | bytes 4-11             |
    longer:          | length u32 | prefix    |   | buffer u32 | offset u32 |

So rows are sorted, repeated and interleaved with literal bytes by moving 16 bytes each, never
their content. Casting such an array from ``binary_view`` to ``binary`` then copies every content
once, in C++: the data buffer of the result is what we want to send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_eos.errors import RowError
from airflow_eos.kafka.records.varint import U64, Field, Words

INLINE_BYTES = 12
_LENGTH_MASK = U64(0xFFFFFFFF)
_HALF = U64(32)
_NO_BYTES = pa.py_buffer(b"")


@dataclass(frozen=True, slots=True)
class Views:
    """A column of byte strings: ``words`` has two a row; a null row has the length 0."""

    words: NDArray[np.uint64]
    nulls: NDArray[np.bool_] | None
    buffers: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.words)

    @property
    def lengths(self) -> Words:
        """Bytes of each row."""
        return self.words[:, 0] & _LENGTH_MASK

    def take(self, order: NDArray[np.int64]) -> Views:
        """The rows in another order."""
        return Views(
            self.words.take(order, axis=0),
            None if self.nulls is None else self.nulls.take(order),
            self.buffers,
        )

    def slice(self, start: int, stop: int) -> Views:
        """Rows ``start`` to ``stop - 1``."""
        nulls = None if self.nulls is None else self.nulls[start:stop]
        return Views(self.words[start:stop], nulls, self.buffers)


def views_of(column: Any, name: str) -> Views:
    """The views of any binary or string column; strings are their UTF-8 bytes.

    Raises:
        RowError: the column is neither; the message says how to convert it.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if not (_is_bytes(kind) or pa.types.is_null(kind)):
        raise RowError(
            f"column {name!r} is {kind}: expected binary or string; "
            f"cast it, for example with CAST({name} AS STRING) or to_json({name})"
        )
    column = _as_binary_view(column)
    _, views, *others = column.buffers()
    # Where no value needs one, pyarrow below 20 gives none; views count them by their place.
    buffers = tuple(_NO_BYTES if each is None else each for each in others)
    if len(column) == 0:
        return Views(np.empty((0, 2), np.uint64), None)
    words = np.frombuffer(views, np.uint64)[2 * column.offset : 2 * (column.offset + len(column))]
    words = words.reshape(-1, 2)
    if not column.null_count:
        return Views(words, None, buffers)
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    # What a null row's view holds is undefined: make it an empty string.
    return Views(np.where(nulls[:, np.newaxis], U64(0), words), nulls, buffers)


def _is_bytes(kind: Any) -> bool:
    tests = (
        pa.types.is_binary,
        pa.types.is_string,
        pa.types.is_large_binary,
        pa.types.is_large_string,
        pa.types.is_binary_view,
        pa.types.is_string_view,
        pa.types.is_fixed_size_binary,
    )
    return any(test(kind) for test in tests)


def _as_binary_view(column: Any) -> Any:
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    try:
        return column.cast(pa.binary_view())
    except pa.ArrowCapacityError:
        # A slice of a buffer of more than 2 GiB: views count offsets in 32 bits. Copy the slice.
        return column.take(pa.array(np.arange(len(column)))).cast(pa.binary_view())


def interleaved(columns: list[Field | Views], count: int, *, last: Field | None = None) -> Any:
    """Row after row, column after column, as one ``pa.BinaryArray``: ``len(columns)`` items a row.

    ``last`` is one more item after all rows. The result must stay below 2 GiB, which its 32-bit
    offsets can count.
    """
    width = len(columns)
    items = np.empty((count * width + (last is not None), 2), np.uint64)
    rows = items[: count * width].reshape(count, width, 2)
    buffers: list[Any] = []
    for place, column in enumerate(columns):
        if isinstance(column, Field):
            rows[:, place, 0] = (column.code << _HALF) | column.width
            rows[:, place, 1] = column.code >> _HALF
            continue
        rows[:, place] = column.words
        if buffers and column.buffers:
            # The low half of a long view's second word is the index of its buffer.
            rows[:, place, 1] += U64(len(buffers)) * (column.lengths > U64(INLINE_BYTES))
        buffers += column.buffers
    if last is not None:
        items[-1] = (last.code << _HALF) | last.width, last.code >> _HALF
    array = pa.Array.from_buffers(
        pa.binary_view(), len(items), [None, pa.py_buffer(items), *buffers], null_count=0
    )
    return array.cast(pa.binary())


def offsets_of(array: Any) -> NDArray[np.int32]:
    """The offsets of a ``pa.BinaryArray`` that is not a slice."""
    return np.frombuffer(array.buffers()[1], np.int32)[: len(array) + 1]


def content_of(array: Any) -> memoryview:
    """The bytes of all items of a ``pa.BinaryArray`` that is not a slice, one after the other."""
    data = array.buffers()[2]
    return memoryview(b"") if data is None else memoryview(data)[: int(offsets_of(array)[-1])]
