"""Single records of a batch, row by row; ``airflow_eos.arrow`` has the fast way, by column.

:mod:`airflow_eos.arrow.records.encode` shows the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_eos.errors import InputError
from airflow_eos.kafka.client.codecs import UNREADABLE, decompressed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_eos.kafka.client.fetch import FetchedRecordBatch

HEADER_BYTES = 61
"""Bytes of a record batch before its records."""
FRAME_BYTES = 36
"""Most bytes that a record adds to key, value and headers: four 5-byte varints, the 10-byte
timestamp, a 5-byte header count and the attributes byte. Usually it is 8 to 10."""
MOST_HEADERS = 1 << 17
"""Most headers of one record. A header can be two bytes of zeros, which compress to nothing, and
takes hundreds once it is read."""


class Record(NamedTuple):
    """One record; ``timestamp_ms`` since the epoch; a null header value is ``None``."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def rows_of(batch: FetchedRecordBatch, where: str = "its partition") -> Iterator[Record]:
    """Yield the rows of one batch, in the order of their offsets.

    Args:
        batch: a record batch of any codec.
        where: the name of its partition, for the error.

    Raises:
        InputError: the batch has an unknown codec, is too large, or is garbled.
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
    key, position = _field(data, position)
    value, position = _field(data, position)
    count, position = _varint(data, position)
    if not 0 <= count <= min((len(data) - position) // 2, MOST_HEADERS):
        raise ValueError(f"a record has more headers than bytes, or than {MOST_HEADERS}")
    headers = []
    for _ in range(count):
        name, position = _field(data, position)
        content, position = _field(data, position)
        headers.append(((name or b"").decode(errors="replace"), content))
    stamp = (
        batch.max_timestamp_ms if batch.has_append_time else batch.base_timestamp_ms + elapsed_ms
    )
    return Record(batch.base_offset + delta, stamp, key, value, headers), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a zigzag varint; return it and where the next field starts."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
    raise ValueError("a number does not end")


def _field(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    if length == -1:  # a null
        return None, position
    if not 0 <= length <= len(data) - position:
        raise ValueError("a field is longer than the batch")
    return data[position : position + length], position + length


def first_record(
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[bytes | None, bytes | None]] = (),
) -> bytes:
    """Return a row as the first record of its batch, at the batch's time: its least size."""
    fields = [field for header in headers for field in header]
    parts = [b"\0\0\0", *map(_length_and, (key, value)), _put(len(fields) // 2)]
    body = b"".join([*parts, *map(_length_and, fields)])
    return _put(len(body)) + body


def _length_and(content: bytes | None) -> bytes:
    return b"\1" if content is None else _put(len(content)) + content


def _put(number: int) -> bytes:
    """Return a number from 0 on as a zigzag varint."""
    number <<= 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
