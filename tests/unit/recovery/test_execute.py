"""The second looks of a recovery: what was read, or relied on, may have moved on since.

Files as Spark and a driver leave them; Kafka is a broker that can be seen through.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.checkpoint import (
    CheckpointStore,
    Decision,
    DecisionLog,
    Verdict,
    claim,
    take_term,
    write_heartbeat,
)
from airflow_eos.errors import RecoveryError
from airflow_eos.protocol.decision import Outcome, PreparedWork
from airflow_eos.recovery import Seal, gather, make_plan
from airflow_eos.recovery.execute import execute
from tests.support.beats import heartbeat
from tests.support.pipelines import kafka_pipeline
from tests.unit.sinks.fakes import FakeBroker, FakeParticipant

FILES = {
    "offsets": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7}\n{"in":{"0":1}}',
    "commits": 'v1\n{"nextBatchWatermarkMs":0}',
}


class World(FakeParticipant):
    """A pipeline that keeps two batches, and what the others do while a recovery sleeps."""

    def __init__(self, folder: Path) -> None:
        super().__init__(FakeBroker())
        self.store = CheckpointStore.open(folder)
        self.log = DecisionLog(self.store)
        self.store.put("metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
        claim(self.store, kafka_pipeline())
        self.term = take_term(self.store, taken_by="driver").term.number
        self.before_the_seal: Callable[[], None] = lambda: None
        self.once_noted: Callable[[], None] = lambda: None

    def check(self, works: Any) -> None:
        """The decisions have been read; the seal comes next."""
        del works
        self.before_the_seal()

    def note(self, decision: Decision, owner: Any) -> None:
        del decision, owner
        self.once_noted()

    def wrote(self, **logs: tuple[int, ...]) -> None:
        """Spark's logs have these batches, and no others."""
        for log, batches in logs.items():
            self.store.delete_folder(log)
            for batch in batches:
                self.store.put(f"{log}/{batch}", FILES[log].encode())

    def beats(self, batch: int) -> None:
        """The last sign of life, an hour old, of the newest driver."""
        write_heartbeat(self.store, heartbeat("preparing", term=self.term, batch_id=batch))

    def decided(self, batch: int, *works: PreparedWork) -> Decision:
        decision = Decision(
            batch_id=batch,
            attempt=1,
            term=self.term,
            verdict=Verdict.COMMIT,
            works=works,
            offsets=FILES["offsets"],
            decided_by="driver",
            decided_at_ms=0,
            nonce=f"{batch:032}",
        )
        assert self.log.record(decision)
        return decision

    def recover(self, plan: Any) -> Any:
        return execute(plan, self.store, self, force=True, executed_by="recovery")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_batch_that_was_purged_and_planned_again_is_not_taken_for_the_one_in_flight(
    world: World,
) -> None:
    """A sleeper woke before ``commits/4`` and planned 5 again, which the last heartbeat names."""
    promised = world.broker.prepare("etl-0-0", ("a",))
    world.decided(9, promised)
    world.wrote(offsets=(8, 9, 5), commits=(8, 4))
    world.beats(5)
    world.recover(make_plan(gather(world.store, world)))
    assert world.broker.visible() == ["a"], "batch 9 has promised it"
    assert world.log.of_batch(5) == ()


def test_a_recovery_that_slept_before_its_seal_looks_again_and_claims_none(world: World) -> None:
    """The batch is complete and its places were pruned: so it gets one, which binds nobody."""
    left = world.broker.prepare("etl-1-0", ("of a lost task",))
    world.wrote(offsets=(4, 5), commits=(3, 4))
    plan = make_plan(gather(world.store, world))
    assert plan.seal == Seal(5, 1)

    def meanwhile() -> None:
        world.wrote(offsets=(8, 9), commits=(7, 8))
        world.before_the_seal = lambda: None

    world.before_the_seal = meanwhile
    report = world.recover(plan)
    assert report.sealed is None
    assert world.broker.state[left.identity] is Outcome.ABORTED


def test_a_decision_that_is_gone_once_it_is_noted_is_not_settled(world: World) -> None:
    """An older copy was put in place: whoever starts on it now delivers these rows."""
    promised = world.broker.prepare("etl-0-0", ("a",))
    world.wrote(offsets=(4, 5), commits=(3, 4))
    world.decided(5, promised)
    plan = make_plan(gather(world.store, world))
    world.once_noted = lambda: world.store.delete(["eos/decisions/5/1.json"])
    with pytest.raises(RecoveryError, match=r"batch 5, attempt 1 is gone .* Nothing was committed"):
        world.recover(plan)
    assert world.broker.open() == [promised.identity]
