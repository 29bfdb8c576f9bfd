"""A fetched record batch back into rows: decompression and the records' varints (KIP-98).

Plain Python, a few hundred thousand rows a second: it serves replays and audits of one batch,
which are rare, and never the hot path.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

import cramjam
import lz4.frame

from airflow_eos.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_eos.kafka.client.fetch import Batch

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_NULL = -1


class Row(NamedTuple):
    """One record; ``timestamp_ms`` since the epoch; a null header value is ``None``."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def rows_of(batch: Batch) -> Iterator[Row]:
    """The rows of one batch, in the order of their offsets.

    Raises:
        KafkaError: the batch is compressed in a way that is not known, or garbled.
    """
    try:
        data = decompressed(batch)
        position = 0
        for _ in range(batch.records):
            length, position = _varint(data, position)
            yield _row(batch, data, position)
            position += length
    except UNREADABLE as error:
        raise KafkaError(
            f"The record batch at offset {batch.base_offset} cannot be decoded: {error}."
        ) from error


def _row(batch: Batch, data: bytes, position: int) -> Row:
    position += 1  # attributes of a record: unused by Kafka
    elapsed_ms, position = _varint(data, position)
    delta, position = _varint(data, position)
    key, position = _bytes(data, position)
    value, position = _bytes(data, position)
    count, position = _varint(data, position)
    headers = []
    for _ in range(count):
        name, position = _bytes(data, position)
        content, position = _bytes(data, position)
        headers.append(((name or b"").decode(), content))
    stamp = (
        batch.max_timestamp_ms if batch.has_append_time else batch.base_timestamp_ms + elapsed_ms
    )
    return Row(batch.base_offset + delta, stamp, key, value, headers)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint, and where the next field starts."""
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
        shift += 7


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    if length == _NULL:
        return None, position
    if position + length > len(data):
        raise ValueError("a field is longer than the batch")
    return data[position : position + length], position + length


UNREADABLE = (
    *(IndexError, ValueError, struct.error, zlib.error, RuntimeError),
    cramjam.DecompressionError,  # which is of none of these kinds
)
"""What the codecs' libraries raise of bytes that are not theirs."""


def decompressed(batch: Batch) -> bytes:
    """The records of a batch; what the codec's library raises where it cannot be decompressed."""
    match batch.codec:
        case 0:
            return bytes(batch.payload)
        case 1:
            return zlib.decompress(batch.payload, _GZIP_OR_ZLIB)
        case 2:
            return _snappy(bytes(batch.payload))
        case 3:
            unpacked: bytes = lz4.frame.decompress(batch.payload)
            return unpacked
        case 4:
            return bytes(cramjam.zstd.decompress(batch.payload))
        case codec:
            raise ValueError(f"compression type {codec} is not known")


def _snappy(data: bytes) -> bytes:
    """Java writes blocks in snappy-java's stream framing, librdkafka one raw block."""
    if not data.startswith(_XERIAL_MAGIC):
        return bytes(cramjam.snappy.decompress_raw(data))
    position, blocks = _XERIAL_HEADER_BYTES, []
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        blocks.append(bytes(cramjam.snappy.decompress_raw(data[position : position + length])))
        position += length
    return b"".join(blocks)
