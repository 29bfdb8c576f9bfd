"""The order of reading is part of the proof: list first, then the checkpoint, then decisions."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from airflow_eos.checkpoint import CheckpointStore, claim, snapshot
from airflow_eos.checkpoint.rulings import resolve
from airflow_eos.errors import CheckpointError, CheckpointFormatError, OwnershipError
from airflow_eos.protocol.decision import Outcome
from airflow_eos.protocol.participant import Admission, Member
from airflow_eos.recovery import facts as module
from tests.support.pipelines import kafka_member
from tests.unit.recovery.facts_of import (
    PREFIX,
    checkpoint,
    commit,
    pipeline,
    prepared,
    still_open,
)

A, B = prepared(0), prepared(1)


class World:
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
def world(monkeypatch, tmp_path):
    store = CheckpointStore.open(tmp_path)
    claim(store, pipeline(PREFIX))
    return World(monkeypatch, store)


def test_list_then_checkpoint_then_decisions_then_outcomes(world):
    facts = world.gather()

    assert world.asked == ["list", "checkpoint", "decisions 6", "decisions 5", "outcomes"]
    assert facts.listed_batch == 5


def test_what_its_system_keeps_count_of_is_committed_though_its_rows_can_not_be_read(world):
    """A coordinator knows what is open: rows past retention must not keep it from a commit."""
    world.gather()

    assert world.asked_outcomes == [B.identity]


def test_outcomes_are_asked_also_of_what_is_listed_where_its_system_ends_nothing(world):
    """What is left of files that were published in part is listed, and UNKNOWN."""
    world.listed = (msgspec.structs.replace(still_open(A), timeout_ms=None),)

    assert world.gather().outcomes[A.identity] is Outcome.UNKNOWN
    assert world.asked_outcomes == [A.identity, B.identity]


def test_a_complete_batch_is_not_asked_about(world):
    """An idle pipeline must not be ASKed about when its rows pass retention."""
    world.state = checkpoint(5, 5)

    assert world.gather().outcomes == {}
    assert "outcomes" not in world.asked


def test_a_ruling_answers_where_the_log_is_mute_and_only_there(world):
    world.listed = ()
    world.outcomes = {A.identity: Outcome.UNKNOWN, B.identity: Outcome.COMMITTED}
    resolve(world.store, A.identity, Outcome.ABORTED)
    resolve(world.store, B.identity, Outcome.ABORTED)

    assert world.gather().outcomes == {A.identity: Outcome.ABORTED, B.identity: Outcome.COMMITTED}


def test_a_sign_of_life_does_not_age_while_a_slow_participant_is_asked(world, monkeypatch):
    clock = SimpleNamespace(time_ns=lambda: 31_000_000_000 if world.asked_outcomes else 1_000_000)
    monkeypatch.setattr(snapshot, "time", clock)

    assert world.gather().now_ms == 1
    assert world.asked_outcomes


def test_a_live_driver_that_decides_the_next_batch_meanwhile_is_no_older_copy(world, monkeypatch):
    world.decisions[6] = (commit(A, batch=6),)
    monkeypatch.setattr(snapshot, "newest_planned", lambda _: world._note("offsets", 6))

    assert world.gather().listed_batch == 5
    assert world.asked[:4] == ["list", "checkpoint", "decisions 6", "offsets"]


def test_an_older_copy_is_refused(world):
    world.decisions[6] = (commit(A, batch=6),)

    with pytest.raises(CheckpointError, match="batch 6 was promised"):
        world.gather()


def test_another_participant_than_the_checkpoints_own_is_refused_naming_both(world):
    world.participant.members = (kafka_member(PREFIX, "another-cluster"),)

    with pytest.raises(OwnershipError, match=r"'cluster'.*'another-cluster'"):
        world.gather()


@pytest.mark.parametrize(
    "address",
    [
        {"cluster_id": "cluster", "transactional_id_prefix": PREFIX},
        {"cluster_id": "another", "transactional_id_prefix": "other"},
    ],
    ids=["its own", "elsewhere"],
)
def test_an_address_that_no_pipeline_uses_is_neither_its_own_nor_elsewhere(world, address):
    """Else promised work would be ended as an orphan, or another cluster's as one of this."""
    world.participant.members = (Member("nobodys", "kafka", address),)

    with pytest.raises(OwnershipError, match="Nothing was done"):
        world.gather()


def test_work_that_no_pipeline_owns_is_listed_under_another_name(world):
    address = {"cluster_id": "cluster", "transactional_id_prefix": "other"}
    world.participant.members = (Member("nobodys", "kafka", address),)

    assert world.gather().outcomes == {}


def test_a_decision_that_its_kind_does_not_understand_is_refused_before_anything(world):
    def refuse(_works):
        raise CheckpointFormatError("no witness")

    world.participant.check = refuse

    with pytest.raises(CheckpointFormatError, match="no witness"):
        world.gather()
