"""The columns of an Arrow batch that become Kafka records, checked and ready to encode."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_eos.kafka.client.records import FRAME_BYTES
from airflow_eos.kafka.columns import header_items, require_bytes, require_value, timestamps_of

U64 = np.uint64
Words = NDArray[np.uint64]
WORD_BYTES = 8

_TABLE_SIZE = 1 << 16
_WIDTH_SHIFT = U64(56)
_CODE_MASK = U64((1 << 56) - 1)
_BITS_A_BYTE = U64(3)  # the shift that multiplies by 8


class Field(NamedTuple):
    """One field of every row: its bytes as a word, how many of them count, and the most of any row.

    ``code`` and ``width`` may be scalars where all rows have the same bytes.
    """

    code: Words | np.uint64
    width: Words | np.uint64
    widest: int


ZERO = Field(U64(0), U64(1), 1)
"""The byte 0x00, which is also the varint of 0."""


def lengths(values: Words) -> Field:
    """Encode numbers from 0 to 2**31 - 1 (lengths, counts, offset deltas) as varints."""
    largest = int(values.max(initial=0))
    if largest >= _TABLE_SIZE:
        return varints(values.astype(np.int64))[0]
    both = _TABLE[values]
    return Field(both & _CODE_MASK, both >> _WIDTH_SHIFT, int(_TABLE[largest] >> _WIDTH_SHIFT))


def nullable_lengths(values: Words, nulls: NDArray[np.bool_] | None) -> Field:
    """Encode lengths as varints, where a null row has the length -1, byte 0x01."""
    field = lengths(values)
    if nulls is None:
        return field
    return Field(
        np.where(nulls, U64(1), field.code), np.where(nulls, U64(1), field.width), field.widest
    )


def ascending(count: int) -> Field:
    """Encode 0, 1, 2, … below ``count``, the offset deltas of a record batch, as varints."""
    if count > _TABLE_SIZE:
        return lengths(np.arange(count, dtype=np.uint64))
    return Field(
        _TABLE_CODE[:count], _TABLE_WIDTH[:count], int(_TABLE[max(count - 1, 0)] >> _WIDTH_SHIFT)
    )


def varints(values: NDArray[np.int64]) -> list[Field]:
    """Encode any int64 as varints: one field, or two where a row needs 9 or 10 bytes."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    width = np.ones(len(values), np.uint64)
    for bits in range(7, 64, 7):
        width += zigzag >= U64(1 << bits)
    widest = int(width.max(initial=1))
    low = _spread(zigzag, width, range(min(widest, WORD_BYTES)))
    if widest <= WORD_BYTES:
        return [Field(low, width, widest)]
    low_width = np.minimum(width, U64(WORD_BYTES))
    high = _spread(zigzag, width, range(WORD_BYTES, widest))
    return [
        Field(low, low_width, WORD_BYTES),
        Field(high, width - low_width, widest - WORD_BYTES),
    ]


def _spread(zigzag: Words, width: Words, positions: range) -> Words:
    """Return the varints' bytes at these positions as words, the first byte lowest."""
    code = np.zeros(len(zigzag), np.uint64)
    for index, position in enumerate(positions):
        group = (zigzag >> U64(7 * position)) & U64(0x7F)
        more = np.where(width > U64(position + 1), U64(0x80), U64(0))
        code |= (group | more) << U64(8 * index)
    return code


def joined(fields: Iterable[Field]) -> list[Field]:
    """Join neighbouring fields into fewer ones, as long as eight bytes hold a joined field."""
    out: list[Field] = []
    for field in fields:
        if out and out[-1].widest + field.widest <= WORD_BYTES:
            before = out.pop()
            code = before.code | (field.code << (before.width << _BITS_A_BYTE))
            out.append(Field(code, before.width + field.width, before.widest + field.widest))
        else:
            out.append(field)
    return out


def concatenated(fields: list[Field]) -> Field:
    """Return one field with the rows of all fields, one field's after the other's."""
    if len(fields) == 1:
        return fields[0]
    codes, widths, widest = zip(*fields, strict=True)
    return Field(np.concatenate(codes), np.concatenate(widths), max(widest))


def _table() -> Words:
    """Return each number's varint in the low seven bytes and its width in the top one."""
    (field,) = varints(np.arange(_TABLE_SIZE, dtype=np.int64))
    return np.asarray(field.code | (np.asarray(field.width) << _WIDTH_SHIFT), dtype=np.uint64)


_TABLE = _table()
_TABLE_CODE: Words = _TABLE & _CODE_MASK
_TABLE_WIDTH: Words = _TABLE >> _WIDTH_SHIFT


# --- views ----------------------------------------------------------------------------------------
# Arrow columns as rows of 16-byte views, and views joined to one run of bytes.
#
# Arrow's *view* layout (https://arrow.apache.org/docs/format/Columnar.html, "Variable-size Binary
# View") describes a value in two 64-bit words, little endian::
#
#     up to 12 bytes:  | length u32 | bytes 0-3 |   | bytes 4-11             |
#     longer:          | length u32 | prefix    |   | buffer u32 | offset u32 |
#
# So rows are sorted, repeated and interleaved with literal bytes by moving 16 bytes each, never
# their content. Casting such an array from ``binary_view`` to ``binary`` then copies every content
# once, in C++: the data buffer of the result is what we want to send.


INLINE_BYTES = 12
_LENGTH_MASK = U64(0xFFFFFFFF)
_HALF = U64(32)
_NO_BYTES = pa.py_buffer(b"")


@dataclass(frozen=True, slots=True)
class Views:
    """A column of byte strings as views: two ``words`` per row; a null row has the length 0."""

    words: NDArray[np.uint64]
    nulls: NDArray[np.bool_] | None
    buffers: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.words)

    @property
    def lengths(self) -> Words:
        """Number of bytes of each row."""
        return self.words[:, 0] & _LENGTH_MASK

    def take(self, order: NDArray[np.int64]) -> Views:
        """Return the rows in another order."""
        return Views(
            self.words.take(order, axis=0),
            None if self.nulls is None else self.nulls.take(order),
            self.buffers,
        )

    def slice(self, start: int, stop: int) -> Views:
        """Return rows ``start`` to ``stop - 1``."""
        nulls = None if self.nulls is None else self.nulls[start:stop]
        return Views(self.words[start:stop], nulls, self.buffers)


def views_of(column: Any, name: str) -> Views:
    """Return the views of any binary or string column; strings are their UTF-8 bytes.

    Raises:
        RowError: the column is neither; the message says how to convert it.
    """
    require_bytes(column, name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    column = _as_binary_view(column)
    _, views, *others = column.buffers()
    # pyarrow below 20 gives None for an unused buffer; views refer to buffers by index.
    buffers = tuple(_NO_BYTES if each is None else each for each in others)
    if len(column) == 0:
        return Views(np.empty((0, 2), np.uint64), None)
    words = np.frombuffer(views, np.uint64)[2 * column.offset : 2 * (column.offset + len(column))]
    words = words.reshape(-1, 2)
    if not column.null_count:
        return Views(words, None, buffers)
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    # The view of a null row is undefined: make it an empty string.
    return Views(np.where(nulls[:, np.newaxis], U64(0), words), nulls, buffers)


def _as_binary_view(column: Any) -> Any:
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    try:
        return column.cast(pa.binary_view())
    except pa.ArrowCapacityError:
        # A slice of a buffer of more than 2 GiB: views count offsets in 32 bits. Copy the slice.
        return column.take(pa.array(np.arange(len(column)))).cast(pa.binary_view())


def interleaved(columns: list[Field | Views], count: int, *, last: Field | None = None) -> Any:
    """Interleave columns, row after row, to a ``pa.BinaryArray``: ``len(columns)`` items per row.

    ``last`` is one more item after all rows. The result must stay below 2 GiB, which its 32-bit
    offsets can count.
    """
    width = len(columns)
    items = np.empty((count * width + (last is not None), 2), np.uint64)
    rows = items[: count * width].reshape(count, width, 2)
    buffers: list[Any] = []
    for index, column in enumerate(columns):
        if isinstance(column, Field):
            rows[:, index, 0] = (column.code << _HALF) | column.width
            rows[:, index, 1] = column.code >> _HALF
            continue
        rows[:, index] = column.words
        if buffers and column.buffers:
            # The low half of a long view's second word is the index of its buffer.
            rows[:, index, 1] += U64(len(buffers)) * (column.lengths > U64(INLINE_BYTES))
        buffers += column.buffers
    if last is not None:
        items[-1] = (last.code << _HALF) | last.width, last.code >> _HALF
    array = pa.Array.from_buffers(
        pa.binary_view(), len(items), [None, pa.py_buffer(items), *buffers], null_count=0
    )
    return array.cast(pa.binary())


def offsets_of(array: Any) -> NDArray[np.int32]:
    """Return the offsets of a ``pa.BinaryArray`` that is not a slice."""
    return np.frombuffer(array.buffers()[1], np.int32)[: len(array) + 1]


def content_of(array: Any) -> memoryview:
    """Return the bytes of all items of a ``pa.BinaryArray`` that is not a slice, in a row."""
    data = array.buffers()[2]
    return memoryview(b"") if data is None else memoryview(data)[: int(offsets_of(array)[-1])]


# --- columns --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of each row: how many, and all of them encoded one after the other."""

    counts: Words
    blocks: Views

    def take(self, order: NDArray[np.int64]) -> Headers:
        """Return the rows in another order."""
        return Headers(self.counts.take(order), self.blocks.take(order))

    def slice(self, start: int, stop: int) -> Headers:
        """Return rows ``start`` to ``stop - 1``."""
        return Headers(self.counts[start:stop], self.blocks.slice(start, stop))


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of rows ready to encode. ``timestamps``: ms since the epoch; an int: for all rows.

    ``headers`` is None when no row has any.
    """

    keys: Views
    values: Views
    timestamps: NDArray[np.int64] | int
    headers: Headers | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, order: NDArray[np.int64]) -> Columns:
        """Return the rows in another order."""
        at = self.timestamps
        return Columns(
            self.keys.take(order),
            self.values.take(order),
            at if isinstance(at, int) else at.take(order),
            None if self.headers is None else self.headers.take(order),
        )

    def slice(self, start: int, stop: int) -> Columns:
        """Return rows ``start`` to ``stop - 1``."""
        at = self.timestamps
        return Columns(
            self.keys.slice(start, stop),
            self.values.slice(start, stop),
            at if isinstance(at, int) else at[start:stop],
            None if self.headers is None else self.headers.slice(start, stop),
        )

    def sizes(self) -> Words:
        """Return each record's uncompressed bytes: an upper bound, rarely 30 too high."""
        total = self.keys.lengths + self.values.lengths + U64(FRAME_BYTES)
        return total if self.headers is None else total + self.headers.blocks.lengths


def columns_of(rows: pa.RecordBatch, *, now_ms: int) -> Columns:
    """Check an Arrow batch and return its columns ``value``, ``key``, ``timestamp``, ``headers``.

    All but ``value`` are optional. A row without a timestamp gets ``now_ms``.

    Raises:
        RowError: ``value`` is missing, or a column has a type that Kafka records cannot hold.
    """
    require_value(rows)
    names = rows.schema.names
    count = rows.num_rows
    if "key" in names:
        keys = views_of(rows.column("key"), "key")
    else:
        keys = Views(np.zeros((count, 2), np.uint64), np.ones(count, np.bool_))
    return Columns(
        keys,
        views_of(rows.column("value"), "value"),
        timestamps_of(rows, now_ms=now_ms),
        _headers(rows.column("headers")) if "headers" in names else None,
    )


def _headers(column: Any) -> Headers | None:
    items = header_items(column)
    if items is None:
        return None
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    counts = counts.astype(np.int64)
    encoded = _encode_headers(items)
    ends = np.concatenate(([0], np.cumsum(counts)))
    offsets = offsets_of(encoded)[ends * 4].astype(np.int32)
    blocks = pa.BinaryArray.from_buffers(
        pa.binary(), len(counts), [None, pa.py_buffer(offsets), pa.py_buffer(content_of(encoded))]
    )
    return Headers(counts.astype(np.uint64), views_of(blocks, "headers"))


def _encode_headers(items: Any) -> Any:
    """Encode headers, each as four items: key length, key, value length, value."""
    names = views_of(pc.struct_field(items, "key"), "headers.key")
    values = views_of(pc.struct_field(items, "value"), "headers.value")
    return interleaved(
        [
            lengths(names.lengths),
            names,
            nullable_lengths(values.lengths, values.nulls),
            values,
        ],
        len(items),
    )
