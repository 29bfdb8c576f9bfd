"""A recovery reads in an order that is part of the proof, and looks again at what it relied on."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import obstore.store
import pytest

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    Decision,
    DecisionLog,
    claim,
    snapshot,
    take_term,
    write_heartbeat,
)
from airflow_eos.core.checkpoint.history import PastEvents
from airflow_eos.core.checkpoint.rulings import resolve
from airflow_eos.core.protocol.decision import Outcome, PreparedWork, WorkIdentity
from airflow_eos.core.protocol.participant import Admission, Member, Owner
from airflow_eos.core.recovery import facts as module
from airflow_eos.core.recovery.execute import ALLOWED_BY_DEFAULT, Result, _act, execute
from airflow_eos.core.recovery.plan import make_plan
from airflow_eos.errors import CheckpointError, CheckpointFormatError, OwnershipError, RecoveryError
from airflow_eos.kinds.consumer_group.participant import work_of
from airflow_eos.recovery import Seal, gather
from tests.support.beats import heartbeat
from tests.support.pipelines import commit_of, kafka_member, kafka_pipeline
from tests.unit.core.delivery.fakes import FakeBroker, FakeParticipant
from tests.unit.core.recovery.facts_of import (
    NOW,
    PREFIX,
    checkpoint,
    commit,
    facts,
    pipeline,
    prepared,
    still_open,
    what_became,
)

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
        decision = commit_of(
            batch, *works, offsets=FILES["offsets"], term=self.term, nonce=f"{batch:032}"
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


@pytest.mark.parametrize("left", [(), (0,)])
def test_no_plan_says_abort_of_a_promise_where_more_than_one_entry_of_sparks_logs_is_lost(
    world: World, left: tuple[int, ...]
) -> None:
    """A rule of the bucket removed the logs: the plan said ABORT, which the recovery refused."""
    world.decided(0)
    if left:
        world.decided(1)
    world.decided(1 + len(left), world.broker.prepare("etl-0-0", ("a",)))
    world.wrote(offsets=left, commits=left)
    with pytest.raises(CheckpointError, match="Restore the newest copy"):
        gather(world.store, world)


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


def test_who_has_recovered_what_is_noted_and_nothing_where_nothing_was_done(world: World) -> None:
    promised = world.broker.prepare("etl-0-0", ("a",))
    world.broker.prepare("etl-1-0", ("of a lost task",))
    world.wrote(offsets=(4, 5), commits=(3, 4))
    world.decided(5, promised)
    for _ in range(2):  # the second time it finds nothing to do
        world.recover(make_plan(gather(world.store, world)))
    [noted] = PastEvents().events(world.store)
    assert (noted.what, noted.who, noted.why) == (
        "recovered",
        "recovery",
        "batch 5: 1 committed, 1 aborted",
    )


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


# --- The order of reading is part of the proof: list first, then the checkpoint, then decisions ---


A, B = prepared(0), prepared(1)


class ReadWorld:
    """Notes who is asked, in which order."""

    def __init__(self, monkeypatch, store):
        self.asked = []
        self.state = checkpoint()
        self.decisions = {5: (commit(A, B),)}
        self.listed = (still_open(A),)
        self.outcomes = {A.identity: Outcome.UNKNOWN, B.identity: Outcome.COMMITTED}
        self.asked_outcomes = []
        self.store = store
        self.participant = SimpleNamespace(
            members=(kafka_member(PREFIX),),
            open=lambda: self._note("list", self.listed),
            outcome=self._outcomes,
            check=lambda _works: None,
        )
        log = SimpleNamespace(
            of_batch=lambda n: self._note(f"decisions {n}", self.decisions.get(n, ()))
        )
        monkeypatch.setattr(snapshot, "DecisionLog", lambda _: log)
        monkeypatch.setattr(module, "admitted", lambda *_: (Admission(), None))
        monkeypatch.setattr(snapshot, "read_state", lambda _: self._note("checkpoint", self.state))

    def _note(self, what, answer):
        self.asked.append(what)
        return answer

    def _outcomes(self, works):
        self.asked_outcomes = [each.identity for each in works]
        return self._note("outcomes", {i: self.outcomes[i] for i in self.asked_outcomes})

    def gather(self):
        return module.gather(self.store, self.participant)


@pytest.fixture
def read_world(monkeypatch, tmp_path):
    store = CheckpointStore.open(tmp_path)
    claim(store, pipeline(PREFIX))
    return ReadWorld(monkeypatch, store)


def test_list_then_checkpoint_then_decisions_then_outcomes(read_world):
    facts = read_world.gather()

    assert read_world.asked == ["list", "checkpoint", "decisions 6", "decisions 5", "outcomes"]
    assert facts.listed_batch == 5


def test_what_its_system_keeps_count_of_is_committed_though_its_rows_can_not_be_read(read_world):
    """A coordinator knows what is open: rows past retention must not keep it from a commit."""
    read_world.gather()

    assert read_world.asked_outcomes == [B.identity]


def test_outcomes_are_asked_also_of_what_is_listed_where_its_system_ends_nothing(read_world):
    """What is left of files that were published in part is listed, and UNKNOWN."""
    read_world.listed = (msgspec.structs.replace(still_open(A), timeout_ms=None),)

    assert read_world.gather().outcomes[A.identity] is Outcome.UNKNOWN
    assert read_world.asked_outcomes == [A.identity, B.identity]


def test_a_complete_batch_is_not_asked_about(read_world):
    """An idle pipeline must not be ASKed about when its rows pass retention."""
    read_world.state = checkpoint(5, 5)

    assert read_world.gather().outcomes == {}
    assert "outcomes" not in read_world.asked


def test_a_ruling_answers_where_the_log_is_mute_and_only_there(read_world):
    read_world.listed = ()
    read_world.outcomes = {A.identity: Outcome.UNKNOWN, B.identity: Outcome.COMMITTED}
    resolve(read_world.store, A.identity, Outcome.ABORTED)
    resolve(read_world.store, B.identity, Outcome.ABORTED)

    assert read_world.gather().outcomes == {
        A.identity: Outcome.ABORTED,
        B.identity: Outcome.COMMITTED,
    }


def test_a_sign_of_life_does_not_age_while_a_slow_participant_is_asked(read_world, monkeypatch):
    clock = SimpleNamespace(
        time_ns=lambda: 31_000_000_000 if read_world.asked_outcomes else 1_000_000
    )
    monkeypatch.setattr(snapshot, "time", clock)

    assert read_world.gather().now_ms == 1
    assert read_world.asked_outcomes


def test_a_live_driver_that_decides_the_next_batch_meanwhile_is_no_older_copy(
    read_world, monkeypatch
):
    read_world.decisions[6] = (commit(A, batch=6),)
    monkeypatch.setattr(snapshot, "newest_planned", lambda _: read_world._note("offsets", 6))

    assert read_world.gather().listed_batch == 5
    assert read_world.asked[:4] == ["list", "checkpoint", "decisions 6", "offsets"]


def test_an_older_copy_is_refused(read_world):
    read_world.decisions[6] = (commit(A, batch=6),)

    with pytest.raises(CheckpointError, match="batch 6 was promised"):
        read_world.gather()


def test_another_participant_than_the_checkpoints_own_is_refused_naming_both(read_world):
    read_world.participant.members = (kafka_member(PREFIX, "another-cluster"),)

    with pytest.raises(OwnershipError, match=r"'cluster'.*'another-cluster'"):
        read_world.gather()


@pytest.mark.parametrize(
    "address",
    [
        {"cluster_id": "cluster", "transactional_id_prefix": PREFIX},
        {"cluster_id": "another", "transactional_id_prefix": "other"},
    ],
    ids=["its own", "elsewhere"],
)
def test_an_address_that_no_pipeline_uses_is_neither_its_own_nor_elsewhere(read_world, address):
    """Else promised work would be ended as an orphan, or another cluster's as one of this."""
    read_world.participant.members = (Member("nobodys", "kafka", address),)

    with pytest.raises(OwnershipError, match="Nothing was done"):
        read_world.gather()


def test_work_that_no_pipeline_owns_is_listed_under_another_name(read_world):
    address = {"cluster_id": "cluster", "transactional_id_prefix": "other"}
    read_world.participant.members = (Member("nobodys", "kafka", address),)

    assert read_world.gather().outcomes == {}


def test_a_decision_that_its_kind_does_not_understand_is_refused_before_anything(read_world):
    def refuse(_works):
        raise CheckpointFormatError("no witness")

    read_world.participant.check = refuse

    with pytest.raises(CheckpointFormatError, match="no witness"):
        read_world.gather()


# --- following ------------------------------------------------------------------------------------
# Who says how far a batch is waits where rows turn out to be lost while recovery settles them.


FOLLOWED = prepared(0, content="a")
SAYS = work_of("consumer_group", "p" * 32, 5, 1, {"in": {0: 9}}, NOW)


class Participant:
    """What becomes of rows is as given; who follows is noted."""

    def __init__(self, of_rows: Outcome) -> None:
        self.of_rows = of_rows
        self.said: list[PreparedWork] = []

    def note(self, decision: Decision, owner: Owner) -> None: ...

    def abort(self, works: Sequence[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        assert not works
        return {}

    abandon = abort

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        self.said += [work for work in works if work.follows]
        return {w.identity: Outcome.COMMITTED if w.follows else self.of_rows for w in works}


@pytest.mark.parametrize(
    ("of_rows", "said", "results"),
    [
        (Outcome.COMMITTED, [SAYS], [Result.DONE, Result.DONE]),
        (Outcome.ABORTED, [], [Result.CHANGED, Result.CHANGED]),
    ],
)
def test_it_is_said_of_what_is_settled_and_of_nothing_else(of_rows, said, results):
    decision = commit(FOLLOWED, SAYS)
    store = CheckpointStore(obstore.store.MemoryStore(), "memory")
    assert DecisionLog(store).record(decision)
    known = facts(
        decisions=(decision,),
        listed=(still_open(FOLLOWED),),
        outcomes=what_became(undecided=[SAYS]),
    )
    participant = Participant(of_rows)
    became = _act(make_plan(known), known, store, participant, ALLOWED_BY_DEFAULT)  # type: ignore[arg-type]
    assert participant.said == said
    assert [each.result for each in became] == results
