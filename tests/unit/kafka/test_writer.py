"""Rows to partitions and batches: each once, in its place, in order; an abort comes last."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

from airflow_eos.arrow.producer import writer as producer
from airflow_eos.arrow.producer.partitioner import (
    PartitionSlice,
    Routed,
    choose,
    cut,
    describe_row,
    murmur2,
    murmur2_of,
    route,
)
from airflow_eos.arrow.producer.sender import Sender
from airflow_eos.arrow.producer.writer import (
    BatchBuilder,
    Ratios,
    batches_of,
    sorted_batches,
)
from airflow_eos.arrow.records.columns import Views, columns_of, views_of
from airflow_eos.errors import RowError, TopicError, TransactionError
from airflow_eos.kafka import destination
from airflow_eos.kafka import writer as librdkafka
from airflow_eos.kafka.client.codecs import codec
from airflow_eos.kafka.columns import explicit_partitions
from airflow_eos.kafka.destination import Destination, Topic, Topics
from airflow_eos.kafka.transactions.identity import TransactionIdentity
from tests.unit.kafka.record_rows import STAMP, decoded, expected, record_rows

PARTITIONS = {"a": 3, "b": 1, "c": 300}
"""Together more than the 256 that fit the narrowest sort."""


def topic_of(name: str) -> Topic:
    if name not in PARTITIONS:
        raise TopicError(f"topic {name!r} does not exist")
    return Topic(name, PARTITIONS[name], 1_000_000)


def routed(default: str | None = "a", **columns: Any) -> Routed:
    rows = pa.RecordBatch.from_pydict(columns)
    return route(rows, columns_of(rows, now_ms=0), default, topic_of)


def contents(column: Views) -> list[bytes]:
    array = pa.Array.from_buffers(
        pa.binary_view(), len(column), [None, pa.py_buffer(column.words), *column.buffers]
    )
    found: list[bytes] = array.cast(pa.binary()).to_pylist()
    return found


def places(found: Routed) -> dict[tuple[str, int], list[bytes]]:
    values = contents(found.columns.values)
    return {(s.topic.name, s.partition): values[s.start : s.stop] for s in found.slices}


ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, "a", "b", "c"]),
        st.none() | st.binary(max_size=20),
        st.none() | st.just(0),
    ),
    min_size=1,
    max_size=60,
)


@settings(deadline=None)
@given(ROWS)
def test_each_row_goes_once_to_its_place_and_keeps_its_order(rows):
    topics, keys, partitions = (list(column) for column in zip(*rows, strict=True))
    values = [str(i).encode() for i in range(len(rows))]
    found = routed(
        value=pa.array(values, pa.binary()),
        key=pa.array(keys, pa.binary()),
        topic=pa.array(topics, pa.string()),
        partition=pa.array(partitions, pa.int32()),
    )

    expected: dict[str, set[bytes]] = {}
    for value, topic in zip(values, topics, strict=True):
        expected.setdefault(topic or "a", set()).add(value)
    seen: dict[str, set[bytes]] = {}
    for (topic, partition), inside in places(found).items():
        assert [int(v) for v in inside] == sorted(int(v) for v in inside)
        assert not seen.setdefault(topic, set()) & set(inside)
        seen[topic] |= set(inside)
        for value in inside:
            key, explicit = keys[int(value)], partitions[int(value)]
            if explicit is not None:
                assert partition == explicit
            elif key is not None:
                assert partition == (murmur2_of(key) & 0x7FFFFFFF) % PARTITIONS[topic]
    assert seen == expected
    edges = [(s.start, s.stop) for s in found.slices]
    assert [start for start, _ in edges] == [0, *(stop for _, stop in edges[:-1])]
    assert edges[-1][1] == len(rows)
    assert all(start < stop for start, stop in edges)


def test_keys_timestamps_and_headers_move_with_their_values():
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    found = routed(
        value=["0", "1", "2"],
        key=["k0", "k1", "k2"],
        partition=[2, 0, 1],
        timestamp=[10, 11, 12],
        headers=pa.array([[], [{"key": "h", "value": b"1"}], []], kind),
    )
    assert contents(found.columns.values) == [b"1", b"2", b"0"]
    assert contents(found.columns.keys) == [b"k1", b"k2", b"k0"]
    assert isinstance(found.columns.timestamps, np.ndarray)
    assert found.columns.timestamps.tolist() == [11, 12, 10]
    assert found.columns.headers is not None
    assert found.columns.headers.counts.tolist() == [1, 0, 0]
    assert contents(found.columns.headers.blocks) == [b"\x02h\x021", b"", b""]


def test_rows_without_a_key_go_to_one_partition_together_and_the_next_ones_to_the_next():
    topic = topic_of("a")
    rows = pa.RecordBatch.from_pydict({"value": ["x", "y"]})
    turns = []
    for _ in range(4):
        (part,) = route(rows, columns_of(rows, now_ms=0), "a", lambda _: topic).slices
        turns.append(part.partition)
    assert turns[3] == turns[0]
    assert sorted(turns[:3]) == [0, 1, 2]


def test_rows_of_one_partition_are_not_copied():
    rows = pa.RecordBatch.from_pydict({"value": ["x", "y"]})
    columns = columns_of(rows, now_ms=0)
    assert route(rows, columns, "b", topic_of).columns is columns


@pytest.mark.parametrize(
    ("default", "columns", "error", "message"),
    [
        (None, {"value": ["v"]}, RowError, "no column 'topic', and the sink names no topic"),
        (None, {"value": ["v", "w"], "topic": ["a", None]}, RowError, "row 1 has no topic"),
        (None, {"value": ["v"], "topic": pa.nulls(1)}, RowError, "row 0 has no topic"),
        ("a", {"value": ["v", "w"], "topic": ["b", "no"]}, TopicError, "'no' does not exist"),
        ("a", {"value": ["v", "w"], "partition": [0, 3]}, RowError, "row 1 .* partitions 0 to 2"),
        ("a", {"value": ["v"], "partition": [-1]}, RowError, "count from 0"),
        ("a", {"value": ["v"], "partition": ["0"]}, RowError, "expected an integer"),
        (
            "a",
            {"value": ["v", "w"], "topic": ["a", "b"], "partition": [2, 1]},
            RowError,
            "topic 'b', which has the partitions 0 to 0",
        ),
    ],
)
def test_what_cannot_be_routed_is_named(default, columns, error, message):
    with pytest.raises(error, match=message):
        routed(default, **columns)


def test_a_topic_column_without_any_value_means_the_default_topic():
    assert places(routed(value=["v"], topic=pa.nulls(1), partition=[1])) == {("a", 1): [b"v"]}


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 400), st.data())
def test_a_slice_is_cut_into_runs_that_join_without_a_gap(sizes, limit, data):
    start = data.draw(st.integers(0, len(sizes) - 1))
    ends = np.concatenate((np.zeros(1, np.uint64), np.cumsum(sizes, dtype=np.uint64)))
    topic = Topic("a", 1, 64 + limit)
    runs = list(cut(PartitionSlice(topic, 0, start, len(sizes)), ends, 200, 1.0))

    assert runs[0][0] == start
    assert runs[-1][1] == len(sizes)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(runs))
    assert all(first < last for first, last in runs)
    for first, last in runs:
        # "About": an even cut falls inside a row at most.
        assert int(ends[last] - ends[first]) <= min(200, limit) + max(sizes)


def test_what_fits_is_one_run():
    ends = np.array([0, 10, 20, 30], np.uint64)
    topic = Topic("a", 1, 1_000)
    assert list(cut(PartitionSlice(topic, 0, 0, 3), ends, 30, 1.0)) == [(0, 3)]
    assert list(cut(PartitionSlice(topic, 0, 0, 3), ends, 15, 1.0)) == [(0, 2), (2, 3)]


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (None, None),
        (b"", b""),
        (b"twelve bytes", b"twelve bytes"),
        (b"thirteen byte", b"thirteen byte"),
        (b"x" * 60, b"x" * 60),
        (b"x" * 61, b"x" * 60 + b"..."),
    ],
)
def test_a_row_is_described_by_its_key_and_never_by_all_of_a_long_one(key, shown):
    rows = pa.RecordBatch.from_pydict(
        {"value": ["v", "w"], "key": pa.array([b"another", key], pa.binary())}
    )
    assert describe_row(columns_of(rows, now_ms=0), 1) == shown


# --- partitioner ----------------------------------------------------------------------------------
# The partitioner against kafka-python's murmur2; the Java producer is asked in the integration.


KEYS = st.lists(
    st.binary(max_size=40) | st.sampled_from([b"x" * 1024, b"y" * 1025, b"z" * 3001]), max_size=30
)


def views(keys, kind=None):
    return views_of(pa.array(keys, kind or pa.binary()), "key")


@settings(deadline=None)
@given(KEYS, st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()]))
def test_murmur2_of_a_column_is_murmur2_of_each_key(keys, kind):
    assert murmur2(views(keys, kind)).tolist() == [
        murmur2_of_kafka_python(key) & 0xFFFFFFFF for key in keys
    ]


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_the_definition_is_the_one_of_kafka_python(key):
    assert murmur2_of(key) == murmur2_of_kafka_python(key) & 0xFFFFFFFF


@pytest.mark.parametrize("length", range(13, 30))
def test_a_key_at_the_very_end_of_its_buffer(length):
    keys = [b"a" * 15, bytes(range(256 - length, 256))]
    column = pa.Array.from_buffers(
        pa.binary(),
        2,
        [None, pa.py_buffer(np.array([0, 15, 15 + length], "i4")), pa.py_buffer(b"".join(keys))],
    )

    assert murmur2(views_of(column, "key")).tolist() == [murmur2_of(key) for key in keys]


def test_keys_in_several_buffers():
    keys = [random.Random(i).randbytes(10 + i) for i in range(40)]
    pieces = [pa.array(keys[i : i + 10], pa.binary_view()) for i in range(0, 40, 10)]
    column = pa.concat_arrays(pieces)

    assert len(column.buffers()) > 3
    assert murmur2(views_of(column, "key")).tolist() == [murmur2_of(key) for key in keys]


def test_an_empty_key_is_a_key():
    chosen = choose(Topic("t", 7, 1), views([b"", None, b""]))

    assert chosen[0] == chosen[2] == (murmur2_of(b"") & 0x7FFFFFFF) % 7


def test_rows_without_a_key_stay_together_and_take_turns():
    topic = Topic("t", 3, 1)
    batches = [choose(topic, views([None] * 5)) for _ in range(6)]

    assert [len(set(batch.tolist())) for batch in batches] == [1] * 6
    assert sorted(int(batch[0]) for batch in batches) == [0, 0, 1, 1, 2, 2]


def test_rows_without_a_key_do_not_move_those_with_one():
    topic = Topic("t", 5, 1)
    alone = choose(topic, views([b"a", b"b"]))
    mixed = choose(topic, views([None, b"a", None, b"b"]))

    assert mixed[[1, 3]].tolist() == alone.tolist()
    assert mixed[0] == mixed[2]


def test_a_row_that_names_its_partition_goes_there():
    explicit = explicit_partitions(pa.array([4, None, 0], pa.int32()))
    topic = Topic("t", 5, 1)

    chosen = choose(topic, views([b"a", b"b", b"c"]), explicit)

    assert chosen.tolist() == [4, (murmur2_of(b"b") & 0x7FFFFFFF) % 5, 0]


def test_a_partition_that_the_topic_lacks_is_refused():
    explicit = explicit_partitions(pa.array([0, 5]))

    with pytest.raises(RowError, match=r"row 1 .* partition 5 of topic 't', which has .* 0 to 4"):
        choose(Topic("t", 5, 1), views([b"a", b"b"]), explicit)


def test_a_topic_of_one_partition_refuses_too():
    with pytest.raises(RowError, match="partition 1"):
        choose(Topic("t", 1, 1), views([b"a"]), explicit_partitions(pa.array([1])))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([None, -1]), "row 1 is for partition -1"),
        (pa.array(["0"]), "column 'partition' is string"),
    ],
)
def test_what_is_no_partition_is_refused(column, said):
    with pytest.raises(RowError, match=said):
        explicit_partitions(column)


def test_a_column_without_any_partition_says_nothing():
    assert explicit_partitions(pa.nulls(3)) is None


# --- Routed rows to record batches: each row once, none above its topic's limit, in order ---------


class Shelf:
    """Takes batches as a sender does, and keeps them."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, int, bytes, int]] = []

    def sequence(self, topic: str, partition: int) -> int:
        return sum(n for t, p, _, n in self.batches if (t, p) == (topic, partition))

    def add(self, topic: str, partition: int, payload: bytes, count: int) -> None:
        self.batches.append((topic, partition, payload, count))


class Limits:
    """Topics by name; ``invalidate`` is when a limit is read anew."""

    def __init__(self, now: int, then: int, partitions: int = 1) -> None:
        self._limits, self._partitions = [now, then], partitions
        self.invalidations = 0

    def look_up(self, name: str) -> Topic:
        limit = self._limits[min(self.invalidations, 1)]
        return Topic(name, self._partitions, limit)

    def invalidate(self) -> None:
        self.invalidations += 1


def into(topics: Any, compression: str = "none", topic: str | None = "t") -> Destination:
    wire: Any = None
    found = Destination(wire, topic=topic, compression=compression)
    found.topics = topics
    return found


def builder_of(
    rows: pa.RecordBatch, limit: int = 1_048_588, partitions: int = 1, compression: str = "none"
) -> BatchBuilder:
    to = into(Limits(limit, limit, partitions), compression)
    to.require_sendable(rows)
    found = route(rows, columns_of(rows, now_ms=0), "t", to.topics.look_up)
    return BatchBuilder(partial(producer._sorted_runs, found), lambda: found.columns, to.codec)


@pytest.mark.parametrize(
    ("told", "most"),
    [
        ({"max.message.bytes": "9000", "segment.bytes": "5000"}, 5000),
        ({"max.message.bytes": "9000"}, 9000),
        ({"segment.bytes": str(1 << 30)}, destination.DEFAULT_MAX_MESSAGE_BYTES),
        ({}, destination.DEFAULT_MAX_MESSAGE_BYTES),
    ],
)
def test_a_record_batch_is_within_a_segment_of_its_topic_too(told: dict[str, str], most: int):
    """Or each one that is larger is refused, and rows are called too large that are not."""
    cluster = SimpleNamespace(leaders=lambda *_, **__: {0: 1}, topic_config=lambda *_: told)
    wire: Any = SimpleNamespace(cluster=cluster)
    assert Topics(wire).look_up("t").max_batch_bytes == most


@pytest.mark.parametrize(
    ("kind", "stored"),
    [("producer", None), ("uncompressed", "none"), ("gzip", "gzip"), ("one to come", None)],
)
def test_batches_are_sent_as_their_topic_stores_them(kind: str, stored: str | None):
    """Brokers measure what they store: what is sent in another codec may be larger there."""
    cluster = SimpleNamespace(
        leaders=lambda *_, **__: {0: 1}, topic_config=lambda *_: {"compression.type": kind}
    )
    wire: Any = SimpleNamespace(cluster=cluster)
    topics = Topics(wire)
    rows = pa.RecordBatch.from_pydict({"value": ["x" * 1000] * 5_000})
    gathered = [rows, pa.RecordBatch.from_pydict({"key": ["k"] * 3, "value": ["v"] * 3})]
    for each in gathered:
        shelf, _ = shelved(batches_of([each], into(topics, "lz4")))
        codes = {int.from_bytes(payload[21:23], "big") & 7 for _, _, payload, _ in shelf.batches}
        assert codes == {codec(stored or "lz4").code}
        assert max(len(payload) for _, _, payload, _ in shelf.batches) <= 1_048_588
    assert (topics.stored and topics.stored.name) == stored


def shelved(builder: BatchBuilder, ratios: Ratios | None = None) -> tuple[Shelf, int]:
    """The batches, and in how many groups they came."""
    shelf: Any = Shelf()
    with ThreadPoolExecutor(1) as beside:
        groups = sum(1 for _ in builder.batches(shelf, STAMP, ratios or Ratios(), beside))
    return shelf, groups


def rows_in(shelf: Shelf, partition: int = 0) -> list[tuple[Any, ...]]:
    return [row for _, p, payload, _ in shelf.batches if p == partition for row in decoded(payload)]


def noise(count: int, size: int) -> list[bytes]:
    source = random.Random(5)
    return [source.randbytes(size) for _ in range(count)]


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(record_rows(), st.integers(1, 4))
def test_every_row_is_in_one_batch_of_its_partition(rows, partitions):
    shelf, _ = shelved(builder_of(rows, 1 << 28, partitions))
    found = [row for partition in range(partitions) for row in rows_in(shelf, partition)]
    key = repr
    assert sorted(found, key=key) == sorted(expected(rows, now_ms=0), key=key)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_no_batch_exceeds_the_limit_and_sequences_count_rows(compression):
    values = noise(400, 100)
    rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    builder = builder_of(rows, limit=2_000, compression=compression)
    shelf, _ = shelved(builder)

    assert max(len(payload) for _, _, payload, _ in shelf.batches) <= 2_000
    firsts = [int.from_bytes(payload[53:57], "big") for _, _, payload, _ in shelf.batches]
    counts = [count for *_, count in shelf.batches]
    assert firsts == [sum(counts[:i]) for i in range(len(counts))]
    if compression == "none":
        assert [value for _, value, _, _ in rows_in(shelf)] == values


def test_a_run_that_compresses_badly_is_halved_until_it_fits(monkeypatch):
    """The cut goes by size before compression; lz4 lets what cannot be compressed grow."""
    monkeypatch.setattr(producer, "cut", lambda part, *_: [(part.start, part.stop)])
    values = noise(9, 300)
    rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    shelf, _ = shelved(builder_of(rows, limit=800))

    assert [count for *_, count in shelf.batches] == [2, 2, 2, 1, 2]
    assert [value for _, value, _, _ in rows_in(shelf)] == values


def test_rows_are_made_about_three_megabytes_at_a_time():
    rows = pa.RecordBatch.from_pydict({"value": ["x" * 1000] * 15_000})
    shelf, groups = shelved(builder_of(rows))
    assert (groups, len(shelf.batches)) == (5, 15)
    assert sum(count for *_, count in shelf.batches) == 15_000


def test_record_batches_grow_to_what_the_topic_takes_compressed():
    """Each costs a request and a pass through the broker, so few large ones are better."""
    half = [part + b"x" * 500 for part in noise(10_000, 500)]
    rows = pa.RecordBatch.from_pydict({"value": pa.array(half, pa.binary())})
    ratios = Ratios()
    before, after = (
        shelved(builder_of(rows, compression="lz4"), ratios)[0].batches for _ in range(2)
    )
    assert len(before) == 10
    assert len(after) < 7
    assert max(len(payload) for _, _, payload, _ in after) <= 1_048_588


def test_rows_that_compress_worse_than_those_before_are_halved_and_remembered():
    ratios = Ratios()
    even = pa.RecordBatch.from_pydict({"value": ["x" * 1000] * 5_000})
    shelved(builder_of(even, compression="lz4"), ratios)
    rows = pa.RecordBatch.from_pydict({"value": pa.array(noise(5_000, 1_000), pa.binary())})
    for run_bytes in (3 << 20, 1 << 20):
        shelf, _ = shelved(builder_of(rows, compression="lz4"), ratios)
        counts = [count for *_, count in shelf.batches]
        assert sum(counts) == 5_000
        assert max(counts) < run_bytes / 1_000
        assert max(len(payload) for _, _, payload, _ in shelf.batches) <= 1_048_588
    assert ratios.expected("t") == 1.0


def test_small_partitions_are_made_together():
    rows = pa.RecordBatch.from_pydict({"value": ["x"] * 50, "partition": list(range(50))})
    shelf, groups = shelved(builder_of(rows, partitions=50))
    assert (len(shelf.batches), groups) == (50, 1)


@pytest.mark.parametrize(
    ("compression", "key", "message"),
    [
        (
            "none",
            "culprit",
            r"key b'culprit' needs 5\d\d\d bytes .* \(none\); topic 't' takes 2000",
        ),
        ("lz4", None, r"row without a key needs 5\d\d\d bytes .* \(lz4\)"),
    ],
)
def test_a_row_too_large_is_named(compression, key, message):
    values = [b"small", *noise(1, 5_000)]
    rows = pa.RecordBatch.from_pydict({"key": ["fine", key], "value": values})
    with pytest.raises(RowError, match=message):
        builder_of(rows, 2_000, compression=compression)


def test_a_row_that_compresses_to_less_than_the_limit_is_not_refused():
    builder = builder_of(
        pa.RecordBatch.from_pydict({"value": ["x" * 5_000]}), 2_000, compression="lz4"
    )
    shelf, _ = shelved(builder)
    assert len(shelf.batches[0][2]) <= 2_000


def test_a_limit_that_was_raised_is_believed_and_one_that_was_not_is_final():
    rows = pa.RecordBatch.from_pydict({"value": noise(1, 5_000)})
    raised: Any = Limits(2_000, 9_000)
    sorted_batches(rows, into(raised))
    assert raised.invalidations == 1
    kept: Any = Limits(2_000, 2_000)
    with pytest.raises(RowError, match="takes 2000"):
        sorted_batches(rows, into(kept))
    enough: Any = Limits(9_000, 0)
    sorted_batches(rows, into(enough))
    assert enough.invalidations == 0


# --- writer abort ---------------------------------------------------------------------------------
# An abort comes after everything that was sent: what arrives behind it would open the id anew.


IDENTITY = TransactionIdentity("etl-0-0", 7, 1)


@pytest.mark.parametrize("of", [producer, librdkafka], ids=["arrow", "librdkafka"])
def test_what_was_prepared_and_told_to_nobody_is_aborted_by_its_identity(
    monkeypatch: pytest.MonkeyPatch, of: Any
) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(of, "end_transactions", lambda *given, **how: ended.append((given, how)))
    wire: Any = SimpleNamespace()
    kind = producer.TransactionalWriter if of is producer else librdkafka.LibrdkafkaWriter
    writer: Any = kind(wire, topic="out")
    writer.abort()
    assert ended == []
    writer.abort(IDENTITY)
    assert ended == [((wire, [IDENTITY]), {"commit": False})]


def test_an_abort_stops_a_writer_that_is_still_taking_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That can take a minute; after it nothing is sent for a transaction that is given up."""
    sent: list[Any] = []
    ended: list[Any] = []

    def taken(*_given: Any) -> tuple[TransactionIdentity, bool]:
        while writer._handed is None or not writer._handed._waiters:  # until the abort waits for it
            time.sleep(0.005)
        return IDENTITY, False

    def submit(*given: Any, **_how: Any) -> Any:
        sent.append(given)
        raise RuntimeError("sent behind the abort")

    def batches(sender: Sender, *_given: Any) -> Iterator[None]:
        sender.add("out", 0, b"rows", 1)
        yield

    monkeypatch.setattr(producer, "GATHER_BYTES", 1)
    monkeypatch.setattr(producer, "GATHER_BYTES_A_PARTITION", 1)
    monkeypatch.setattr(producer, "end_transactions", lambda _wire, ids, **_how: ended.extend(ids))
    cluster = SimpleNamespace(transaction_version=2, leaders=lambda *_, **_options: {0: 1})
    wire: Any = SimpleNamespace(cluster=cluster, submit=submit)
    writer: Any = producer.TransactionalWriter(wire, topic="out")
    writer.destination = SimpleNamespace(topics=SimpleNamespace(partitions=1))
    monkeypatch.setattr(producer, "batches_of", lambda *_: SimpleNamespace(batches=batches))
    writer._coordinator = SimpleNamespace(take=taken)
    writer.begin("etl-0-0", 60_000)
    writer.write(pa.record_batch({"value": pa.array([b"v"], pa.binary())}))
    writer.abort()
    assert (sent, ended) == ([], [IDENTITY])


# --- an id that is asked for ahead ----------------------------------------------------------------


class Coordinator:
    """Gives an id once ``answers`` is set."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.answers = threading.Event()
        self.error: Exception | None = None

    def take(self, *_given: Any) -> tuple[TransactionIdentity, bool]:
        self.asked.release()
        assert self.answers.wait(60)
        if self.error is not None:
            raise self.error
        return IDENTITY, False


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A writer whose last transaction had rows, and its coordinator, which answers no more."""
    cluster = SimpleNamespace(transaction_version=2, leaders=lambda *_, **_options: {0: 1})
    writer: Any = producer.TransactionalWriter(SimpleNamespace(cluster=cluster), topic="out")  # type: ignore[arg-type]
    writer._coordinator = Coordinator()
    monkeypatch.setattr(producer, "with_ids", lambda _cluster, written: written)
    nothing = SimpleNamespace(batches=lambda *_: iter(()))
    monkeypatch.setattr(producer, "batches_of", lambda *_: nothing)
    writer._coordinator.answers.set()
    writer.begin("etl-0-0", 60_000)
    assert not writer._coordinator.asked.acquire(blocking=False), "no row may come"
    writer.write(pa.record_batch({"value": pa.array([b"v"], pa.binary())}))
    assert writer.prepare() is not None
    assert writer._coordinator.asked.acquire(timeout=60)
    writer._coordinator.answers.clear()
    return writer


def test_rows_that_follow_others_do_not_wait_for_their_transactional_id(ahead):
    ahead.begin("etl-0-0", 60_000)
    assert ahead._coordinator.asked.acquire(timeout=60), "asked before the first row"
    ahead._coordinator.answers.set()
    ahead.write(pa.record_batch({"value": pa.array([b"v"], pa.binary())}))
    assert ahead.prepare().identity == IDENTITY
    assert not ahead._coordinator.asked.acquire(blocking=False), "asked once"


@pytest.mark.parametrize("ends", ["prepare", "abort"])
def test_an_id_asked_for_ahead_has_come_before_another_task_can_have_it(ahead, ends):
    """A request that arrives later would fence whoever has taken the id meanwhile."""
    ahead.begin("etl-0-0", 60_000)
    assert ahead._coordinator.asked.acquire(timeout=60)
    ahead._coordinator.error = TransactionError("not allowed")  # which a task without rows ignores
    taken = ahead._slot.current().taken
    with ThreadPoolExecutor(1) as task:
        ended = task.submit(getattr(ahead, ends))
        while not taken._waiters and not ended.done():
            time.sleep(0.005)
        early = ended.done()
        ahead._coordinator.answers.set()
        assert ended.result(60) is None
    assert not early
    ahead.begin("etl-0-0", 60_000)
    asks_ahead = ahead._slot.current().taken is not None
    assert asks_ahead == (ends == "abort"), "a task without rows asks for nothing ahead of the next"


def test_an_abort_waits_for_the_answers_to_what_is_in_flight() -> None:
    request: Future[Any] = Future()
    wire: Any = SimpleNamespace(
        cluster=SimpleNamespace(leaders=lambda *_, **_options: {0: 1}),
        submit=lambda *_, **_options: request,
    )
    sender = Sender(wire, transactional_id="etl-0-0", add_partitions=None, delivery_timeout_s=60.0)
    sender.add("out", 0, b"rows", 1)
    sender.pump()
    waited = threading.Event()

    def answer_once_awaited() -> None:
        while not request._waiters and not waited.is_set():
            time.sleep(0.005)
        request.set_result(None)

    with ThreadPoolExecutor(1) as broker:
        broker.submit(answer_once_awaited)
        sender.wait_for_in_flight(60)
        in_time = request.done()
        waited.set()
    assert in_time
