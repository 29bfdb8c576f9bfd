"""Decoding of one partition's record batches to Arrow columns, without a Python object per row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_eos.arrow.records import kernels as loops
from airflow_eos.arrow.records.layout import I64, MOST_HEADERS, Garbled, Spans, Unpacked
from airflow_eos.errors import InputError, Remedy
from airflow_eos.kafka.client.codecs import MOST_BYTES, UNREADABLE, decompressed
from airflow_eos.kafka.columns import HEADER, SCHEMA

if TYPE_CHECKING:
    from airflow_eos.kafka.client.fetch import FetchedRecordBatch
    from airflow_eos.kafka.client.reading import OffsetSpan

MOST_RECORDS = 1 << 22
"""Most records of a batch, and of a portion: a record of 7 bytes takes over 100 once it is read."""
_HEADERS_AT_ONCE = 1 << 20
"""About the most headers of the rows in one table."""


# --- decompression --------------------------------------------------------------------------------
# Record batches decompressed, one after the other, in one buffer: the input of the decoders.


PORTION_BYTES = 1 << 19
"""Most compressed bytes of batches that are decoded together; a larger batch is decoded alone.

About 10,000 small rows, which stay in a processor's cache. Each batch of a portion is copied once
more, behind the one before, which for large ones takes a fifth of all decoding. Decompressed, a
portion has no more than one batch may have (:data:`MOST_BYTES`).
"""
_LEAST = 7
"""Fewest bytes of a record: length, attributes, time, offset, key, value and header count."""


def unpacked(batches: Sequence[FetchedRecordBatch], span: OffsetSpan) -> Iterator[Unpacked]:
    """Decompress batches, a portion of them at a time.

    Args:
        batches: record batches of one partition.
        span: the span that is read, for the error.

    Raises:
        InputError: a batch cannot be decompressed, is too large, or claims more records than fit
            into its bytes.
    """
    portion: list[FetchedRecordBatch] = []
    pieces: list[Any] = []
    packed = size = records = 0
    for batch in batches:
        if portion and packed + len(batch.payload) > PORTION_BYTES:
            yield _joined(portion, pieces)
            portion, pieces, packed, size, records = [], [], 0, 0, 0
        piece = _content(batch, span)
        is_full = size + len(piece) > MOST_BYTES or records + batch.records > MOST_RECORDS
        if portion and is_full:
            yield _joined(portion, pieces)
            portion, pieces, packed, size, records = [], [], 0, 0, 0
        portion.append(batch)
        records += batch.records
        pieces.append(piece)
        packed += len(batch.payload)
        size += len(piece)
    if portion:
        yield _joined(portion, pieces)


def _joined(batches: Sequence[FetchedRecordBatch], pieces: Sequence[Any]) -> Unpacked:
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    whole = np.frombuffer(data, np.uint8)
    whole.flags.writeable = False  # the loops are compiled for read-only arrays
    return Unpacked(
        whole,
        np.cumsum([0, *map(len, pieces)], dtype=np.int64),
        _unpacking_column(batch.records for batch in batches),
        _unpacking_column(batch.base_offset for batch in batches),
        _unpacking_column(batch.last_offset for batch in batches),
        _unpacking_column(batch.base_timestamp_ms for batch in batches),
        _unpacking_column(b.max_timestamp_ms if b.has_append_time else -1 for b in batches),
    )


def _unpacking_column(numbers: Any) -> I64:
    return np.array(list(numbers), np.int64)


def _content(batch: FetchedRecordBatch, span: OffsetSpan) -> Any:
    try:
        found = decompressed(batch)
    except UNREADABLE as error:
        raise InputError(
            f"The record batch at offset {batch.base_offset} of {span} cannot be decompressed: "
            f"{error}. Nothing of it was made visible.",
            *_ways_on(span, batch.base_offset, batch.last_offset),
        ) from error
    most = min(len(found) // _LEAST, MOST_RECORDS)
    if not 0 <= batch.records <= most:  # before arrays of that length are made
        raise InputError(
            f"The record batch at offset {batch.base_offset} of {span} says that it has "
            f"{batch.records} records: at most {most} are read of its {len(found)} bytes. Nothing "
            "of it was made visible.",
            *_ways_on(span, batch.base_offset, batch.last_offset),
        )
    return found


def garbled(unpacked: Unpacked, batch: int, span: OffsetSpan) -> InputError:
    """Return the error for the batch, by its index, whose records are not as its header says."""
    first, last = int(unpacked.base_offsets[batch]), int(unpacked.last_offsets[batch])
    return InputError(
        f"The record batch at offset {first} of {span} is garbled: it does not hold "
        f"{int(unpacked.counts[batch])} records one after the other, with offsets that grow up to "
        f"{last} and {MOST_HEADERS} headers at most. Nothing of it was made visible.",
        *_ways_on(span, first, last),
    )


def _ways_on(span: OffsetSpan, first: int, last: int) -> tuple[Remedy, Remedy]:
    """Return the remedies for a batch that no start can read: resend its rows, or skip them."""
    step = span.stepping_over(first, last)
    again = "have its producer write these rows again, in smaller batches"
    return replace(step, change=again, costs="their order: they come behind later rows"), step


# --- tables ---------------------------------------------------------------------------------------


COLUMNS = tuple(SCHEMA.names)
_MOST_MS = ((1 << 63) - 1) // 1000


def tables(
    batches: Sequence[FetchedRecordBatch], span: OffsetSpan, columns: Collection[str] = COLUMNS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``span`` in these batches as tables, in the order of their offsets.

    Args:
        batches: record batches of the partition.
        span: the offsets to return; rows outside are left out.
        columns: the wanted columns of ``SCHEMA``, in the wanted order.

    Raises:
        InputError: a batch is garbled; the error has its topic, partition and offset.
    """
    for packed in unpacked(batches, span):
        try:
            spans = loops.spans_of(packed)
        except Garbled as error:
            raise garbled(packed, error.batch, span) from None
        inside = (spans.offsets >= span.first) & (spans.offsets < span.until)
        if not inside.all():
            spans = spans.where(inside)
        for part in _parts(spans):
            yield _table(packed, part, span, columns)


def _parts(spans: Spans) -> Iterator[Spans]:
    """Split rows into parts of about ``_HEADERS_AT_ONCE`` headers; yield none where no row is."""
    behind = np.cumsum(spans.header_counts)
    part = (behind - spans.header_counts) // _HEADERS_AT_ONCE
    if len(part) and part[-1] == 0:
        yield spans
        return
    for each in np.unique(part):
        yield spans.where(part == each)


def _table(
    packed: Unpacked, spans: Spans, span: OffsetSpan, columns: Collection[str]
) -> pa.RecordBatch:
    made = [_column(name, packed, spans, span) for name in columns]
    return pa.RecordBatch.from_arrays(made, schema=pa.schema([SCHEMA.field(n) for n in columns]))


def _column(name: str, packed: Unpacked, spans: Spans, span: OffsetSpan) -> Any:
    count = len(spans.offsets)
    match name:
        case "key":
            return binary(packed.data, spans.keys, spans.key_lengths)
        case "value":
            return binary(packed.data, spans.values, spans.value_lengths)
        case "topic":
            return pa.repeat(pa.scalar(span.topic), count)
        case "partition":
            return pa.array(np.full(count, span.partition, np.int32))
        case "offset":
            return pa.array(spans.offsets)
        case "timestamp":
            return _times(spans, span).cast(SCHEMA.field(name).type)
        case _:
            return _headers(packed, spans)


def _times(spans: Spans, span: OffsetSpan) -> Any:
    """Return the timestamps in microseconds, of which 64 bits hold 292,000 years either way."""
    times = spans.times
    if len(times) and not -_MOST_MS <= times.min() <= times.max() <= _MOST_MS:
        row = int(np.argmax(np.abs(times.astype(np.float64))))
        offset = int(spans.offsets[row])
        raise InputError(
            f"The row at offset {offset} of {span} has the time stamp {int(times[row])}, expected "
            "milliseconds since the epoch: as microseconds it does not fit into 64 bits.",
            Remedy(change="leave the column timestamp out (select)", start=True),
            span.stepping_over(offset, offset),
        )
    return pa.array(times * 1000)


def binary(data: Any, places: I64, lengths: I64, kind: Any = None) -> Any:
    """Return fields as an Arrow array; a length of -1 is a null."""
    ends, content = loops.gathered(data, places, lengths)
    nulls = lengths < 0
    found = int(nulls.sum())
    mask = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if found else None
    return pa.Array.from_buffers(
        kind or pa.binary(),
        len(places),
        [mask, pa.py_buffer(ends), pa.py_buffer(content)],
        null_count=found,
    )


def _headers(packed: Unpacked, spans: Spans) -> Any:
    ends = np.concatenate(([0], np.cumsum(spans.header_counts))).astype(np.int32)
    names, name_lengths, values, value_lengths = loops.header_spans_of(packed, spans)
    keys = binary(packed.data, names, name_lengths)
    items = pa.StructArray.from_arrays(
        [_text(keys), binary(packed.data, values, value_lengths)], fields=list(HEADER)
    )
    return pa.ListArray.from_arrays(pa.array(ends), items, type=SCHEMA.field("headers").type)


def _text(names: Any) -> Any:
    """Decode header names as Java does: bytes that are not UTF-8 become U+FFFD, and no error."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([bytes(name).decode(errors="replace") for name in names.to_pylist()])
