"""How long a try waits for a driver that was asked to drain, and what it does then."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from airflow_eos.checkpoint import (
    CheckpointStore,
    drain_requested,
    request_drain,
    take_term,
    write_heartbeat,
)
from airflow_eos.checkpoint.heartbeat import request_to
from airflow_eos.delivery.policy import FixedDelay
from airflow_eos.errors import ForeignDriverError, StoreError
from airflow_eos.supervision import run as finding
from airflow_eos.supervision.heartbeat_monitor import Pulse
from airflow_eos.supervision.run import Finder, Rules

from tests.unit.supervision.lives import US, beat, started

RULES = Rules(FixedDelay(), timedelta(seconds=60))


class World:
    """A clock, and a driver that beats whenever time goes on, until it is killed."""

    def __init__(self, store: CheckpointStore, heartbeat) -> None:
        self.store, self.heartbeat, self.now = store, heartbeat, 0.0
        self.beats = True
        write_heartbeat(store, heartbeat)

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        if self.beats:
            self.heartbeat = msgspec.structs.replace(self.heartbeat, beat_at_ms=int(self.now * 1e3))
            write_heartbeat(self.store, self.heartbeat)

    def finder(self) -> Finder:
        pulse = Pulse(self.store, clock=self.clock)
        return Finder(US, pulse, RULES, self.pause, self.clock)


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path)


@pytest.fixture
def killed(monkeypatch) -> list[int]:
    asked: list[int] = []

    def kill(heartbeat, manager) -> str:
        asked.append(heartbeat.pid)
        return "it could not be ended"

    monkeypatch.setattr(finding, "kill_elsewhere", kill)
    return asked


def test_one_that_drains_and_never_ends_is_killed_and_where_that_fails_superseded(store, killed):
    world = World(store, beat(term=None))
    request_drain(store, requested_by="airflow", reason="x", submission="s1")
    assert world.finder().find() is None
    assert killed == [7]
    assert 75 <= world.now < 80


@pytest.mark.parametrize("whose", [{}, {"run_id": "r0"}], ids=["of this task", "of another"])
def test_a_silent_driver_that_is_replaced_finds_a_request_should_it_come_back(store, killed, whose):
    """It has no term: it would deliver beside the one that took its place, for ever."""
    world = World(store, beat(term=None, started_by=started(**whose)))
    world.beats = False
    assert world.finder().find() is None
    assert drain_requested(store, submission="s1").requested_by == "airflow"


def test_one_that_whoever_runs_was_asked_for_is_asked_by_name_before_it_is_replaced(store, killed):
    """The next start removes a request that names nobody."""
    world = World(store, beat(term=None))
    request_drain(store, requested_by="ops", reason="x")
    assert world.finder().find() is None
    assert request_to(store, "s1").requested_by == "airflow"


def test_one_that_falls_silent_once_it_is_killed_is_followed_by_a_start(store, monkeypatch):
    world = World(store, beat(term=None))

    def kill(*_):
        world.beats = False
        return "killed"

    monkeypatch.setattr(finding, "kill_elsewhere", kill)
    request_drain(store, requested_by="airflow", reason="x", submission="s1")
    assert world.finder().find() is None
    assert 66 <= world.now < 70


@pytest.mark.parametrize(("whose", "ended"), [(started(), [7]), (started(run_id="r0"), [])])
def test_a_silent_driver_is_ended_once_before_a_start_where_this_task_has_started_it(
    store, killed, whose, ended
):
    world = World(store, beat(term=None, started_by=whose))
    world.beats = False
    assert world.finder().find() is None
    assert killed == ended


def test_one_whose_process_was_seen_to_end_is_not_ended_again(store, killed):
    world = World(store, beat(term=None))
    world.beats = False
    assert world.finder().find(exited="s1") is None
    assert killed == []


def test_a_driver_of_a_former_term_that_beats_for_ever_keeps_nobody_from_starting(store, killed):
    """The newer one took its term and died before its first heartbeat."""
    take_term(store, taken_by="a")
    world = World(store, beat(term=1))
    take_term(store, taken_by="b")
    assert world.finder().find() is None
    assert world.now < 20
    assert killed == [7]


def test_one_of_another_task_that_drains_and_never_ends_is_left_to_it(store, killed):
    world = World(store, beat(term=None, started_by=started(run_id="r0")))
    request_drain(store, requested_by="ops", reason="x")
    with pytest.raises(ForeignDriverError, match="asked by ops to drain"):
        world.finder().find()
    assert killed == []


def test_a_store_that_refuses_has_answered_and_is_not_asked_for_ever(store, monkeypatch):
    world = World(store, beat(term=None))

    def refuse(*_):
        raise StoreError("no right") from PermissionError()

    monkeypatch.setattr(CheckpointStore, "get", refuse)
    with pytest.raises(StoreError, match="no right"):
        world.finder().find()
