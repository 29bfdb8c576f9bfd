"""A plain decoder of record batches, row by row: what the decoders of columns are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from airflow_eos.arrow.records.decode import UNREADABLE, decompressed
from airflow_eos.arrow.records.numpy_kernels import MOST_HEADERS
from airflow_eos.errors import InputError
from airflow_eos.kafka.client.fetch import FetchedRecordBatch

_NULL = -1


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
    """Read a zigzag varint; return it and where the next field starts."""
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
