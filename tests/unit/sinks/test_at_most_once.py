"""At most once: a batch, and a task, is begun once; what is begun and not ended is missing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import obstore.store
import pyarrow as pa
import pytest

from airflow_eos.checkpoint import CheckpointStore, take_term
from airflow_eos.checkpoint.paths import SPENT
from airflow_eos.errors import OwnershipError, SupersededError
from airflow_eos.sinks.at_most_once import (
    AtMostOnceBatch,
    is_spent,
    require_never_exact,
    require_not_spent,
)
from airflow_eos.sinks.fingerprint import HASH_COLUMN
from airflow_eos.sinks.task import Outlet, SinkTask
from tests.support.planned import OneParticipant


class Visible(OneParticipant):
    """What is written is seen at once."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.evaluated = 0
        self.dies_after: int | None = None

    def prepare(self, rows: Any, *, only: Collection[int] | None = None) -> list[Any]:
        self.evaluated += 1
        if only is None:
            self.seen += rows[: self.dies_after]
            if self.dies_after is not None:
                raise RuntimeError("killed in the middle")
        return []


@pytest.fixture
def store() -> CheckpointStore:
    return CheckpointStore(obstore.store.MemoryStore(), "memory")


def driver(store: CheckpointStore, sink: Any, *, retained: int = 2) -> AtMostOnceBatch:
    return AtMostOnceBatch(
        sink,
        store,
        take_term(store, taken_by="a driver"),
        retained=retained,
        on_phase=lambda _batch, _phase: None,
    )


def run(batch: AtMostOnceBatch, number: int, *rows: str) -> None:
    """As Spark does: plan the batch, then call for it."""
    batch._store.put(f"offsets/{number}", b"v1")
    batch(list(rows), number)  # type: ignore[arg-type]


def test_a_batch_that_was_begun_is_never_written_again_and_its_state_is_kept(store):
    sink = Visible()
    sink.dies_after = 1
    with pytest.raises(RuntimeError):
        run(driver(store, sink), 0, "a", "b")
    sink.dies_after = None
    run(driver(store, sink), 0, "a", "b")
    assert sink.seen == ["a"], "b is missing, a did not come twice"
    assert sink.evaluated == 2, "Spark's state of the batch must exist"


def test_a_driver_that_slept_longer_than_marks_are_kept_writes_nothing(store):
    """Its batch was written by another one and the mark of it is pruned: the place is empty."""
    slept, sink = driver(store, Visible()), Visible()
    later = driver(store, sink, retained=1)
    for batch in range(3):
        run(later, batch, f"row {batch}")
    assert not list(store.list(f"{SPENT}/0"))
    with pytest.raises(SupersededError):
        slept(["row 0"], 0)  # type: ignore[arg-type]
    assert slept._sink.seen == []  # type: ignore[attr-defined]


def test_marks_are_kept_as_long_as_spark_may_run_a_batch_again(store):
    running = driver(store, Visible(), retained=2)
    for batch in range(5):
        run(running, batch, "row")
    assert sorted(store.folders(SPENT)) == ["3", "4"]


class Writer:
    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def write(self, rows: pa.RecordBatch) -> None:
        self.seen.append(rows.num_rows)

    def prepare(self, _fingerprint: str) -> None: ...

    def abort(self) -> None: ...


def test_a_task_that_runs_again_writes_nothing(monkeypatch, store):
    """Its first run may have written; in a repeated stage Spark counts attempts from 0 again."""

    class Context:
        partitionId = staticmethod(lambda: 3)  # noqa: N815 - Spark's names
        attemptNumber = staticmethod(lambda: 0)  # noqa: N815
        getLocalProperty = staticmethod({"streaming.sql.batchId": "7"}.get)  # noqa: N815

    monkeypatch.setattr("pyspark.TaskContext.get", staticmethod(Context))
    seen: list[int] = []
    task = SinkTask((Outlet("sink", lambda _task, _attempt: Writer(seen)),), marks=store)
    rows = pa.record_batch({"value": ["a"], HASH_COLUMN: pa.array([1], pa.int64())})
    for _ in range(2):
        [reported] = list(task(iter([rows])))
        assert reported.num_rows == 1
    assert seen == [1]
    assert [entry.name for entry in store.list(f"{SPENT}/7")] == ["3"]


def test_a_checkpoint_does_not_change_its_guarantee_in_the_middle_of_a_batch(store, monkeypatch):
    """What was promised would be written at once; what was written would be written again."""
    monkeypatch.setattr("airflow_eos.sinks.at_most_once.read_pipeline", lambda _: object())
    with pytest.raises(OwnershipError, match="delivers exactly once"):
        require_never_exact(store)
    monkeypatch.setattr("airflow_eos.sinks.at_most_once.is_spent", lambda _: True)
    with pytest.raises(OwnershipError, match="begun with at_most_once"):
        require_not_spent(store)


def test_nothing_is_spent_where_no_batch_is_in_flight(store):
    assert is_spent(store) is False
    require_not_spent(store)
    require_never_exact(store)
