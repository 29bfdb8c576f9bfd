"""Hypothesis' idea of the rows that Spark may hand us, and an independent decoder of batches."""

from __future__ import annotations

import struct
from typing import Any

import cramjam
import pyarrow as pa
from hypothesis import strategies as st
from kafka.record import MemoryRecords

from airflow_eos.arrow.records.columns import columns_of
from airflow_eos.arrow.records.encode import Stamp, encode_runs, record_batch
from airflow_eos.kafka.client.codecs import codec
from airflow_eos.kafka.client.records import HEADER_BYTES

NOW_MS = 1_790_000_000_000
BYTES_TYPES = (pa.binary(), pa.large_binary(), pa.binary_view())
TEXT_TYPES = (pa.string(), pa.large_string(), pa.string_view())
STAMP = Stamp(producer_id=4711, producer_epoch=3, transactional=True)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

# Around what changes the layout: 12 bytes fit a view, 63 a one-byte varint, 65,535 the table.
_CONTENT = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([0, 11, 12, 13, 63, 64, 8191, 8192, 65_535, 65_536, 70_000]).map(
        lambda n: bytes(i % 251 for i in range(n))
    ),
)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
_HEADER = st.fixed_dictionaries({"key": _TEXT, "value": st.none() | st.binary(max_size=20)})
_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


@st.composite
def byte_columns(draw, count):
    content: st.SearchStrategy[Any]
    kind, content = draw(st.sampled_from(BYTES_TYPES)), _CONTENT
    if draw(st.booleans()):
        kind, content = draw(st.sampled_from(TEXT_TYPES)), _TEXT
    if draw(st.booleans()):
        content = st.none() | content
    # A slice, as Arrow hands out: offsets do not start at 0.
    spare = draw(st.integers(0, 2))
    values = draw(st.lists(content, min_size=count + spare, max_size=count + spare))
    return pa.array(values, kind).slice(spare)


@st.composite
def timestamp_columns(draw, count):
    unit = draw(st.sampled_from(["int64", *_UNITS]))
    most_ms = 2**63 - 1 if unit == "int64" else (2**63 - 1) // 1_000_000
    moments = st.none() | st.integers(0, most_ms)
    values = draw(st.lists(moments, min_size=count, max_size=count))
    if unit == "int64":
        return pa.array(values, pa.int64())
    ticks = [None if v is None else v * 1_000_000 // _UNITS[unit] for v in values]
    return pa.array(ticks, pa.timestamp(unit, draw(st.sampled_from([None, "UTC"]))))


@st.composite
def record_rows(draw, max_rows=30):
    """An Arrow batch of one row at least, with any of the optional columns."""
    count = draw(st.integers(1, max_rows))
    columns = {"value": draw(byte_columns(count))}
    if draw(st.booleans()):
        columns["key"] = draw(byte_columns(count))
    if draw(st.booleans()):
        columns["timestamp"] = draw(timestamp_columns(count))
    if draw(st.booleans()):
        lists = st.none() | st.lists(_HEADER, max_size=3)
        values = draw(st.lists(lists, min_size=count + 1, max_size=count + 1))
        columns["headers"] = pa.array(values, HEADERS).slice(1)
    return pa.RecordBatch.from_pydict(columns)


def as_bytes(value):
    return value.encode() if isinstance(value, str) else value


def expected(rows: pa.RecordBatch, now_ms: int = NOW_MS) -> list[tuple[Any, ...]]:
    """What a reader must see: (key, value, timestamp in ms, headers) a row."""
    names = rows.schema.names
    count = rows.num_rows

    def column(name):
        return rows.column(name).to_pylist() if name in names else [None] * count

    times = [now_ms] * count
    if "timestamp" in names:
        moments = rows.column("timestamp")
        if pa.types.is_timestamp(moments.type):
            tick = _UNITS[moments.type.unit]
            ticks = moments.cast(pa.int64()).to_pylist()
            times = [now_ms if t is None else t * tick // 1_000_000 for t in ticks]
        else:
            times = [now_ms if t is None else t for t in moments.to_pylist()]
    return [
        (as_bytes(key), as_bytes(value), at, [(h["key"], h["value"]) for h in headers or []])
        for key, value, at, headers in zip(
            column("key"), column("value"), times, column("headers"), strict=True
        )
    ]


def encoded(
    rows: pa.RecordBatch, cuts: list[int], name: str = "none", sequence: int = 0
) -> list[bytes]:
    """A record batch for each run between the cuts."""
    runs = encode_runs(columns_of(rows, now_ms=NOW_MS), cuts)
    return [record_batch(run, STAMP, sequence, codec(name)) for run in runs]


def decoded(batch: bytes) -> list[tuple[Any, ...]]:
    """What kafka-python reads, CRC checked: (key, value, timestamp in ms, headers) a row."""
    read = MemoryRecords(batch).next_batch()
    assert read.validate_crc()
    if read.compression_type == 2:
        batch = _without_snappy(batch)
    records = list(MemoryRecords(batch).next_batch())
    assert [r.offset for r in records] == list(range(len(records)))
    assert read.max_timestamp == max(r.timestamp for r in records)
    assert read.first_timestamp == records[0].timestamp
    return [(r.key, r.value, r.timestamp, list(r.headers)) for r in records]


def _without_snappy(batch: bytes) -> bytes:
    """The same batch uncompressed: kafka-python reads snappy only with a package of its own."""
    content, body = batch[HEADER_BYTES:], b""
    assert content[:8] == b"\x82SNAPPY\x00"
    place = 16
    while place < len(content):
        (size,) = struct.unpack_from(">i", content, place)
        body += bytes(cramjam.snappy.decompress_raw(content[place + 4 : place + 4 + size]))
        place += 4 + size
    head = bytearray(batch[:HEADER_BYTES])
    struct.pack_into(">i", head, 8, HEADER_BYTES - 12 + len(body))
    head[22] &= ~7
    return bytes(head) + body
