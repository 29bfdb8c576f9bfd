"""Routed rows to record batches: each row once, none above its topic's limit, in order."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_eos.errors import RowError
from airflow_eos.kafka.producer import writer as writer_batches
from airflow_eos.kafka.producer.partitioner import Partitioner, Topic, route
from airflow_eos.kafka.producer.writer import BatchBuilder, Ratios, batch_builder
from airflow_eos.kafka.records.columns import columns_of
from airflow_eos.kafka.records.encode import codec
from tests.unit.kafka.record_rows import STAMP, decoded, expected, record_rows


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
        return Topic(name, Partitioner(name, self._partitions), limit)

    def invalidate(self) -> None:
        self.invalidations += 1


def builder_of(
    rows: pa.RecordBatch, limit: int = 1_048_588, partitions: int = 1, compression: str = "none"
) -> BatchBuilder:
    topic = Topic("t", Partitioner("t", partitions), limit)
    found = route(rows, columns_of(rows, now_ms=0), "t", lambda _: topic)
    return BatchBuilder(found, codec(compression))


@pytest.mark.parametrize(
    ("told", "most"),
    [
        ({"max.message.bytes": "9000", "segment.bytes": "5000"}, 5000),
        ({"max.message.bytes": "9000"}, 9000),
        ({}, writer_batches.DEFAULT_MAX_MESSAGE_BYTES),
    ],
)
def test_a_record_batch_is_within_a_segment_of_its_topic_too(told: dict[str, str], most: int):
    """Or each one that is larger is refused, and rows are called too large that are not."""
    cluster = SimpleNamespace(leaders=lambda *_, **__: {0: 1}, topic_config=lambda *_: told)
    wire: Any = SimpleNamespace(cluster=cluster)
    assert writer_batches.Topics(wire).look_up("t").max_batch_bytes == most


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
    builder.refuse_too_large()
    shelf, _ = shelved(builder)

    assert max(len(payload) for _, _, payload, _ in shelf.batches) <= 2_000
    firsts = [int.from_bytes(payload[53:57], "big") for _, _, payload, _ in shelf.batches]
    counts = [count for *_, count in shelf.batches]
    assert firsts == [sum(counts[:i]) for i in range(len(counts))]
    if compression == "none":
        assert [value for _, value, _, _ in rows_in(shelf)] == values


def test_a_run_that_compresses_badly_is_halved_until_it_fits(monkeypatch):
    """The cut goes by size before compression; lz4 lets what cannot be compressed grow."""
    monkeypatch.setattr(writer_batches, "cut", lambda part, *_: [(part.start, part.stop)])
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
        builder_of(rows, 2_000, compression=compression).refuse_too_large()


def test_a_row_that_compresses_to_less_than_the_limit_is_not_refused():
    builder = builder_of(
        pa.RecordBatch.from_pydict({"value": ["x" * 5_000]}), 2_000, compression="lz4"
    )
    builder.refuse_too_large()
    shelf, _ = shelved(builder)
    assert len(shelf.batches[0][2]) <= 2_000


def test_a_limit_that_was_raised_is_believed_and_one_that_was_not_is_final():
    rows = pa.RecordBatch.from_pydict({"value": noise(1, 5_000)})
    raised: Any = Limits(2_000, 9_000)
    batch_builder(rows, "t", raised, codec("none"))
    assert raised.invalidations == 1
    kept: Any = Limits(2_000, 2_000)
    with pytest.raises(RowError, match="takes 2000"):
        batch_builder(rows, "t", kept, codec("none"))
    enough: Any = Limits(9_000, 0)
    batch_builder(rows, "t", enough, codec("none"))
    assert enough.invalidations == 0
