"""Rows written in the order in which they come are the bytes that sorting them first gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_eos.arrow.producer import writer as batches
from airflow_eos.arrow.producer.writer import (
    BatchBuilder,
    Ratios,
    scattered_batches,
    sorted_batches,
)
from airflow_eos.arrow.records import kernels as loops
from airflow_eos.errors import RowError
from airflow_eos.kafka.destination import Topic
from tests.unit.kafka.record_rows import NOW_MS, STAMP, timestamp_columns
from tests.unit.kafka.test_writer import Limits, Shelf, into

pytest.importorskip("numba")

_BYTES = st.one_of(
    st.binary(max_size=40), st.sampled_from([0, 63, 64, 8191, 8192]).map(lambda n: b"v" * n)
)


class Turns(Limits):
    """Rows without a key go to the same partition, whoever asks."""

    def look_up(self, name: str) -> Topic:
        return replace(super().look_up(name), turns=itertools.repeat(7))


@st.composite
def plain_rows(draw: Any) -> list[pa.RecordBatch]:
    """Arrow batches of one schema, as slices: their offsets do not start at 0."""
    count, columns = draw(st.integers(2, 100)), {}
    for name in {"value", *draw(st.sets(st.sampled_from(["key", "value"])))}:
        kind, content = draw(
            st.sampled_from([(pa.binary(), _BYTES), (pa.string(), st.text(max_size=20))])
        )
        item = st.none() | content if draw(st.booleans()) else content
        columns[name] = pa.array(draw(st.lists(item, min_size=count, max_size=count)), kind)
    if draw(st.booleans()):
        columns["timestamp"] = draw(timestamp_columns(count))
    edges = sorted({1, count, *draw(st.sets(st.integers(1, count), max_size=3))})
    rows = pa.RecordBatch.from_pydict(columns)
    return [rows.slice(first, last - first) for first, last in itertools.pairwise(edges)]


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    loops.warm(wait=True)
    assert loops.are_loaded()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: NOW_MS * 1_000_000)


def table(rows: Sequence[tuple[bytes | None, bytes]], kind: Any = None) -> pa.RecordBatch:
    keys, values = ([row[n] for row in rows] for n in (0, 1))
    columns = [pa.array(keys, pa.binary()), pa.array(values, kind or pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["key", "value"])


def written(builder: BatchBuilder | None) -> list[tuple[str, int, bytes, int]]:
    assert builder is not None
    shelf: Any = Shelf()
    with ThreadPoolExecutor(1) as beside:
        for _ in builder.batches(shelf, STAMP, Ratios(), beside):
            pass
    return list(shelf.batches)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(
    plain_rows(),
    st.integers(1, 5),
    st.sampled_from([20, 200, 1_000, 1 << 20]),
    st.sampled_from(["none", "lz4"]),
)
def test_both_ways_write_the_same_bytes(
    gathered: Any, partitions: int, run_bytes: int, compression: str
) -> None:
    to = into(Turns(1 << 20, 1 << 20, partitions), compression)
    with patch.object(batches, "RUN_BYTES", run_bytes):
        sorted_first = sorted_batches(pa.concat_batches(gathered), to)
        assert written(scattered_batches(gathered, to)) == written(sorted_first)


@pytest.mark.parametrize("key", [b"k", None], ids=["keys", "a row without a key"])
def test_what_does_not_compress_as_expected_is_halved_as_it_is_the_other_way(key: Any) -> None:
    """The cut goes by size before compression, and the limit by size after it."""
    rows = [(b"k%d" % n, b"v" * 300) for n in range(40)]
    gathered = [table([(key, b"w"), *rows])] * 2
    found = []
    to = into(Turns(2_000, 2_000, 2))
    for builder in (
        scattered_batches(gathered, to),
        sorted_batches(pa.concat_batches(gathered), to),
    ):
        assert builder is not None
        ratios = Ratios()
        ratios.learn({"t": 0.1})
        shelf: Any = Shelf()
        with ThreadPoolExecutor(1) as beside:
            list(builder.batches(shelf, STAMP, ratios, beside))
        found.append(shelf.batches)
    assert found[0] == found[1]
    assert max(len(payload) for _, _, payload, _ in found[0]) <= 2_000


def test_rows_without_a_key_take_turns_in_this_way_too() -> None:
    topic = Topic("t", 3, 1 << 20)
    topics: Any = SimpleNamespace(look_up=lambda _: topic)
    rows = [table([(None, b"v")]), table([(None, b"w")])]
    found = [{p for _, p, _, _ in written(scattered_batches(rows, into(topics)))} for _ in range(3)]
    assert sorted(found, key=min) == [{0}, {1}, {2}]


def test_a_time_that_kafka_does_not_take_is_refused_in_this_way_too() -> None:
    topics: Any = Limits(50_000, 50_000)
    rows = table([(b"k", b"v")] * 2).append_column("timestamp", pa.array([1, -1]))
    with pytest.raises(RowError, match="row 1 has the timestamp -1 ms"):
        scattered_batches([rows], into(topics))


def other_rows() -> Iterator[tuple[str, pa.RecordBatch]]:
    plain = table([(b"k", b"v")] * 3)
    yield "a topic", plain.append_column("topic", pa.array(["t"] * 3))
    yield "a partition", plain.append_column("partition", pa.array([1] * 3))
    yield "nulls alone", pa.RecordBatch.from_pydict({"key": pa.nulls(2), "value": [b"v", b"w"]})
    yield "views", table([(b"k", b"v")], pa.binary_view())
    yield "a large row", table([(b"k", b"v" * 100_000)])


@pytest.mark.parametrize(("what", "rows"), other_rows(), ids=lambda each: str(each)[:12])
def test_other_rows_go_the_other_way(what: str, rows: pa.RecordBatch) -> None:
    topics: Any = Limits(50_000, 50_000, 2)
    assert scattered_batches([table([(b"k", b"v")]), rows], into(topics)) is None, what


def test_without_the_loops_or_a_topic_of_the_sink_all_rows_go_the_other_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics: Any = Limits(50_000, 50_000)
    rows = [table([(b"k", b"v")])]
    assert scattered_batches(rows, into(topics)) is not None
    assert scattered_batches(rows, into(topics, topic=None)) is None
    monkeypatch.setattr(loops, "_loaded", [])
    assert scattered_batches(rows, into(topics)) is None
