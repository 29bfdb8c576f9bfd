"""Record batches as kafka-python's builder writes them → Arrow: by numpy and by compiled loops.

Both are held against each other and against the plain decoder of replays and audits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_eos.errors import InputError
from airflow_eos.kafka.client.fetch import batch_headers
from airflow_eos.kafka.client.reading import OffsetSpan
from airflow_eos.kafka.records import kernels as loops
from airflow_eos.kafka.records import numpy_kernels as row_hashes
from airflow_eos.kafka.records.decode import SCHEMA, rows_of, tables
from airflow_eos.kafka.records.encode import NAMES, codec
from tests.unit.kafka.test_decoding import built, rows

SPAN = OffsetSpan("t", 3, 0, 1 << 40)
WAYS = ("numpy", "compiled")


@pytest.fixture(scope="module")
def compiled():
    pytest.importorskip("numba")
    loops.warm(wait=True)
    assert loops._loaded, "the compiled loops did not load"
    return list(loops._loaded)


@pytest.fixture
def by(compiled, monkeypatch):
    """Chooses the way that the next calls go."""

    def choose(way):
        monkeypatch.setattr(loops, "_loaded", compiled if way == "compiled" else [])

    return choose


def batches(*parts):
    """Batches of one partition, their offsets one after the other."""
    found, at = [], 0
    for part in parts:
        (batch,) = batch_headers(built(part))
        last = at + len(part) - 1
        found.append(replace(batch, base_offset=at, last_offset=last))
        at = last + 1
    return found


def expected(found):
    """The same by the plain decoder."""
    return [
        {
            "key": row.key,
            "value": row.value,
            "topic": "t",
            "partition": 3,
            "offset": row.offset,
            "timestamp": row.timestamp_ms,
            "headers": [{"key": k, "value": v} for k, v in row.headers],
        }
        for batch in found
        for row in rows_of(batch)
    ]


def listed(found):
    found = list(found)
    rows = [row for table in found for row in table.to_pylist()]
    times = [t for table in found for t in table.column("timestamp").cast("int64").to_pylist()]
    return [row | {"timestamp": us // 1000} for row, us in zip(rows, times, strict=True)]


@settings(deadline=None, max_examples=60)
@given(parts=st.lists(rows, min_size=1, max_size=4), data=st.data())
def test_both_ways_give_the_rows_that_the_plain_decoder_gives(parts, data):
    pytest.importorskip("numba")
    loops.warm(wait=True)
    loaded = list(loops._loaded)
    found = batches(*parts)
    count = sum(map(len, parts))
    first = data.draw(st.integers(0, count))
    span = replace(SPAN, first=first, until=data.draw(st.integers(first, count)))
    said = {}
    try:
        for way in WAYS:
            loops._loaded[:] = loaded if way == "compiled" else []
            said[way] = list(tables(found, span))
            for table in said[way]:
                table.validate(full=True)
    finally:
        loops._loaded[:] = loaded
    assert said["numpy"] == said["compiled"]
    assert listed(said["numpy"]) == [
        row for row in expected(found) if span.first <= row["offset"] < span.until
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_every_codec_is_read(by, way, name):
    by(way)
    given_rows = [(b"k%d" % i, b"v" * i, [("h", None)], i) for i in range(500)]
    (plain,) = batches(given_rows)
    chosen = codec(name)
    packed = replace(
        plain, attributes=chosen.code, payload=memoryview(bytes(chosen.compress(plain.payload)))
    )
    assert listed(tables([packed], SPAN)) == expected([plain])


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_the_topic_stamped_have_the_batchs_time(by, way):
    by(way)
    (batch,) = batches([(None, b"v", [], 5), (None, b"w", [], 9)])
    stamped = replace(batch, attributes=8, max_timestamp_ms=77)
    assert [row["timestamp"] for row in listed(tables([stamped], SPAN))] == [77, 77]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("time", [-(1 << 62), 1_700_000_000_000_000_000])
def test_a_time_stamp_that_microseconds_cannot_hold_is_an_error_and_no_other_time(by, way, time):
    """As of a producer that gives nanoseconds, where the broker lets it."""
    by(way)
    (batch,) = batches([(b"k", b"v", [], 5), (b"k", b"v", [], 5)])
    odd = replace(batch, base_timestamp_ms=time)
    expected = rf"offset 0 of partition 3 of topic 't' has the time stamp {time}, expected milli"
    with pytest.raises(InputError, match=expected):
        list(tables([odd], SPAN))
    [unasked] = tables([odd], SPAN, ("key", "value"))
    assert unasked.num_rows == 2


def test_small_batches_are_decoded_together_and_large_ones_by_themselves(monkeypatch):
    """Each of several is copied once more, and all of them are in memory at a time."""
    monkeypatch.setattr("airflow_eos.kafka.records.decode.PORTION_BYTES", 100)
    small: list[Any] = [(b"k", b"v", [], 1)]
    large: list[Any] = [(b"k", b"v" * 90, [], 1)]
    found = tables(batches(small, small, large, large, small, [*large, *large], small), SPAN)
    assert [each.num_rows for each in found] == [2, 1, 1, 1, 2, 1]


@pytest.mark.parametrize("way", WAYS)
def test_gaps_that_compaction_left_are_gaps(by, way):
    by(way)
    first, _, third = batches(*[[(b"k", b"v", [], 1)]] * 3)
    assert [row["offset"] for row in listed(tables([first, third], SPAN))] == [0, 2]


@pytest.mark.parametrize("way", WAYS)
def test_no_columns_but_those_that_were_asked_for(by, way):
    by(way)
    (found,) = tables(batches([(b"k", b"v", [("h", b"x")], 1)]), SPAN, ("value", "offset"))
    assert found.schema == pa.schema([SCHEMA.field("value"), SCHEMA.field("offset")])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("garble", ["cut", "longer", "count", "field", "headers"])
def test_a_garbled_batch_is_an_error_that_names_where_it_is(by, way, garble):
    by(way)
    good, bad = batches([(b"k", b"v", [], 1)], [(b"key", b"value" * 10, [("h", b"x")], 1)] * 2)
    payload = bytearray(bad.payload)
    match garble:
        case "cut":
            bad = replace(bad, payload=memoryview(bytes(payload[:-1])))
        case "longer":
            bad = replace(bad, payload=memoryview(bytes(payload) + b"\0"))
        case "count":
            bad = replace(bad, records=3)
        case "field":
            payload[4] = 0x7E  # the key's length: beyond its record
            bad = replace(bad, payload=memoryview(bytes(payload)))
        case "headers":
            payload[-2] = 0x7F  # the header value's length, of the last record
            bad = replace(bad, payload=memoryview(bytes(payload)))
    with pytest.raises(InputError, match=r"offset 1 of partition 3 of topic 't'.*garbled"):
        list(tables([good, bad], SPAN))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("codec_id", [1, 2, 3, 4, 7])
def test_what_cannot_be_decompressed_is_an_error_that_names_where_it_is(by, way, codec_id):
    by(way)
    (batch,) = batches([(b"k", b"v", [], 1)])
    with pytest.raises(InputError, match=r"offset 0 of partition 3 of topic 't'.*decompressed"):
        list(tables([replace(batch, attributes=codec_id)], SPAN))


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=200), st.integers(1, 5))
def test_no_bytes_make_the_loops_read_behind_their_end(content, records):
    """Whatever the bytes are, both ways say the same: the same rows, or that it is garbled."""
    pytest.importorskip("numba")
    loops.warm(wait=True)
    loaded = list(loops._loaded)
    (batch,) = batches([(b"k", b"v", [], 1)])
    bad = replace(batch, payload=memoryview(content), records=records)
    said: dict[str, Any] = {}
    try:
        for way in WAYS:
            loops._loaded[:] = loaded if way == "compiled" else []
            try:
                said[way] = [
                    table.to_pydict() for table in tables([bad], SPAN, ("key", "value", "headers"))
                ]
            except InputError as error:
                said[way] = str(error)
    finally:
        loops._loaded[:] = loaded
    assert said["numpy"] == said["compiled"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=120)), max_size=40), st.booleans())
def test_both_ways_hash_bytes_the_same(values, told):
    pytest.importorskip("numba")
    loops.warm(wait=True)
    loaded = list(loops._loaded)
    column = pa.array(values, pa.binary())
    offsets = np.frombuffer(column.buffers()[1], np.int32)[: len(values) + 1]
    content = column.buffers()[2]
    data = np.frombuffer(content, np.uint8) if content else np.zeros(0, np.uint8)
    valid = np.array([value is not None for value in values], np.bool_)
    said = []
    try:
        for way in WAYS:
            loops._loaded[:] = loaded if way == "compiled" else []
            said.append(np.full(len(values), 42, np.uint64))
            loops.hash_bytes(data, offsets, valid, said[-1], told=told)
    finally:
        loops._loaded[:] = loaded
    by_numpy, by_loops = said
    assert by_numpy.tolist() == by_loops.tolist()


@pytest.mark.parametrize(
    ("content", "hashed"),
    [
        # The test vectors of the specification, seed 0.
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
    ],
)
def test_hashes_are_those_of_xxh64(content, hashed):
    found = np.zeros(1, np.uint64)
    row_hashes.hash_bytes(
        np.frombuffer(content, np.uint8),
        np.array([0, len(content)], np.int32),
        np.ones(1, np.bool_),
        found,
    )
    assert found.tolist() == [hashed]
