"""Record batches of one partition → Arrow columns, without a Python object for a row."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import cramjam
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_eos.errors import InputError, Remedy
from airflow_eos.kafka.records import kernels as loops
from airflow_eos.kafka.records.numpy_kernels import MOST_HEADERS, Garbled

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_eos.kafka.client.fetch import FetchedRecordBatch
    from airflow_eos.kafka.client.reading import OffsetSpan
    from airflow_eos.kafka.records.numpy_kernels import I64, Spans

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_NULL = -1
_FULL = "failed to write whole buffer"  # of the codec's library, where there is no more room


class Record(NamedTuple):
    """One record; ``timestamp_ms`` since the epoch; a null header value is ``None``."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def rows_of(batch: FetchedRecordBatch, where: str = "its partition") -> Iterator[Record]:
    """The rows of one batch, in the order of their offsets.

    Args:
        batch: of any codec.
        where: names its partition, for the error.

    Raises:
        InputError: the batch is compressed in a way that is not known, too large, or garbled.
    """
    try:
        data = bytes(decompressed(batch))
        position = 0
        for _ in range(batch.records):
            length, position = _varint(data, position)
            row, end = _row(batch, data, position)
            if end != position + length:
                raise ValueError("a record is not as long as it says")
            yield row
            position = end
        if position != len(data):
            raise ValueError(f"more than its {batch.records} records are there")
    except UNREADABLE as error:
        raise InputError(
            f"The record batch at offset {batch.base_offset} of {where} cannot be decoded: {error}."
        ) from error


def _row(batch: FetchedRecordBatch, data: bytes, position: int) -> tuple[Record, int]:
    position += 1  # attributes of a record: unused by Kafka
    elapsed_ms, position = _varint(data, position)
    delta, position = _varint(data, position)
    key, position = _bytes(data, position)
    value, position = _bytes(data, position)
    count, position = _varint(data, position)
    if not 0 <= count <= min((len(data) - position) // 2, MOST_HEADERS):
        raise ValueError(f"a record has more headers than bytes, or than {MOST_HEADERS}")
    headers = []
    for _ in range(count):
        name, position = _bytes(data, position)
        content, position = _bytes(data, position)
        headers.append(((name or b"").decode(), content))
    stamp = (
        batch.max_timestamp_ms if batch.has_append_time else batch.base_timestamp_ms + elapsed_ms
    )
    return Record(batch.base_offset + delta, stamp, key, value, headers), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint, and where the next field starts."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
    raise ValueError("a number does not end")


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    if length == _NULL:
        return None, position
    if not 0 <= length <= len(data) - position:
        raise ValueError("a field is longer than the batch")
    return data[position : position + length], position + length


UNREADABLE = (
    *(IndexError, ValueError, struct.error, zlib.error),
    cramjam.DecompressionError,  # which is of none of these kinds
)
"""What is raised of bytes that are not a batch's: by the codecs' libraries, and here."""

MOST_BYTES = 256 * 1024 * 1024
"""Of one batch, decompressed. What a broker limits (``max.message.bytes``) is the compressed batch:
49 kB of zstd can be 1.5 GiB, and whoever may write to a topic could end each of its readers."""


MOST_RECORDS = 1 << 22
"""Of one batch, and of a portion: a record of seven bytes takes a hundred and more once it is
read."""
_HEADERS_AT_ONCE = 1 << 20
"""Rows are handed on in tables of so many headers."""


def decompressed(batch: FetchedRecordBatch) -> bytes | memoryview:
    """The records of a batch; one of UNREADABLE where it cannot be decompressed, or is too large.

    Never more than MOST_BYTES are made, whatever it says of itself.
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
    """By a codec that says nothing true of its size: into what is larger, until it fits."""
    room = min(MOST_BYTES, 65_536 + 32 * len(data))
    while True:
        out = np.empty(room, np.uint8)  # of which the system gives what is written to
        try:
            return out[: decompress(data, out)].data
        except cramjam.DecompressionError as error:
            if str(error) != _FULL:
                raise
        if room == MOST_BYTES:
            raise _too_large()
        room = min(MOST_BYTES, 16 * room)


def _snappy(data: bytes) -> bytes:
    """Java writes blocks in snappy-java's stream framing, librdkafka one raw block."""
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
# Record batches decompressed, one after the other, in one buffer: what the decoders start from.


PORTION_BYTES = 1 << 19
"""Compressed, of batches that are decoded together; a larger one is decoded by itself.

About 10,000 small rows, which stay in a processor's cache. Each batch of a portion is copied once
more, to lie behind the one before, which costs large ones a fifth of all decoding. Decompressed, a
portion has no more than one batch may have (:data:`~.decoding.MOST_BYTES`).
"""
_LEAST = 7
"""Bytes of a record: its length, attributes, time, offset, key, value and count of headers."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The records of some batches. Times in ms since the epoch.

    Attributes:
        data: all records, uint8.
        starts: of each batch in ``data``, and the end of the last one.
        counts: records of each batch, no more than its bytes can hold.
        base_offsets: of each batch; a record says how far it is from there.
        last_offsets: of each batch; no record is behind it.
        base_times: of each batch; likewise, but for those stamped by the broker.
        append_times: the time stamp of all records of a batch, -1 where each has its own.
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
        batches: of one partition.
        span: names it, for the error.

    Raises:
        InputError: a batch cannot be decompressed, is too large, or says that it has more records
            than bytes for them.
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
    whole.flags.writeable = False  # as the loops were compiled for
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
    if not 0 <= batch.records <= most:  # before anything is made by that number
        raise InputError(
            f"The record batch at offset {batch.base_offset} of {span} says that it has "
            f"{batch.records} records: at most {most} are read of its {len(found)} bytes. Nothing "
            "of it was made visible.",
            *_ways_on(span, batch.base_offset, batch.last_offset),
        )
    return found


def garbled(unpacked: Unpacked, batch: int, span: OffsetSpan) -> InputError:
    """The error for a batch, by its place, whose records are not what its header says."""
    first, last = int(unpacked.base_offsets[batch]), int(unpacked.last_offsets[batch])
    return InputError(
        f"The record batch at offset {first} of {span} is garbled: it does not hold "
        f"{int(unpacked.counts[batch])} records one after the other, with offsets that grow up to "
        f"{last} and {MOST_HEADERS} headers at most. Nothing of it was made visible.",
        *_ways_on(span, first, last),
    )


def _ways_on(span: OffsetSpan, first: int, last: int) -> tuple[Remedy, Remedy]:
    """Whoever starts again meets the batch again: its offsets are stepped over, or nothing is."""
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
"""All columns; a row has as many headers as it has, an empty list where it has none."""
COLUMNS = tuple(SCHEMA.names)

_MOST_MS = ((1 << 63) - 1) // 1000


def tables(
    batches: Sequence[FetchedRecordBatch], span: OffsetSpan, columns: Collection[str] = COLUMNS
) -> Iterator[pa.RecordBatch]:
    """The rows of ``span`` in these batches, in the order of their offsets.

    Args:
        batches: of the partition.
        span: rows outside it are left out.
        columns: of ``SCHEMA``, in the order in which they are wanted.

    Raises:
        InputError: a batch is garbled: which, by topic, partition and offset.
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
    """The rows, in parts of so many headers; nothing where there is no row."""
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
    """In microseconds, of which 64 bits hold 292,000 years either way."""
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
    """Fields as an Arrow array; a length of -1 is a null."""
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
    """As Java has it: what is not UTF-8 becomes U+FFFD, and is no reason to stop."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([bytes(name).decode(errors="replace") for name in names.to_pylist()])
