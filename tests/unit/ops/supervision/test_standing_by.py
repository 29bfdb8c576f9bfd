"""A task whose app stands by behind another task's driver."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from airflow_eos.core.checkpoint import CheckpointStore, StartedBy, request_drain, write_heartbeat
from airflow_eos.core.checkpoint.drain import BY_STANDBY, request_to
from airflow_eos.core.checkpoint.liveness import process_end_of
from airflow_eos.core.checkpoint.recovery_notes import refusal_of
from airflow_eos.core.checkpoint.standby import Standby, write_standby
from airflow_eos.core.delivery.policy import FixedDelay
from airflow_eos.errors import AppFailedError, AppRefusedError, ForeignDriverError
from airflow_eos.ops.supervision.exit_status import ExitKind, Patience
from airflow_eos.ops.supervision.heartbeat_monitor import require_not_drained
from airflow_eos.ops.supervision.rules import Rules
from airflow_eos.ops.supervision.run import AppRun, StreamRun
from tests.unit.ops.supervision.lives import US, beat, started

THEIRS = beat(started_by=started("s0", dag_id="other"), term=1)


class StandsBy:
    """An app that says that it stands by for ``lasts`` seconds, and ends as ``end`` says."""

    detached = False
    failure: Exception | None = None

    def __init__(self, world: World, us: StartedBy) -> None:
        self.world, self.us, self.began, self.killed = world, us, 0.0, False

    def start(self) -> None:
        self.began = self.world.now
        self.world.starts.append(self)

    @property
    def running(self) -> bool:
        return not self.killed and self.world.now < self.began + self.world.lasts

    def kill(self) -> None:
        self.killed = True

    def say(self, **ended) -> None:
        said = Standby(
            name=self.us.submission,
            started_by=self.us,
            application_id="app-2",
            host="h",
            pid=8,
            behind=1,
            beat=int(self.world.now * 1000),
            interval_ms=2000,
            **ended,
        )
        write_standby(self.world.store, said)


class World:
    """A driver of another task that beats, and a clock."""

    def __init__(self, store: CheckpointStore) -> None:
        self.store, self.now, self.lasts = store, 1000.0, 30.0
        self.end: dict[str, Any] = {}
        self.starts: list[StandsBy] = []
        write_heartbeat(store, THEIRS)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        write_heartbeat(
            self.store, msgspec.structs.replace(THEIRS, beat_at_ms=int(self.now * 1000))
        )
        if self.starts and self.starts[-1].running:
            self.starts[-1].say()
        elif self.starts and self.end:
            self.starts[-1].say(**self.end)

    def stream(self, *, standby: bool = True) -> StreamRun:
        def recover() -> None:
            pytest.fail("recovered beside a driver that lives")

        return StreamRun(
            self.store,
            US,
            submit=lambda us: StandsBy(self, us),
            recover=recover,
            rules=Rules(
                FixedDelay(attempts=1, pause=timedelta(seconds=1)),
                timedelta(seconds=30),
                patience=Patience(5.0, 10.0),
                standby=standby,
            ),
            sleep=self.sleep,
            clock=self.clock,
        )


@pytest.fixture
def world(tmp_path) -> World:
    return World(CheckpointStore.open(tmp_path / "ck"))


def test_without_it_another_tasks_driver_is_refused(world):
    with pytest.raises(ForeignDriverError):
        world.stream(standby=False).until_finished()
    assert world.starts == []


def test_an_app_that_stands_by_for_long_is_not_given_up_and_leaves_in_order(world):
    """It never beats as a driver; where the pipeline is drained, nobody needs it."""
    world.end = {"end": "called off", "reason": "drained by ops"}
    outcome = world.stream().until_finished()
    assert (outcome.ended.end, outcome.failures) == (ExitKind.DRAINED, ())
    assert len(world.starts) == 1
    assert world.now >= 1030


def test_one_that_is_refused_is_not_started_again(world):
    world.lasts, world.end = 3.0, {"end": "refused", "reason": "OwnershipError: another's"}
    with pytest.raises(AppRefusedError, match="another's"):
        world.stream().until_finished()
    assert len(world.starts) == 1


def test_one_that_is_refused_keeps_nobody_from_bringing_the_driver_back_that_lives_beside_it(world):
    world.lasts, world.end = 3.0, {"end": "refused", "reason": "OwnershipError: another's"}
    with pytest.raises(AppRefusedError):
        world.stream().until_finished()
    assert refusal_of(world.store, THEIRS) is None


def test_one_that_dies_while_it_stands_by_is_started_again_as_often_as_the_strategy_says(world):
    world.lasts = 3.0
    StandsBy.failure = RuntimeError("Error code is: -9.")
    try:
        with pytest.raises(AppFailedError, match="failed 2 times"):
            world.stream().until_finished()
    finally:
        StandsBy.failure = None
    assert len(world.starts) == 2


def test_one_that_neither_drives_nor_stands_by_is_given_up(world, monkeypatch):
    monkeypatch.setattr(StandsBy, "say", lambda _self, **_ended: None)
    with pytest.raises(AppFailedError, match="neither drives nor stands by"):
        world.stream().until_finished()
    assert all(each.killed for each in world.starts)


def test_a_standby_that_a_killed_try_has_left_is_asked_to_end(world):
    StandsBy(world, US.begun_anew()).say()
    left = world.store.list("eos/standbys")[0].name.removesuffix(".json")
    world.end = {"end": "called off", "reason": "drained by ops"}
    world.stream().until_finished()
    assert request_to(world.store, left) is not None


def test_who_sees_the_process_of_its_driver_end_says_so_to_whoever_stands_by(world):
    StandsBy.failure = RuntimeError("Error code is: -9.")
    world.lasts = 3.0
    try:
        with pytest.raises(AppFailedError):
            world.stream().until_finished()
    finally:
        StandsBy.failure = None
    submission = world.starts[-1].us.submission
    end = process_end_of(world.store, beat(started_by=started(submission)))
    assert end is not None
    assert "signal 9" in end.found


def test_one_that_stands_by_in_a_cluster_is_asked_to_end_when_its_task_is_stopped(world):
    """Its process is elsewhere, and it has no heartbeat that would say that it lives."""
    stream = world.stream()
    submission = US.begun_anew().submission
    stream._app = AppRun(submission, None, world.now, world.now)
    stream.stop("cleared")
    assert request_to(world.store, submission) is not None


def test_one_that_failed_while_it_handed_over_is_started_again(world):
    """A person's request keeps it down; this one says that the pipeline is to go on."""
    mine = beat(started_by=started("s1"), term=1)
    write_heartbeat(world.store, mine)
    request_drain(world.store, requested_by=BY_STANDBY, reason="upgrade", term=1)
    require_not_drained(world.store, "s1")
