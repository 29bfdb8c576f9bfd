"""A drill ends only its own driver, and measures until the next one has committed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import msgspec
import pytest

from airflow_eos.checkpoint import CheckpointStore, read_heartbeat, write_heartbeat
from airflow_eos.checkpoint.heartbeat import Heartbeat, StartedBy
from airflow_eos.errors import RecoveryError
from airflow_eos.supervision.drill import Drill
from tests.unit.supervision.lives import beat

OURS = StartedBy(dag_id="eos_drill", task_id="run", run_id="r1", map_index=-1, submission="s")


@dataclass
class World:
    """A pipeline whose driver commits what it is fed, a second later; time is told by sleeping."""

    store: CheckpointStore
    restarts_after_s: float = 20
    heeds_kill: bool = True
    now: float = 0
    kills: list[str] = field(default_factory=list)
    batch: int = 7
    fed: int = 0
    comes_back_at: float | None = None

    def driver(self, application_id: str, **changes: object) -> None:
        told = beat(started_by=OURS, application_id=application_id, phase="waiting")
        now_ms = int(self.now * 1000) + 1_000
        made = msgspec.structs.replace(told, beat_at_ms=now_ms, interval_ms=1_000, **changes)
        write_heartbeat(self.store, made)

    def commit(self) -> None:
        self.batch += 1
        head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})
        self.store.put(f"offsets/{self.batch}", f"v1\n{head}\n{{}}".encode())
        self.store.put(f"commits/{self.batch}", b'v1\n{"nextBatchWatermarkMs":0}')

    def feed(self) -> None:
        self.fed += 1

    def kill(self, heartbeat: Heartbeat) -> str:
        self.kills.append(heartbeat.application_id)
        if self.heeds_kill:
            self.comes_back_at = self.now + self.restarts_after_s
        return f"process {heartbeat.pid} was killed"

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.comes_back_at is not None:
            if self.now >= self.comes_back_at:
                self.driver("app-2")
                self.commit()
                self.comes_back_at = None
        elif not self.kills or not self.heeds_kill:
            found = read_heartbeat(self.store)
            assert found is not None
            self.driver("app-1", started_by=found.started_by)
            self.commit()

    def drill(self, **changes: float) -> Drill:
        return Drill(
            store=self.store,
            is_ours=lambda heart: heart.started_by == OURS,
            feed=self.feed,
            first_batch_within_s=changes.get("first", 30),
            recovered_within_s=changes.get("recovered", 100),
            kill=self.kill,
            sleep=self.sleep,
            clock=lambda: self.now,
        )


@pytest.fixture
def world(tmp_path) -> World:
    made = World(CheckpointStore.open(tmp_path))
    made.commit()
    made.driver("app-1")
    return made


def test_it_counts_from_the_kill_to_the_commit_of_the_successor(world):
    found = world.drill().run()
    assert world.kills == ["app-1"]
    assert (found.driver, found.successor, found.seconds) == ("app-1", "app-2", 20)
    assert found.batch == world.batch
    assert world.fed == 2, "rows for both: else there might be nothing to commit"
    assert found.told(20)["ok"]
    assert not found.told(19.9)["ok"]


@pytest.mark.parametrize(
    "started_by", [None, msgspec.structs.replace(OURS, run_id="r0")], ids=["by hand", "another run"]
)
def test_a_driver_that_is_not_its_own_is_never_ended(world, started_by):
    world.driver("app-1", started_by=started_by)
    with pytest.raises(RecoveryError, match="No driver of this run has committed"):
        world.drill().run()
    assert world.kills == []


def test_a_driver_is_not_ended_before_it_has_committed(world):
    world.sleep = lambda seconds: setattr(world, "now", world.now + seconds)
    with pytest.raises(RecoveryError, match=r"No driver of this run .* within 30 s"):
        world.drill().run()
    assert world.kills == []


def test_a_kill_that_did_nothing_is_no_quick_recovery(world):
    """Its next commit is its own; what could not be ended is said, with what to do."""
    world.heeds_kill = False
    with pytest.raises(RecoveryError, match=r"app-1 lives on.*driver's machine"):
        world.drill().run()


def test_nobody_in_its_place_ends_the_drill(world):
    world.restarts_after_s = 1_000
    with pytest.raises(RecoveryError, match=r"was killed, and no other driver .* within 100 s"):
        world.drill().run()
