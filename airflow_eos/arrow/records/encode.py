"""Encoding of Arrow rows as Kafka record batches, format 2 ("magic 2"), the one since Kafka 0.11.

Source: https://kafka.apache.org/documentation/#recordbatch and, in Kafka's sources,
``org.apache.kafka.common.record.DefaultRecordBatch`` and ``DefaultRecord``. Numbers of the header
are big endian; those of a record are zigzag varints (see :mod:`.columns`)::

    record batch                                    byte
    ├── base offset          int64    0 (the broker writes the real one)          0
    ├── batch length         int32    bytes after this field                      8
    ├── leader epoch         int32    -1 (the broker writes it)                  12
    ├── magic                int8     2                                          16
    ├── crc                  uint32   CRC-32C of everything below                17
    ├── attributes           int16    bits 0-2 codec, 3 log append time,         21
    │                                 4 transactional, 5 control, 6 delete horizon
    ├── last offset delta    int32    records - 1                                23
    ├── base timestamp       int64    ms since the epoch, of the first record    27
    ├── max timestamp        int64    ms since the epoch                         35
    ├── producer id          int64                                               43
    ├── producer epoch       int16                                               51
    ├── base sequence        int32    counts records of this producer            53
    ├── records              int32    how many                                   57
    └── the records, compressed as one piece                                     61

    record
    ├── length               varint   bytes after this field
    ├── attributes           int8     0
    ├── timestamp delta      varlong  to the base timestamp, may be negative
    ├── offset delta         varint   0, 1, 2, …
    ├── key length           varint   -1: null     ├── key
    ├── value length         varint   -1: null     ├── value
    └── header count         varint   then of each: key length, key, value length (-1: null), value

No Python object is made for a row. All varints of a row up to its key join in one or two 64-bit
words by table look-up and shifts; then four or five *views* a row (prefix, key, value length,
value, headers) become one run of bytes by a single cast inside Arrow (see :mod:`.columns`).
The byte 0 that ends a record without headers is written as the first byte of the next record's
prefix, which saves a view a row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import crc32c
import numpy as np
from numpy.typing import NDArray

from airflow_eos.arrow.records.columns import (
    U64,
    ZERO,
    Columns,
    Field,
    Views,
    ascending,
    concatenated,
    content_of,
    interleaved,
    joined,
    lengths,
    nullable_lengths,
    offsets_of,
    varints,
)
from airflow_eos.kafka.client.codecs import Codec

_TRANSACTIONAL = 0x10
_BEFORE_CRC = struct.Struct(">qiibI")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_AFTER_LENGTH = 4 + 1 + 4  # leader epoch, magic, crc


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """Rows that go into one record batch, encoded and not yet compressed. Times in ms."""

    body: memoryview
    count: int
    base_timestamp: int
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class Stamp:
    """The producer that writes a record batch, and whether it writes in a transaction."""

    producer_id: int
    producer_epoch: int
    transactional: bool


def encode_runs(columns: Columns, cuts: Sequence[int]) -> Iterator[EncodedRecords]:
    """Encode rows ``cuts[i]`` to ``cuts[i + 1] - 1`` as the i-th run; no run may be empty.

    All rows together must stay below 2 GiB.
    """
    first, last = np.asarray(cuts[:-1]), np.asarray(cuts[1:])
    at = columns.timestamps
    if isinstance(at, int):
        base = highest = np.full(len(first), at, np.int64)
    else:
        base, highest = at[first], np.maximum.reduceat(at, first)
    # Without headers, each record is led by the header count of the one before it.
    shift = 1 if columns.headers is None else 0
    items = _interleave(columns, last - first, base)
    per_row = (len(items) - shift) // len(columns)
    content, edges = content_of(items), offsets_of(items)[np.asarray(cuts) * per_row] + shift
    for index, count in enumerate(last - first):
        body = content[int(edges[index]) : int(edges[index + 1])]
        yield EncodedRecords(body, int(count), int(base[index]), int(highest[index]))


def _interleave(columns: Columns, counts: NDArray[np.int64], base: NDArray[np.int64]) -> Any:
    keys, values, headers = columns.keys, columns.values, columns.headers
    deltas = _timestamp_deltas(columns, counts, base)
    offsets = concatenated([ascending(int(count)) for count in counts])
    key_length = nullable_lengths(keys.lengths, keys.nulls)
    value_length = nullable_lengths(values.lengths, values.nulls)
    size = U64(1) + keys.lengths + values.lengths
    for field in (*deltas, offsets, key_length, value_length):
        size = size + field.width
    inner = [ZERO, *deltas, offsets, key_length]
    if headers is None:
        prefix = joined([ZERO, lengths(size + ZERO.width), *inner])
        return interleaved([*prefix, keys, value_length, values], len(columns), last=ZERO)
    count = lengths(headers.counts)
    prefix = joined([lengths(size + count.width + headers.blocks.lengths), *inner])
    parts: list[Field | Views] = [*prefix, keys, value_length, values, count, headers.blocks]
    return interleaved(parts, len(columns))


def _timestamp_deltas(
    columns: Columns, counts: NDArray[np.int64], base: NDArray[np.int64]
) -> list[Field]:
    if isinstance(columns.timestamps, int):
        return [ZERO]
    return varints(columns.timestamps - np.repeat(base, counts))


def record_batch(run: EncodedRecords, stamp: Stamp, sequence: int, codec: Codec) -> bytes:
    """Return a complete record batch; ``sequence`` is the first record's number, modulo 2**31."""
    return finish(run, codec.compress(run.body), stamp, sequence, codec)


def finish(
    run: EncodedRecords, content: bytes | memoryview, stamp: Stamp, sequence: int, codec: Codec
) -> bytes:
    """Return the record batch of compressed records: put the header before them."""
    tail = _AFTER_CRC.pack(
        codec.code | (_TRANSACTIONAL if stamp.transactional else 0),
        run.count - 1,
        run.base_timestamp,
        run.max_timestamp,
        stamp.producer_id,
        stamp.producer_epoch,
        sequence,
        run.count,
    )
    crc = crc32c.crc32c(content, crc32c.crc32c(tail))
    length = _AFTER_LENGTH + len(tail) + len(content)
    return b"".join((_BEFORE_CRC.pack(0, length, -1, 2, crc), tail, content))
