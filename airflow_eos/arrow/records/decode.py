"""Decoding of one partition's record batches to Arrow columns, without a Python object per row."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cramjam
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_eos.arrow.records import kernels as loops
from airflow_eos.arrow.records.numpy_kernels import MOST_HEADERS, Garbled
from airflow_eos.errors import InputError, Remedy

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_eos.arrow.records.numpy_kernels import I64, Spans
    from airflow_eos.kafka.client.fetch import FetchedRecordBatch
    from airflow_eos.kafka.client.reading import OffsetSpan

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_FULL = "failed to write whole buffer"  # the codec library's error for too small a buffer

UNREADABLE = (
    *(IndexError, ValueError, struct.error, zlib.error),
    cramjam.DecompressionError,  # a subclass of none of these
)
"""The exceptions for bytes that are no record batch: the codecs' libraries' and this module's."""

MOST_BYTES = 256 * 1024 * 1024
"""Most bytes of a decompressed batch. A broker limits (``max.message.bytes``) the compressed batch:
49 kB of zstd can be 1.5 GiB, by which any writer of a topic could end all its readers."""


MOST_RECORDS = 1 << 22
"""Most records of a batch, and of a portion: a record of 7 bytes takes over 100 once it is read."""
_HEADERS_AT_ONCE = 1 << 20
"""About the most headers of the rows in one table."""


def decompressed(batch: FetchedRecordBatch) -> bytes | memoryview:
    """Return a batch's records; raise one of UNREADABLE if it is too large or cannot be read.

    Never more than MOST_BYTES are made, whatever the batch says of its size.
    """
    match batch.codec:
        case 0:
            return bytes(batch.payload)
        case 1:
            return _gzip(batch.payload)
        case 2:
            return _snappy(bytes(batch.payload))
        case 3:
            return _into(cramjam.lz4.decompress_into, batch.payload)
        case 4:
            return _into(cramjam.zstd.decompress_into, batch.payload)
        case codec:
            raise ValueError(f"compression type {codec} is not known")


def _too_large() -> ValueError:
    most = MOST_BYTES >> 20
    return ValueError(f"it has more than {most} MiB decompressed, the most that one may have")


def _gzip(data: memoryview) -> bytes:
    whole = zlib.decompressobj(_GZIP_OR_ZLIB)
    found = whole.decompress(data, MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise _too_large()
    if not whole.eof:
        raise ValueError("it is cut short")
    return found


def _into(decompress: Callable[[memoryview, Any], int], data: memoryview) -> memoryview:
    """Decompress data of unknown size, into larger and larger buffers until it fits."""
    room = min(MOST_BYTES, 65_536 + 32 * len(data))
    while True:
        out = np.empty(room, np.uint8)  # the system provides only the memory that is written to
        try:
            return out[: decompress(data, out)].data
        except cramjam.DecompressionError as error:
            if str(error) != _FULL:
                raise
        if room == MOST_BYTES:
            raise _too_large()
        room = min(MOST_BYTES, 16 * room)


def _snappy(data: bytes) -> bytes:
    """Decompress snappy: Java writes blocks in snappy-java's framing, librdkafka one raw block."""
    if not data.startswith(_XERIAL_MAGIC):
        blocks = [data]
    else:
        position, blocks = _XERIAL_HEADER_BYTES, []
        while position < len(data):
            (length,) = struct.unpack_from(">i", data, position)
            position += 4
            if not 0 < length <= len(data) - position:
                raise ValueError("a block of snappy is longer than the batch")
            blocks.append(data[position : position + length])
            position += length
    if sum(map(cramjam.snappy.decompress_raw_len, blocks)) > MOST_BYTES:
        raise _too_large()
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)


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


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The records of some batches. Times in ms since the epoch.

    Attributes:
        data: all records, uint8.
        starts: where each batch begins in ``data``, and the end of the last one.
        counts: number of records of each batch, no more than its bytes can hold.
        base_offsets: first offset of each batch; a record has its distance from there.
        last_offsets: last offset of each batch; no record is behind it.
        base_times: base timestamp of each batch, likewise, but for those stamped by the broker.
        append_times: the timestamp of all records of a batch, -1 where each has its own.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    base_offsets: NDArray[np.int64]
    last_offsets: NDArray[np.int64]
    base_times: NDArray[np.int64]
    append_times: NDArray[np.int64]


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


def _unpacking_column(numbers: Any) -> NDArray[np.int64]:
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


HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.list_(HEADER)),
    ]
)
"""The schema with all columns; ``headers`` is an empty list for a row without headers."""
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
