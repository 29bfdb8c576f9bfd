"""The compiled encoder writes the bytes of Arrow, and how its loops come into a process at work."""

from __future__ import annotations

import subprocess
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_eos.arrow.records import kernels as loops
from airflow_eos.arrow.records.columns import columns_of
from airflow_eos.arrow.records.encode import encode_runs
from tests.unit.kafka.record_rows import NOW_MS, record_rows

pytest.importorskip("numba")


def both_ways(columns, cuts):
    """The runs by Arrow and by the compiled loop, and whether the loop has made the latter."""
    loops.warm(wait=True)
    loaded = list(loops._loaded)
    assert loaded
    try:
        loops._loaded[:] = []
        by_arrow = list(encode_runs(columns, cuts))
    finally:
        loops._loaded[:] = loaded
    return by_arrow, list(encode_runs(columns, cuts)), loops.encoded(columns, cuts) is not None


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(record_rows(), st.data())
def test_both_ways_write_the_same_bytes(rows, data):
    inner = data.draw(st.sets(st.integers(1, rows.num_rows)), label="cuts")
    columns = columns_of(rows, now_ms=NOW_MS)
    by_arrow, by_loop, _ = both_ways(columns, sorted({0, *inner, rows.num_rows}))
    assert [(bytes(r.body), r.count, r.base_timestamp, r.max_timestamp) for r in by_arrow] == [
        (bytes(r.body), r.count, r.base_timestamp, r.max_timestamp) for r in by_loop
    ]


def test_rows_in_another_order_and_with_nulls_are_what_the_loop_is_for():
    rows = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k" * (n % 30) if n % 3 else None for n in range(500)]),
            "value": pa.array([b"v" * (n * 7 % 300) if n % 5 else None for n in range(500)]),
            "timestamp": pa.array([NOW_MS - n * 977 for n in range(500)], pa.int64()),
        }
    )
    columns = columns_of(rows, now_ms=NOW_MS).take(np.arange(500)[::-1].copy())
    by_arrow, by_loop, was_loop = both_ways(columns, [0, 1, 250, 500])
    assert was_loop
    assert [bytes(run.body) for run in by_arrow] == [bytes(run.body) for run in by_loop]


# --- How the compiled loops come into a process that is at work -----------------------------------


@pytest.fixture
def not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_loaded", [])


@pytest.mark.usefixtures("not_loaded")
def test_what_is_not_cached_is_compiled_in_a_process_beside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr(loops, "is_cached", lambda _loop: False)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: asked.append(command[1:]))
    loops._load()
    assert asked == [["-m", "airflow_eos.arrow.records.compiling"]]
    assert loops._loaded


@pytest.mark.usefixtures("not_loaded")
def test_where_that_fails_numpy_goes_on_and_nothing_is_compiled_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(command: Any, **_: Any) -> None:
        raise subprocess.CalledProcessError(1, command)

    compiled_here: list[Any] = []
    monkeypatch.setattr(loops, "is_cached", lambda _loop: False)
    monkeypatch.setattr(subprocess, "run", fails)
    monkeypatch.setattr(loops, "try_each", compiled_here.append)
    loops._load()
    assert (loops._loaded, compiled_here) == ([], [])


@pytest.mark.usefixtures("not_loaded")
def test_without_the_extra_numpy_does_it_and_nobody_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent() -> None:
        raise ImportError("numba")

    monkeypatch.setattr(loops, "compiled_loops", absent)
    monkeypatch.setattr("structlog.get_logger", lambda *_: pytest.fail("told"))
    loops._load()
    assert loops._loaded == []
