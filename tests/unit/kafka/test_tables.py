"""Record batches → rows, by numpy and by compiled loops: kafka-python's, and hostile ones."""

from __future__ import annotations

import ast
import itertools
import resource
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cramjam
import crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecordsBuilder

from airflow_eos.arrow.records import decode as decoding
from airflow_eos.arrow.records import kernels as loops
from airflow_eos.arrow.records import numpy_kernels as row_hashes
from airflow_eos.arrow.records.decode import tables
from airflow_eos.arrow.records.layout import MOST_HEADERS
from airflow_eos.errors import InputError, KafkaError
from airflow_eos.kafka.client import codecs as compression
from airflow_eos.kafka.client.codecs import MOST_BYTES, NAMES, codec
from airflow_eos.kafka.client.fetch import batch_headers
from airflow_eos.kafka.client.reading import OffsetSpan, _visible, _whole
from airflow_eos.kafka.client.records import rows_of
from airflow_eos.kafka.columns import SCHEMA

small = st.one_of(st.none(), st.binary(max_size=300))
rows = st.lists(
    st.tuples(
        small,
        small,
        st.lists(st.tuples(st.text(max_size=5), small), max_size=3),
        st.integers(0, 1 << 42),
    ),
    min_size=1,
    max_size=20,
)


def built(given_rows, compression=0, **whose):
    builder = MemoryRecordsBuilder(
        magic=2, compression_type=compression, batch_size=1 << 22, **whose
    )
    for key, value, headers, stamp in given_rows:
        builder.append(timestamp=stamp, key=key, value=value, headers=headers)
    builder.close()
    return bytes(builder.buffer())


@settings(deadline=None)
@given(rows, st.sampled_from([0, 1]))
def test_what_was_written_is_read(expected, compression):
    (batch,) = batch_headers(built(expected, compression))
    found = [(r.key, r.value, r.headers, r.timestamp) for r in rows_of(batch)]
    assert found == [(k, v, h, t) for k, v, h, t in expected]
    assert [r.offset for r in rows_of(batch)] == list(range(len(expected)))


def test_the_header_says_whose_it_is():
    data = built(
        [(None, b"v", [], 1)] * 3,
        transactional=True,
        producer_id=77,
        producer_epoch=5,
        base_sequence=0,
    )
    (batch,) = batch_headers(data)
    assert (batch.producer_id, batch.producer_epoch) == (77, 5)
    assert (batch.base_offset, batch.last_offset, batch.records) == (0, 2, 3)
    assert not batch.is_control


def test_an_incomplete_last_batch_is_left_out():
    data = built([(None, b"v" * 50, [], 1)])
    assert len(list(batch_headers(data + data[:-1]))) == 1
    assert list(batch_headers(data[:40])) == []
    assert list(batch_headers(None)) == []


@pytest.mark.parametrize("length", [-12, -1, 0, 48, (1 << 31) - 1, -(1 << 31)])
def test_a_garbled_length_ends_the_answer_and_is_no_endless_loop(length):
    """It lies before what the CRC is of."""
    good = built([(None, b"v", [], 1)])
    bad = bytearray(good)
    bad[8:12] = struct.pack(">i", length)
    assert len(list(itertools.islice(batch_headers(good + bytes(bad) + good), 3))) == 1


@pytest.mark.parametrize("cut", [10, 1])
def test_a_garbled_batch_is_an_error_and_no_rows(cut):
    data = bytearray(built([(b"key", b"value" * 10, [], 1)]))
    data[61 : 61 + cut] = b"\xff" * cut
    (batch,) = batch_headers(bytes(data))
    with pytest.raises(KafkaError, match="offset 0"):
        list(rows_of(batch))


@pytest.mark.parametrize("name", NAMES)
def test_every_codec_of_the_writer_is_read(name):
    expected = [(b"k%d" % i, b"v" * i, [("h", None)], i) for i in range(2000)]
    (plain,) = batch_headers(built(expected))
    chosen = codec(name)
    packed = replace(
        plain, attributes=chosen.code, payload=memoryview(bytes(chosen.compress(plain.payload)))
    )
    assert repr(list(rows_of(packed))) == repr(list(rows_of(plain)))


def test_snappy_as_librdkafka_writes_it():
    (plain,) = batch_headers(built([(b"k", b"v" * 100, [], 1)]))
    packed = bytes(cramjam.snappy.compress_raw(bytes(plain.payload)))
    raw = replace(plain, attributes=2, payload=memoryview(packed))
    assert repr(list(rows_of(raw))) == repr(list(rows_of(plain)))


# --- tables ---------------------------------------------------------------------------------------
# Record batches as kafka-python's builder writes them → Arrow: by numpy and by compiled loops.
#
# Both are held against each other and against the plain decoder of replays and audits.


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
            "timestamp": row.timestamp,
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
    monkeypatch.setattr("airflow_eos.arrow.records.decode.PORTION_BYTES", 100)
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
            loops.hash_bytes(data, offsets, valid, said[-1], count_nulls=told)
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


# --- A fetch answer that lies in what its CRC covers: rows, or a refusal, and never memory --------


MIB = 1 << 20


def test_of_300_mutated_answers_each_is_rows_or_a_refusal_that_says_where():
    """With Numba's bounds checks on; ``python -m tests.hostile`` is 10,000 of them."""
    pytest.importorskip("numba")
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile", "300", "7"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = ast.literal_eval(done.stdout)
    assert said["rows"] > 30
    assert said["refused"] > 150
    assert said["rows"] + said["refused"] == 300


def varint(number: int) -> bytes:
    zigzag, out = (number << 1 ^ number >> 63) & (1 << 64) - 1, bytearray()
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def record(
    delta: int = 0, *, elapsed: int = 0, value: bytes = b"v", headers: int = 0, tail: bytes = b""
) -> bytes:
    body = b"\0" + varint(elapsed) + varint(delta) + varint(-1) + varint(len(value)) + value
    body += varint(headers) + tail
    return varint(len(body)) + body


def batch(
    payload: bytes,
    count: int,
    *,
    base: int = 0,
    last: int | None = None,
    codec: int = 0,
    at: int = 0,
) -> bytes:
    said = count - 1 if last is None else last
    after = struct.pack(">hiqqqhii", codec, said, at, at, -1, -1, -1, count) + payload
    return struct.pack(">qiibI", base, 9 + len(after), -1, 2, crc32c.crc32c(after)) + after


def answered_rows(
    records: bytes, way: str = "numpy", columns: tuple[str, ...] = ("value", "offset", "headers")
) -> int:
    answer = SimpleNamespace(records=records, aborted_transactions=None)
    batches = _visible(SPAN, 0, _whole(SPAN, 0, answer)[0], answer)
    return sum(table.num_rows for table in tables(batches, SPAN))


NULLS = b"\x00\x01"  # a header: an empty name, no value
ALL = (1 << 63) - 1
LIES = {
    "counts of records that add up": batch(b"", -199, last=0) + batch(record() * 200, 200, base=1),
    "records that the bytes cannot hold": batch(record(), (1 << 31) - 1),
    "more records than offsets": batch(record(0) + record(1), 2, last=0),
    "a last offset before the first": batch(record(), 1, last=-1 << 31),
    "a batch that begins within the one before": b"".join(
        (batch(record(0) + record(1), 2), batch(record(), 1, base=1))
    ),
    "counts of headers that wrap around": batch(
        record(0, headers=ALL) + record(1, headers=ALL) + record(2, headers=3, tail=NULLS * 3), 3
    ),
    "a negative count of headers": batch(record(headers=-1), 1),
    "more headers than a record may have": batch(
        record(headers=MOST_HEADERS + 1, tail=bytes(2 * MOST_HEADERS + 2)), 1
    ),
    "headers that end before their record": batch(record(headers=1, tail=NULLS * 2), 1),
    "bytes behind a record's fields": batch(record(tail=b"xx"), 1),
    "offsets that go backwards": batch(record(1) + record(0), 2),
    "an offset twice": batch(record(0) + record(0), 2),
    "an offset behind its batch": batch(record(9), 1),
    "a time that goes around": batch(record(elapsed=ALL), 1, at=5),
}


@pytest.mark.parametrize("way", ["numpy", "compiled"])
@pytest.mark.parametrize("lie", LIES)
def test_what_a_batch_says_of_itself_is_held_against_its_bytes(monkeypatch, way, lie):
    if way == "compiled":
        pytest.importorskip("numba")
        loops.warm(wait=True)
    else:
        monkeypatch.setattr(loops, "_loaded", [])
    with pytest.raises(InputError, match=r"offset \d+ of partition 3 of topic 't'"):
        answered_rows(LIES[lie])


@pytest.mark.parametrize("way", ["numpy", "compiled"])
def test_headers_of_zeros_are_read_in_parts_and_cost_no_more_for_being_many(monkeypatch, way):
    """25 kB of zstd can be 130 million headers of one batch, of hundreds of bytes each."""
    if way == "compiled":
        pytest.importorskip("numba")
        loops.warm(wait=True)
    else:
        monkeypatch.setattr(loops, "_loaded", [])
    monkeypatch.setattr(decoding, "_HEADERS_AT_ONCE", 1000)
    counts = [0, 700, 700, 0, 1, 3000, 2]
    made = b"".join(record(n, headers=h, tail=bytes(2 * h)) for n, h in enumerate(counts))
    answer = SimpleNamespace(records=batch(made, len(counts)), aborted_transactions=None)
    batches = _visible(SPAN, 0, _whole(SPAN, 0, answer)[0], answer)
    found = list(tables(batches, SPAN))
    assert [len(each) for rows in found for each in rows["headers"].to_pylist()] == counts
    assert [n for rows in found for n in rows["offset"].to_pylist()] == list(range(len(counts)))
    assert max(sum(map(len, rows["headers"].to_pylist())) for rows in found) <= 4000
    assert len(found) == 3


def test_more_records_than_one_batch_may_have_are_refused_before_they_are_walked(monkeypatch):
    """30 kB of zstd can be 38 million records of nothing, which take gigabytes to walk."""
    monkeypatch.setattr(decoding, "MOST_RECORDS", 4)
    with pytest.raises(InputError, match=r"says that it has 5 records: at most 4 are read"):
        answered_rows(batch(b"".join(map(record, range(5))), 5))
    four = batch(b"".join(map(record, range(4))), 4)
    assert answered_rows(four + four.replace(bytes(8), struct.pack(">q", 4), 1)) == 8


def test_no_array_is_made_by_a_number_of_records_that_the_bytes_cannot_hold():
    """137 GB of columns for one record, where the system promises more memory than it has."""
    lie = batch(record(), (1 << 31) - 1)
    with pytest.raises(InputError, match=r"2147483647 records: at most 1 are read of its 8 bytes"):
        answered_rows(lie)


def bomb(codec: int, mib: int) -> bytes:
    content = record(value=b"\0" * (mib * MIB))
    packed = compression.codec(NAMES[codec]).compress(memoryview(content))
    return batch(bytes(packed), 1, codec=codec)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_small_batch_that_is_large_decompressed_is_refused_with_its_place(monkeypatch, codec):
    """By any producer of the input: the broker's limit is of what is compressed."""
    monkeypatch.setattr(compression, "MOST_BYTES", 16 * MIB)
    made = bomb(codec, 160)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"offset 0 of partition 3 of topic 't'.*16 MiB") as told:
        answered_rows(made)
    again, step = told.value.remedies
    assert again.commands == step.commands
    assert step.commands == ("airflow-eos accept CHECKPOINT --skip-input t:3:0-0 --yes",)
    assert (step.start, "1 at most" in step.costs) == (True, True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_the_most_of_one_batch_is_what_the_docs_say():
    page = (Path(__file__).parents[3] / "docs" / "arrow-source.md").read_text()
    assert f"{MOST_BYTES // MIB} MiB" in page


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_small_batches_that_are_large_together_are_read_one_after_the_other(monkeypatch, codec):
    for each in (compression, decoding):
        monkeypatch.setattr(each, "MOST_BYTES", 2 * MIB)
    one = bomb(codec, 1)
    several = b"".join(struct.pack(">q", base) + one[8:] for base in range(5))
    answer = SimpleNamespace(records=several, aborted_transactions=None)
    found = tables(_visible(SPAN, 0, _whole(SPAN, 0, answer)[0], answer), SPAN, ("value",))
    assert [each.num_rows for each in found] == [1] * 5


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_a_batch_is_given_room_for_eight_times_its_size_until_one_needs_more(monkeypatch, name):
    """Room that no batch uses goes back to the kernel, which zeroes its pages for the next one."""
    monkeypatch.setattr(compression, "_times", [8])
    usual = record(value=np.random.default_rng(1).bytes(MIB // 2).hex().encode())
    for content, times in ((usual, 8), (record(value=b"\0" * MIB), 32), (usual, 32)):
        packed = bytes(codec(name).compress(memoryview(content)))
        (one,) = batch_headers(batch(packed, 1, codec=NAMES.index(name)))
        found = compression.decompressed(one)
        assert bytes(found) == content
        assert compression._times == [times]
        assert content is not usual or found.obj.base.nbytes == 65_536 + times * len(packed)
