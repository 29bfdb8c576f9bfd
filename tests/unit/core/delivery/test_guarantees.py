"""The guarantees without decisions: at most once, and what at least once rests on."""

from __future__ import annotations

import threading
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import obstore.store
import pyarrow as pa
import pytest
from obstore.store import MemoryStore
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from structlog.testing import capture_logs

from airflow_eos.core.checkpoint import CheckpointStore, PipelineIdentity, claim, take_term
from airflow_eos.core.checkpoint.backend import SPENT
from airflow_eos.core.checkpoint.snapshot import start_facts
from airflow_eos.core.delivery import spark_session as spark_logs
from airflow_eos.core.delivery.committed_offsets import CommittedOffsets
from airflow_eos.core.delivery.exactly_once import ExactlyOnce
from airflow_eos.core.delivery.spark_session import race_sparks_logs, warn_where_two_can_plan
from airflow_eos.core.delivery.task import HASH_COLUMN, SinkTask, TaskOutput
from airflow_eos.core.delivery.visibility_markers import VisibilityMarkers
from airflow_eos.core.delivery.weaker_guarantees import (
    AtMostOnce,
    AtMostOnceBatch,
    may_be_visible,
)
from airflow_eos.errors import OwnershipError, StoreError, SupersededError
from tests.support.authority import OneParticipant
from tests.support.starts import Unchanged

EXACTLY_ONCE = ExactlyOnce(Unchanged(), CommittedOffsets(None))


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
        VisibilityMarkers(store),
        take_term(store, taken_by="a driver"),
        retained=retained,
        on_phase=lambda _batch, _phase: None,
    )


def run(batch: AtMostOnceBatch, number: int, *rows: str) -> None:
    """As Spark does: plan the batch, then call for it."""
    batch._visibility_markers.store.put(f"offsets/{number}", b"v1")
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


class Context:
    """Task 31415 of batch 7, whose mark has a longer name than its driver's.

    In a repeated stage Spark counts attempts from 0 again.
    """

    partitionId = staticmethod(lambda: 31415)  # noqa: N815 - Spark's names
    attemptNumber = staticmethod(lambda: 0)  # noqa: N815
    getLocalProperty = staticmethod({"streaming.sql.batchId": "7"}.get)  # noqa: N815


@pytest.fixture
def seen(monkeypatch) -> list[int]:
    """The rows that tasks have written."""
    monkeypatch.setattr("pyspark.TaskContext.get", staticmethod(Context))
    return []


def let_task_run(marks: VisibilityMarkers, seen: list[int]) -> None:
    """And report, whether or not it writes."""
    task = SinkTask(
        (TaskOutput("sink", lambda _task, _attempt: Writer(seen)),), visibility_markers=marks
    )
    rows = pa.record_batch({"value": ["a"], HASH_COLUMN: pa.array([1], pa.int64())})
    [reported] = list(task(iter([rows])))
    assert reported.num_rows == 1


def test_a_task_that_runs_again_writes_nothing(store, seen):
    """Its first run may have written."""
    marks = VisibilityMarkers(store)
    marks.begin(7)
    for _ in range(2):
        let_task_run(marks, seen)
    assert seen == [1]
    assert sorted(entry.name for entry in store.list(f"{SPENT}/7")) == ["31415", "mark"]


@pytest.mark.parametrize("woken", ["it alone", "and a driver", "and its batch is begun by another"])
def test_a_task_that_slept_longer_than_marks_are_kept_writes_nothing(store, seen, woken):
    """Its other attempt has written; the place of its own mark is empty again."""
    marks = VisibilityMarkers(store)
    marks.begin(7)
    let_task_run(marks, seen)
    marks.prune(7)
    if woken == "and a driver":
        VisibilityMarkers(store).begin(
            7
        )  # one that slept before it did this, and is going to be superseded
    elif woken != "it alone":
        VisibilityMarkers(store).begin_again(7)
    let_task_run(marks, seen)
    assert seen == [1]


def test_no_task_can_write_while_its_batch_is_pruned(store, seen):
    """The driver's mark goes first: between two deletions a task finds its own place empty."""
    marks, real = VisibilityMarkers(store), store.delete

    def delete(paths: Any) -> None:
        for path in paths:
            real([path])
            let_task_run(marks, seen)

    marks.begin(7)
    let_task_run(marks, seen)
    store.delete = delete
    marks.prune(7)
    assert seen == [1]


def in_flight(store: CheckpointStore, batch: int) -> None:
    """Planned by Spark, and not committed."""
    store.put(f"offsets/{batch}", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7}\n{}')


def test_a_checkpoint_does_not_change_its_guarantee_in_the_middle_of_a_batch(store):
    """What was promised would be written at once; what was written would be written again."""
    claim(store, PipelineIdentity(id="a", participants=(), created_at_ms=1, created_by="a driver"))
    with pytest.raises(OwnershipError, match="delivers exactly once"):
        AtMostOnce().refuse(store)
    VisibilityMarkers(store).begin(0)
    EXACTLY_ONCE.refuse(store)  # no batch is in flight
    in_flight(store, 0)
    with pytest.raises(OwnershipError, match="begun with at_most_once"):
        EXACTLY_ONCE.refuse(store)
    store.put("commits/0", b"v1\n{}")
    EXACTLY_ONCE.refuse(store)


@pytest.mark.parametrize("refused", [EXACTLY_ONCE, AtMostOnce()], ids=lambda it: type(it).__name__)
def test_a_batch_that_nobody_of_ours_has_begun_is_not_known_to_be_invisible(store, refused):
    """A query that wrote by Spark's own sink was killed: its batch came twice, by exactly once."""
    in_flight(store, 0)
    with pytest.raises(OwnershipError, match="another sink began it") as told:
        refused.refuse(store)
    assert "offsets/0" in told.value.remedies[1].change
    nobody: Any = SimpleNamespace(ownership=lambda _: ())
    assert start_facts(store, nobody).refused is not None, "plan, doctor and the page say it, too"
    store.put("commits/0", b"v1\n{}")  # whoever began it has ended it
    refused.refuse(store)
    in_flight(store, 1)
    take_term(store, taken_by="a driver of ours, which has died since")
    EXACTLY_ONCE.refuse(store)


def test_nothing_is_spent_where_no_batch_is_in_flight(store):
    assert may_be_visible(store) is False
    EXACTLY_ONCE.refuse(store)
    AtMostOnce().refuse(store)


# --- Spark's own file manager is raced before a guarantee that has no decisions relies on it ------


SPARK: Any = None  # the manager stands in for all that is asked of it


class JvmError(Py4JJavaError):  # type: ignore[misc]
    """As the JVM says it; without a JVM."""

    def __init__(self, name: str) -> None:
        kind = SimpleNamespace(getSimpleName=lambda: name)
        self.java_exception = SimpleNamespace(getClass=lambda: kind)

    def __str__(self) -> str:
        return "from the JVM"


class Manager:
    """Spark's file manager over our store; ``looks_first`` lets all who come at once win."""

    def __init__(
        self, store: CheckpointStore, *, looks_first: bool = False, error: str | None = None
    ) -> None:
        self.store, self.looks_first, self.error = store, looks_first, error
        self.looked = threading.Barrier(spark_logs.RACERS)
        self.torn = False
        self.left: list[Any] = []

    def mkdirs(self, _path: str) -> None:
        """There are no folders."""

    def createAtomic(self, path: str, overwrite: bool) -> Stream:  # noqa: N802
        assert not overwrite
        return Stream(self, path)

    def list(self, _path: str) -> list[Any]:
        return [SimpleNamespace(getPath=lambda name=name: Name(name)) for name in left(self.store)]

    def delete(self, path: Name) -> None:
        self.store.delete([f"eos/{path.getName()}"])


class Name(str):
    __slots__ = ()

    def getName(self) -> str:  # noqa: N802 - Hadoop's
        return str(self)


class Stream:
    def __init__(self, manager: Manager, path: str) -> None:
        self.manager, self.path, self.data = manager, path, b""

    def write(self, data: bytes) -> None:
        self.data = data

    def close(self) -> None:
        manager = self.manager
        if manager.error:
            raise JvmError(manager.error)
        if manager.looks_first:
            assert manager.store.get(self.path) is None
            manager.looked.wait(300)
            manager.store.put(self.path, self.data)
        elif not manager.store.create(self.path, self.data):
            if manager.torn:
                manager.store.put(self.path, self.data)
            raise JvmError("FileAlreadyExistsException")


@pytest.fixture
def raced_store() -> CheckpointStore:
    return CheckpointStore(MemoryStore(), "s3a://bucket/q")


@pytest.fixture
def managed(monkeypatch, raced_store):
    def use(**how: Any) -> Manager:
        manager = Manager(raced_store, **how)
        monkeypatch.setattr(spark_logs, "_manager", lambda *_: (manager, lambda path: path))
        return manager

    return use


def left(store: CheckpointStore) -> list[str]:
    listed = store._backend.list_with_delimiter("eos")["objects"]
    return [str(each["path"]).rpartition("/")[2] for each in listed]


def test_a_manager_that_refuses_the_second_is_exclusive_and_nothing_is_left(managed, raced_store):
    managed()
    found = race_sparks_logs(SPARK, raced_store, rounds=5)
    assert found.is_exclusive, found
    assert (found.rounds, found.racers) == (5, 2)
    assert left(raced_store) == []


def test_a_manager_that_looks_and_then_renames_lets_both_win(managed, raced_store):
    managed(looks_first=True)
    assert race_sparks_logs(SPARK, raced_store, rounds=3).several == 3


def test_the_loser_whose_content_stands_is_seen(managed, raced_store):
    """Local disks, now and then: who is told that the file exists has replaced it."""
    managed().torn = True
    assert race_sparks_logs(SPARK, raced_store, rounds=3).torn == 3


def test_another_failure_is_no_lost_race(managed, raced_store):
    managed(error="AccessDeniedException")
    with pytest.raises(StoreError, match=r"s3a://bucket/q: Spark's .* could not be tried"):
        race_sparks_logs(SPARK, raced_store)


def test_a_guarantee_without_decisions_is_told_where_two_drivers_can_plan_a_batch(
    managed, raced_store
):
    managed(looks_first=True)
    with capture_logs() as logs:
        warn_where_two_can_plan(SPARK, raced_store, "at_least_once")
    [said] = logs
    assert said["event"] == "sparks_own_logs_not_exclusive"
    assert said["found"] == "several won in 6 of 6 rounds"
    assert "'at_least_once'" in said["hint"]


def test_what_is_exclusive_is_not_warned_of(managed, raced_store):
    managed()
    with capture_logs() as logs:
        warn_where_two_can_plan(SPARK, raced_store, "at_most_once")
    assert logs == []


def test_a_local_disk_is_warned_of_without_a_race_which_it_would_mostly_pass(tmp_path):
    with capture_logs() as logs:
        warn_where_two_can_plan(SPARK, CheckpointStore.open(tmp_path), "at_least_once")
    assert [each["event"] for each in logs] == ["sparks_own_logs_not_exclusive"]


def test_hdfs_is_known_to_be_exclusive(raced_store):
    raced_store.location = "hdfs://name:8020/q"
    with capture_logs() as logs:
        warn_where_two_can_plan(SPARK, raced_store, "at_least_once")
    assert logs == []


def test_a_manager_that_cannot_be_tried_is_said_and_stops_no_start(monkeypatch, raced_store):
    def gone(*_: object) -> None:
        raise Py4JError("it is elsewhere in this Spark")

    monkeypatch.setattr(spark_logs, "_manager", gone)
    with capture_logs() as logs:
        warn_where_two_can_plan(SPARK, raced_store, "at_least_once")
    assert [each["event"] for each in logs] == ["sparks_own_logs_not_raced"]
    assert "it is elsewhere" in logs[0]["why"]
