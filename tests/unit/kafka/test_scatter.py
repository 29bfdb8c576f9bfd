"""Rows written in the order in which they come are the bytes that sorting them first gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_eos.arrow.producer import writer as batches
from airflow_eos.arrow.producer import writer as scatter
from airflow_eos.arrow.producer.writer import (
    BatchBuilder,
    Ratios,
    ScatterBuilder,
    batch_builder,
    scatter_builder,
)
from airflow_eos.arrow.records import kernels as loops
from airflow_eos.arrow.records.encode import codec
from tests.unit.kafka.record_rows import NOW_MS, STAMP
from tests.unit.kafka.test_writer import Limits, Shelf

pytest.importorskip("numba")

_BYTES = st.one_of(
    st.binary(max_size=40), st.sampled_from([0, 63, 64, 8191, 8192]).map(lambda n: b"v" * n)
)
_ROWS = st.lists(st.tuples(_BYTES, _BYTES), min_size=1, max_size=30)


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    loops.warm(wait=True)
    assert loops.are_loaded()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (batches, scatter):
        monkeypatch.setattr(module.time, "time_ns", lambda: NOW_MS * 1_000_000)


def table(rows: Sequence[tuple[bytes, bytes]], kind: Any = None, spare: int = 0) -> pa.RecordBatch:
    """As Arrow hands out a slice: offsets do not start at 0."""
    more = [(b"before", b"it")] * spare + list(rows)
    keys, values = ([row[n] for row in more] for n in (0, 1))
    columns = [pa.array(keys, pa.binary()), pa.array(values, kind or pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["key", "value"]).slice(spare)


def written(builder: BatchBuilder | None) -> list[tuple[str, int, bytes, int]]:
    assert builder is not None
    shelf: Any = Shelf()
    with ThreadPoolExecutor(1) as beside:
        for _ in builder.batches(shelf, STAMP, Ratios(), beside):
            pass
    return list(shelf.batches)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(_ROWS, min_size=1, max_size=4),
    st.integers(1, 5),
    st.sampled_from([20, 200, 1_000, 1 << 20]),
    st.integers(0, 2),
    st.sampled_from(["none", "lz4"]),
)
def test_both_ways_write_the_same_bytes(
    parts: Any, partitions: int, run_bytes: int, spare: int, compression: str
) -> None:
    gathered = [table(rows, spare=spare) for rows in parts]
    topics: Any = Limits(1 << 20, 1 << 20, partitions)
    with (
        patch.object(batches, "RUN_BYTES", run_bytes),
        patch.object(scatter, "RUN_BYTES", run_bytes),
    ):
        sorted_first = batch_builder(pa.concat_batches(gathered), "t", topics, codec(compression))
        scattered = scatter_builder(gathered, "t", topics, codec(compression))
        assert written(scattered) == written(sorted_first)


def test_what_does_not_compress_as_expected_is_halved_as_it_is_the_other_way() -> None:
    """The cut goes by size before compression, and the limit by size after it."""
    gathered = [table([(b"k%d" % n, b"v" * 300) for n in range(40)])] * 2
    found = []
    for build in (scatter_builder, lambda rows, *how: batch_builder(pa.concat_batches(rows), *how)):
        topics: Any = Limits(2_000, 2_000, 2)
        builder: Any = build(gathered, "t", topics, codec("none"))
        ratios = Ratios()
        ratios.learn({"t": 0.1})
        shelf: Any = Shelf()
        with ThreadPoolExecutor(1) as beside:
            list(builder.batches(shelf, STAMP, ratios, beside))
        found.append(shelf.batches)
    assert found[0] == found[1]
    assert max(len(payload) for _, _, payload, _ in found[0]) <= 2_000


def other_rows() -> Iterator[tuple[str, pa.RecordBatch]]:
    plain = table([(b"k", b"v")] * 3)
    yield "a null", pa.RecordBatch.from_pydict({"key": [b"k", None], "value": [b"v", b"w"]})
    yield "no key", plain.select(["value"])
    yield "a time", plain.append_column("timestamp", pa.array([1, 2, 3]))
    yield "a topic", plain.append_column("topic", pa.array(["t"] * 3))
    yield "views", table([(b"k", b"v")], pa.binary_view())
    yield "a large row", table([(b"k", b"v" * 100_000)])


@pytest.mark.parametrize(("what", "rows"), other_rows(), ids=lambda each: str(each)[:12])
def test_other_rows_go_the_other_way(what: str, rows: pa.RecordBatch) -> None:
    topics: Any = Limits(50_000, 50_000, 2)
    assert scatter_builder([table([(b"k", b"v")]), rows], "t", topics, codec("none")) is None, what


def test_without_the_loops_or_a_topic_of_the_sink_all_rows_go_the_other_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics: Any = Limits(50_000, 50_000)
    rows = [table([(b"k", b"v")])]
    assert isinstance(scatter_builder(rows, "t", topics, codec("none")), ScatterBuilder)
    assert scatter_builder(rows, None, topics, codec("none")) is None
    monkeypatch.setattr(loops, "_loaded", [])
    assert scatter_builder(rows, "t", topics, codec("none")) is None
