"""Spark's own file manager is raced before a guarantee that has no decisions relies on it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from obstore.store import MemoryStore
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from structlog.testing import capture_logs

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.delivery import spark_session as spark_logs
from airflow_eos.delivery.spark_session import race_sparks_logs, warn_where_two_can_plan
from airflow_eos.errors import StoreError

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
def store() -> CheckpointStore:
    return CheckpointStore(MemoryStore(), "s3a://bucket/q")


@pytest.fixture
def managed(monkeypatch, store):
    def use(**how: Any) -> Manager:
        manager = Manager(store, **how)
        monkeypatch.setattr(spark_logs, "_manager", lambda *_: (manager, lambda path: path))
        return manager

    return use


def left(store: CheckpointStore) -> list[str]:
    listed = store._backend.list_with_delimiter("eos")["objects"]
    return [str(each["path"]).rpartition("/")[2] for each in listed]


def test_a_manager_that_refuses_the_second_is_exclusive_and_nothing_is_left(managed, store):
    managed()
    found = race_sparks_logs(SPARK, store, rounds=5)
    assert found.is_exclusive, found
    assert (found.rounds, found.racers) == (5, 2)
    assert left(store) == []


def test_a_manager_that_looks_and_then_renames_lets_both_win(managed, store):
    managed(looks_first=True)
    assert race_sparks_logs(SPARK, store, rounds=3).several == 3


def test_the_loser_whose_content_stands_is_seen(managed, store):
    """Local disks, now and then: who is told that the file exists has replaced it."""
    managed().torn = True
    assert race_sparks_logs(SPARK, store, rounds=3).torn == 3


def test_another_failure_is_no_lost_race(managed, store):
    managed(error="AccessDeniedException")
    with pytest.raises(StoreError, match=r"s3a://bucket/q: Spark's .* could not be tried"):
        race_sparks_logs(SPARK, store)


def test_a_guarantee_without_decisions_is_told_where_two_drivers_can_plan_a_batch(managed, store):
    managed(looks_first=True)
    with capture_logs() as logs:
        warn_where_two_can_plan(SPARK, store, "at_least_once")
    [said] = logs
    assert said["event"] == "sparks_own_logs_not_exclusive"
    assert said["found"] == "several won in 6 of 6 rounds"
    assert "'at_least_once'" in said["hint"]


def test_what_is_exclusive_is_not_warned_of(managed, store):
    managed()
    with capture_logs() as logs:
        warn_where_two_can_plan(SPARK, store, "at_most_once")
    assert logs == []


def test_a_local_disk_is_warned_of_without_a_race_which_it_would_mostly_pass(tmp_path):
    with capture_logs() as logs:
        warn_where_two_can_plan(SPARK, CheckpointStore.open(tmp_path), "at_least_once")
    assert [each["event"] for each in logs] == ["sparks_own_logs_not_exclusive"]


def test_hdfs_is_known_to_be_exclusive(store):
    store.location = "hdfs://name:8020/q"
    with capture_logs() as logs:
        warn_where_two_can_plan(SPARK, store, "at_least_once")
    assert logs == []


def test_a_manager_that_cannot_be_tried_is_said_and_stops_no_start(monkeypatch, store):
    def gone(*_: object) -> None:
        raise Py4JError("it is elsewhere in this Spark")

    monkeypatch.setattr(spark_logs, "_manager", gone)
    with capture_logs() as logs:
        warn_where_two_can_plan(SPARK, store, "at_least_once")
    assert [each["event"] for each in logs] == ["sparks_own_logs_not_raced"]
    assert "it is elsewhere" in logs[0]["why"]
