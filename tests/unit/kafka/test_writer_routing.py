"""Rows to partitions: each row once, in its place, in its order; what cannot be routed is named."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_eos.errors import RowError, TopicError
from airflow_eos.kafka.producer.partitioner import (
    Partitioner,
    PartitionSlice,
    Routed,
    Topic,
    cut,
    describe_row,
    murmur2_of,
    route,
)
from airflow_eos.kafka.records.columns import Views, columns_of

PARTITIONS = {"a": 3, "b": 1, "c": 300}
"""Together more than the 256 that fit the narrowest sort."""


def topic_of(name: str) -> Topic:
    if name not in PARTITIONS:
        raise TopicError(f"topic {name!r} does not exist")
    return Topic(name, Partitioner(name, PARTITIONS[name]), 1_000_000)


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
    topic = Topic("a", Partitioner("a", 1), 64 + limit)
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
    topic = Topic("a", Partitioner("a", 1), 1_000)
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
