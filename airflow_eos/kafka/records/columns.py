"""The columns of an Arrow batch that become Kafka records, checked and ready to encode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_eos.errors import RowError
from airflow_eos.kafka.records.varint import U64, Words, lengths, nullable_lengths
from airflow_eos.kafka.records.views import (
    Views,
    content_of,
    interleaved,
    offsets_of,
    views_of,
)

FRAME_BYTES = 36
"""The most that a record adds to key, value and headers: four 5-byte varints, the 10-byte
timestamp, a 5-byte header count and the attributes byte. Usually it is 8 to 10."""


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of each row: how many, and all of them encoded one after the other."""

    counts: Words
    blocks: Views

    def take(self, order: NDArray[np.int64]) -> Headers:
        """The rows in another order."""
        return Headers(self.counts.take(order), self.blocks.take(order))

    def slice(self, start: int, stop: int) -> Headers:
        """Rows ``start`` to ``stop - 1``."""
        return Headers(self.counts[start:stop], self.blocks.slice(start, stop))


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows ready to encode. ``timestamps`` are ms since the epoch, one for all rows if an int.

    ``headers`` is None when no row has any.
    """

    keys: Views
    values: Views
    timestamps: NDArray[np.int64] | int
    headers: Headers | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, order: NDArray[np.int64]) -> Columns:
        """The rows in another order."""
        at = self.timestamps
        return Columns(
            self.keys.take(order),
            self.values.take(order),
            at if isinstance(at, int) else at.take(order),
            None if self.headers is None else self.headers.take(order),
        )

    def slice(self, start: int, stop: int) -> Columns:
        """Rows ``start`` to ``stop - 1``."""
        at = self.timestamps
        return Columns(
            self.keys.slice(start, stop),
            self.values.slice(start, stop),
            at if isinstance(at, int) else at[start:stop],
            None if self.headers is None else self.headers.slice(start, stop),
        )

    def sizes(self) -> Words:
        """Uncompressed bytes of each record, an upper bound that is rarely 30 too high."""
        total = self.keys.lengths + self.values.lengths + U64(FRAME_BYTES)
        return total if self.headers is None else total + self.headers.blocks.lengths


def columns_of(rows: pa.RecordBatch, *, now_ms: int) -> Columns:
    """Read ``value`` and the optional ``key``, ``timestamp`` and ``headers`` of an Arrow batch.

    A row without a timestamp gets ``now_ms``.

    Raises:
        RowError: ``value`` is missing, or a column has a type that Kafka records cannot hold.
    """
    names = rows.schema.names
    if "value" not in names:
        found = ", ".join(map(repr, names)) or "none at all"
        raise RowError(
            f"the rows have no column 'value', only {found}: "
            "name the bytes to send 'value', for example with to_json(struct(*)) AS value"
        )
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


def timestamps_of(rows: pa.RecordBatch, *, now_ms: int) -> NDArray[np.int64] | int:
    """Milliseconds since the epoch; one number for all rows if none has its own.

    Raises:
        RowError: a time before 1970, or a column that holds no times.
    """
    if "timestamp" not in rows.schema.names:
        return now_ms
    column = rows.column("timestamp")
    if column.null_count == len(column):
        return now_ms
    if pa.types.is_timestamp(column.type):
        # Kafka's clock ticks in milliseconds: finer units lose their rest on purpose.
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    elif pa.types.is_integer(column.type):
        column = column.cast(pa.int64())
    else:
        raise RowError(
            f"column 'timestamp' is {column.type}: expected a timestamp, "
            "or an integer of milliseconds since the epoch"
        )
    times: NDArray[np.int64] = pc.fill_null(column, now_ms).to_numpy(zero_copy_only=False)
    if int(times.min()) < 0:
        raise RowError(
            f"row {int(times.argmin())} has the timestamp {int(times.min())} ms: Kafka takes "
            "none before 1970-01-01; correct it, or leave it null for the time of sending"
        )
    return times


def _headers(column: Any) -> Headers | None:
    if pa.types.is_null(column.type) or column.null_count == len(column):
        return None
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not (
        is_list
        and pa.types.is_struct(kind.value_type)
        and {kind.value_type.field(i).name for i in range(kind.value_type.num_fields)}
        == {"key", "value"}
    ):
        raise RowError(
            f"column 'headers' is {kind}: expected array<struct<key: string, value: binary>>"
        )
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    counts = counts.astype(np.int64)
    items = column.flatten()  # leaves out what null lists hide
    if len(items) == 0:
        return None
    encoded = _encode_headers(items)
    ends = np.concatenate(([0], np.cumsum(counts)))
    offsets = offsets_of(encoded)[ends * 4].astype(np.int32)
    blocks = pa.BinaryArray.from_buffers(
        pa.binary(), len(counts), [None, pa.py_buffer(offsets), pa.py_buffer(content_of(encoded))]
    )
    return Headers(counts.astype(np.uint64), views_of(blocks, "headers"))


def _encode_headers(items: Any) -> Any:
    """Four items a header: key length, key, value length, value."""
    names = views_of(pc.struct_field(items, "key"), "headers.key")
    if items.null_count or names.nulls is not None:
        raise RowError(
            "column 'headers' holds a header without a key: Kafka needs one, '' at least"
        )
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
