"""A fetched record batch back into rows: decompression and the records' varints (KIP-98).

Plain Python, a few hundred thousand rows a second: it serves replays and audits of one batch,
which are rare, and never the hot path.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import cramjam
import numpy as np

from airflow_eos.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_eos.kafka.client.fetch import Batch

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_NULL = -1
_FULL = "failed to write whole buffer"  # of the codec's library, where there is no more room


class Row(NamedTuple):
    """One record; ``timestamp_ms`` since the epoch; a null header value is ``None``."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def rows_of(batch: Batch, where: str = "its partition") -> Iterator[Row]:
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


def _row(batch: Batch, data: bytes, position: int) -> tuple[Row, int]:
    position += 1  # attributes of a record: unused by Kafka
    elapsed_ms, position = _varint(data, position)
    delta, position = _varint(data, position)
    key, position = _bytes(data, position)
    value, position = _bytes(data, position)
    count, position = _varint(data, position)
    if not 0 <= count <= (len(data) - position) // 2:
        raise ValueError("a record has more headers than bytes")
    headers = []
    for _ in range(count):
        name, position = _bytes(data, position)
        content, position = _bytes(data, position)
        headers.append(((name or b"").decode(), content))
    stamp = (
        batch.max_timestamp_ms if batch.has_append_time else batch.base_timestamp_ms + elapsed_ms
    )
    return Row(batch.base_offset + delta, stamp, key, value, headers), position


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


def decompressed(batch: Batch) -> bytes | memoryview:
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
