"""Recovery on a real broker: every row of the protocol's table, and every way to be wrong."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, Outcome
from airflow_eos.core.recovery.execute import execute
from airflow_eos.errors import (
    CheckpointError,
    ConfigurationError,
    DecisionNeededError,
    OwnershipError,
    PipelineAliveError,
    TimeoutBudgetError,
)
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.transactions.identity import named
from airflow_eos.ops.supervision.preflight import TimeoutBudget, reached_within
from airflow_eos.ops.supervision.recovery import Recovery, recover_before_start
from airflow_eos.recovery import (
    Action,
    Plan,
    Result,
    Seal,
    execute_recovery,
    gather,
    make_plan,
    plan_recovery,
    resolve,
)
from tests.integration.recovery.conftest import BATCH
from tests.support.beats import beating, heartbeat
from tests.support.pipelines import owner_at

COMMIT, ABORT, REPLAY, ASK, ORPHAN = Action


def planned(dead) -> Plan:
    return make_plan(gather(dead.store, dead.participant))


def actions(plan):
    return [step.action for step in plan.steps]


def results(report):
    return [(each.step.action, each.result) for each in report.results]


@pytest.mark.long
def test_open_and_named_is_committed_and_readers_see_it(dead):
    promised = dead.write(0, ["a", "b"])
    dead.decided(promised)

    report = execute(planned(dead), dead.store, dead.participant)

    assert results(report) == [(COMMIT, Result.DONE)]
    assert dead.visible() == ["a", "b"]
    assert dead.still_open() == []
    assert report.sealed is None


def test_open_and_not_named_is_aborted_after_the_attempt_is_sealed(dead):
    dead.write(0, ["a"])

    report = execute(planned(dead), dead.store, dead.participant)

    assert results(report) == [(ABORT, Result.DONE)]
    assert dead.visible() == []
    assert dead.still_open() == []
    assert report.sealed == Seal(BATCH, 1)
    (decision,) = dead.log.of_batch(BATCH)
    assert decision.verdict.name == "ABORT"
    assert decision.decided_by.startswith("recovery")


def test_decided_and_committed_needs_nothing(dead):
    promised = dead.write(0, ["a"])
    dead.decided(promised)
    dead.end(promised, commit=True)

    assert planned(dead).steps == ()


def test_decided_and_aborted_is_replayed_by_the_app(dead):
    lost, kept = dead.write(0, ["a", "b"]), dead.write(1, ["c"])
    dead.decided(lost, kept)
    dead.end(lost, commit=False)
    dead.end(kept, commit=True)

    plan = planned(dead)

    assert [(s.action, s.batch_id, s.works, s.rows) for s in plan.steps] == [(REPLAY, BATCH, 1, 2)]
    assert results(execute(plan, dead.store, dead.participant)) == [(REPLAY, Result.WAITS)]
    assert dead.log.of_batch(BATCH)[-1].attempt == 1


def test_lost_and_delivered_by_a_later_decision_needs_nothing(dead):
    lost = dead.write(0, ["a"])
    dead.decided(lost)
    dead.end(lost, commit=False)
    again = dead.write(0, ["a"])
    dead.decided(again, attempt=2)
    dead.end(again, commit=True)

    assert planned(dead).steps == ()


@pytest.mark.long
def test_the_id_of_a_promised_one_was_taken_again(dead):
    """Only the producer id and epoch tell the two apart."""
    lost = dead.write(0, ["a"])
    dead.decided(lost)
    dead.write(0, ["a"])

    plan = planned(dead)
    execute(plan, dead.store, dead.participant)

    assert actions(plan) == [ABORT, REPLAY]
    assert dead.visible() == []
    assert dead.still_open() == []


def test_past_retention_is_asked_and_a_ruling_answers_for_ever(dead):
    promised = dead.write(0, ["a"])
    dead.decided(promised)
    dead.end(promised, commit=True)
    later = dead.write(7, ["z"], prefix="other-app")
    dead.end(later, commit=True)
    dead.forget_rows_below(later.witness.first)

    plan = planned(dead)
    report = execute(plan, dead.store, dead.participant)

    assert actions(plan) == [ASK]
    assert results(report) == [(ASK, Result.NEEDS_PERSON)]
    with pytest.raises(DecisionNeededError, match="--assume"):
        report.require_complete()

    resolve(dead.store, named(promised.identity, DEFAULT_PARTICIPANT), Outcome.COMMITTED)
    assert planned(dead).steps == ()
    with pytest.raises(DecisionNeededError, match="cannot be changed"):
        resolve(dead.store, named(promised.identity, DEFAULT_PARTICIPANT), Outcome.ABORTED)


def test_ruled_aborted_is_replayed(dead):
    promised = dead.write(0, ["a"])
    dead.decided(promised)
    dead.end(promised, commit=True)
    later = dead.write(7, ["z"], prefix="other-app")
    dead.end(later, commit=True)
    dead.forget_rows_below(later.witness.first)

    resolve(dead.store, named(promised.identity, DEFAULT_PARTICIPANT), Outcome.ABORTED)

    assert actions(planned(dead)) == [REPLAY]


def test_checkpoint_lost_is_orphan_and_ended_only_when_asked(dead, tmp_path):
    dead.write(0, ["a"])
    elsewhere = str(tmp_path / "empty")

    plan = plan_recovery(elsewhere, dead.settings, prefix=dead.prefix)
    assert actions(plan) == [ORPHAN]
    report = execute_recovery(plan, dead.settings)
    assert results(report) == [(ORPHAN, Result.NOT_ALLOWED)]
    assert dead.still_open() != []

    report = execute_recovery(plan, dead.settings, allow={ORPHAN})
    assert results(report) == [(ORPHAN, Result.DONE)]
    assert dead.still_open() == []


def test_wrong_prefix_is_orphan(dead):
    theirs = dead.write(0, ["a"], prefix="another")

    plan = plan_recovery(dead.store.location, dead.settings, prefix="another")
    dead.end(theirs, commit=False)

    assert actions(plan) == [ORPHAN]
    assert plan.steps[0].work == named(theirs.identity, plan.participants[0].name)
    assert dead.prefix in plan.steps[0].reason


def test_a_prefix_that_another_one_starts_with_is_left_alone(dead):
    theirs = dead.write(0, ["a"], prefix=f"{dead.prefix}-eu")

    plan = planned(dead)
    execute(plan, dead.store, dead.participant)

    assert plan.steps == ()
    dead.end(theirs, commit=True)
    assert dead.visible() == ["a"]


def test_missing_checkpoint_without_a_prefix_says_what_to_do(dead, tmp_path):
    with pytest.raises(ConfigurationError, match="give the transactional id prefix"):
        plan_recovery(str(tmp_path / "empty"), dead.settings)


def test_another_cluster_is_refused(dead):
    text = dead.store.get("eos/pipeline.json").decode()
    dead.store.put("eos/pipeline.json", text.replace(dead.wire.cluster_id, "elsewhere").encode())

    with pytest.raises(OwnershipError, match="elsewhere"):
        planned(dead)


def test_a_plan_for_another_cluster_is_refused(dead):
    plan = Plan.from_json(
        planned(dead).to_json().replace(dead.wire.cluster_id.encode(), b"elsewhere")
    )

    with pytest.raises(OwnershipError, match="elsewhere"):
        execute(plan, dead.store, dead.participant)


def test_an_older_copy_of_the_checkpoint_is_refused(dead):
    dead.decided(dead.write(0, ["a"]))
    for path in (f"offsets/{BATCH}",):
        dead.store.delete([path])

    with pytest.raises(CheckpointError, match="older"):
        planned(dead)


@pytest.mark.long
def test_twice_does_nothing_the_second_time(dead):
    promised = dead.write(0, ["a"])
    dead.decided(promised)
    dead.write(1, ["b"])
    settings = dead.settings

    first = execute_recovery(dead.store.location, settings)
    second = execute_recovery(dead.store.location, settings)

    assert results(first) == [(COMMIT, Result.DONE), (ABORT, Result.DONE)]
    assert results(second) == []
    assert second.sealed is None
    assert len(dead.log.of_batch(BATCH)) == 2
    assert plan_recovery(dead.store.location, settings).steps == ()


@pytest.mark.long
def test_the_same_plan_executed_twice_hits_nothing_new(dead):
    """A stale plan: between the two, the id is taken for a new transaction of a live app."""
    dead.write(0, ["a"])
    plan = Plan.from_json(planned(dead).to_json())
    execute(plan, dead.store, dead.participant)
    newer = dead.write(0, ["new"])

    report = execute(plan, dead.store, dead.participant)

    assert results(report) == [(ABORT, Result.ALREADY_ENDED)]
    assert dead.still_open() == [newer.transactional_id]


@pytest.mark.long
def test_a_stale_plan_does_not_abort_what_was_decided_since(dead):
    promised = dead.write(0, ["a"])
    plan = planned(dead)
    dead.decided(promised)

    report = execute(plan, dead.store, dead.participant)

    assert actions(plan) == [ABORT]
    assert results(report) == [(COMMIT, Result.DONE)]
    assert "decided since" in report.results[0].detail
    assert dead.visible() == ["a"]


@pytest.mark.long
def test_a_stale_plan_does_not_seal_a_batch_that_came_later(dead):
    dead.write(0, ["a"])
    plan = planned(dead)
    dead.spark_wrote(offsets=BATCH + 2, commits=BATCH + 1)

    report = execute(plan, dead.store, dead.participant)

    assert results(report) == [(ABORT, Result.DONE)]
    assert report.sealed is None
    assert dead.log.of_batch(BATCH + 2) == ()


def test_a_plan_from_before_the_checkpoint_was_put_back_is_refused(dead):
    dead.write(0, ["a"])
    dead.spark_wrote(offsets=BATCH + 1, commits=BATCH)
    plan = planned(dead)
    dead.store.delete([f"offsets/{BATCH + 1}", f"commits/{BATCH}"])
    dead.spark_wrote(offsets=BATCH, commits=BATCH - 1)

    with pytest.raises(CheckpointError, match="older"):
        execute(plan, dead.store, dead.participant)


@pytest.mark.parametrize("starts", [False, True])
def test_a_driver_that_decides_just_before_the_seal_wins(dead, monkeypatch, starts):
    """The seal is lost: the facts are read again with the same listing, and the COMMIT honoured.

    Also by a start, which executes the plan of facts that it has just read.
    """
    promised = dead.write(0, ["a"])
    facts = gather(dead.store, dead.participant)
    plan = make_plan(facts)
    module = execute.__globals__
    original = module["sealed"]

    def decide_meanwhile(*attempt, **told):
        if not dead.log.of_batch(BATCH):
            dead.decided(promised)
        return original(*attempt, **told)

    monkeypatch.setitem(module, "sealed", decide_meanwhile)
    report = execute(plan, dead.store, dead.participant, facts=facts if starts else None)

    assert results(report) == [(COMMIT, Result.DONE)]
    assert report.sealed is None
    assert dead.visible() == ["a"]


def test_alive_is_refused_with_the_evidence_unless_forced(dead):
    dead.write(0, ["a"])
    lives = heartbeat("preparing", application_id="app-7", batch_id=BATCH, interval_ms=12_000)
    plan = planned(dead)

    with beating(dead.store, lives, every_s=0.1), pytest.raises(PipelineAliveError, match="app-7"):
        execute(plan, dead.store, dead.participant)
    assert dead.still_open() != []
    assert dead.log.of_batch(BATCH) == ()

    execute(plan, dead.store, dead.participant, force=True)
    assert dead.still_open() == []


@pytest.mark.long
def test_nothing_to_do_is_no_refusal_for_a_live_pipeline(dead):
    dead.spark_wrote(offsets=BATCH, commits=BATCH)
    dead.store.put("commits/5", b'v1\n{"nextBatchWatermarkMs":0}')
    lives = heartbeat("waiting", batch_id=BATCH, interval_ms=12_000)
    with beating(dead.store, lives, every_s=0.1):
        plan = make_plan(gather(dead.store, dead.participant, look=True))

    assert plan.alive != ()
    assert results(execute(plan, dead.store, dead.participant)) == []


@pytest.mark.long
def test_commit_only_seals_nothing_and_aborts_nothing(dead):
    promised = dead.write(0, ["a"])
    dead.decided(promised)
    straggler = dead.write(1, ["b"])

    report = execute(planned(dead), dead.store, dead.participant, allow={COMMIT})

    assert results(report) == [(COMMIT, Result.DONE), (ABORT, Result.NOT_ALLOWED)]
    assert report.sealed is None
    assert dead.still_open() == [straggler.transactional_id]


@pytest.mark.long
def test_promised_but_timed_out_by_the_broker_is_replayed(dead):
    """The plan says COMMIT, the broker's timeout is faster: nobody is told that it is done."""
    dead.timeout_ms = 1_000
    promised = dead.write(0, ["a"])
    dead.decided(promised)
    plan = planned(dead)
    deadline = time.monotonic() + 300
    while dead.still_open():
        assert time.monotonic() < deadline
        time.sleep(0.2)

    report = execute(plan, dead.store, dead.participant)

    assert actions(plan) == [COMMIT]
    assert not [each for each in report.results if each.result is Result.DONE]
    assert actions(planned(dead)) == [REPLAY]


@pytest.mark.long
def test_an_older_open_transaction_hides_outcomes_and_recovery_tells_them_all_the_same(dead):
    """The last stable offset stands before them: the plan cannot know, execution finds out."""
    dead.write(9, ["never promised, and first in the partition"])
    lost, kept = dead.write(0, ["a"]), dead.write(1, ["b"])
    dead.decided(lost, kept)
    dead.end(lost, commit=False)
    dead.end(kept, commit=True)

    plan = planned(dead)
    report = execute(plan, dead.store, dead.participant)

    assert actions(plan) == [COMMIT, COMMIT, ABORT]
    assert "older" in plan.steps[0].reason
    assert results(report) == [
        (COMMIT, Result.CHANGED),
        (COMMIT, Result.DONE),
        (ABORT, Result.DONE),
    ]
    assert dead.visible() == ["b"]
    assert actions(planned(dead)) == [REPLAY]


def test_what_recovery_commits_for_a_dead_driver_is_noted(dead):
    """It died between decision and note: an older copy would be let in, and deliver again."""
    dead.decided(dead.write(0, ["a"]), term=1)
    [decision] = dead.log.of_batch(BATCH)
    assert dead.ledger.read().newest() is None
    execute(planned(dead), dead.store, dead.participant)
    newest = dead.ledger.read().newest()
    assert newest is not None
    assert (newest.batch, newest.decision) == (BATCH, decision.nonce)
    assert dead.visible() == ["a"]


def test_recovery_ends_nothing_under_a_prefix_of_another_checkpoint(dead):
    """Hole 4: it aborted three transactions that the other one had decided."""
    dead.ledger.forget()
    dead.ledger.claim(owner_at("/somewhere/else"))
    open_one = dead.write(0, ["a"])
    with pytest.raises(OwnershipError, match="belongs to the checkpoint /somewhere/else"):
        execute(planned(dead), dead.store, dead.participant)
    assert dead.still_open() == [open_one.transactional_id]


def test_a_prefix_that_another_checkpoint_claimed_after_the_seal_is_left_to_it(dead, monkeypatch):
    open_one = dead.write(0, ["a"])
    plan = planned(dead)

    def claimed_by_another(place: str) -> None:
        if place == "recovery-sealed":
            dead.ledger.forget()
            dead.ledger.claim(owner_at("/somewhere/else"))

    monkeypatch.setattr(f"{execute.__module__}.failpoint", claimed_by_another)
    with pytest.raises(OwnershipError, match="belongs to the checkpoint /somewhere/else"):
        execute(plan, dead.store, dead.participant)
    assert dead.still_open() == [open_one.transactional_id]


# --- The recovery of a start goes over the connection of the look before it -----------------------


MINUTE = timedelta(minutes=1)


def budget(**changes) -> TimeoutBudget:
    fields = {
        "trigger_interval": timedelta(seconds=1),
        "batch_within": MINUTE,
        "recover_within": MINUTE,
        "transaction_timeout": 5 * MINUTE,
    }
    return TimeoutBudget(**(fields | changes))


@dataclass
class Connections:
    opened: list[ConnectionPool] = field(default_factory=list)
    closed: list[ConnectionPool] = field(default_factory=list)


@pytest.fixture
def connections(monkeypatch) -> Connections:
    """Those that are opened and closed from now on."""
    noted, opens, closes = Connections(), ConnectionPool.__init__, ConnectionPool.close

    def opening(self, *given, **known):
        noted.opened.append(self)
        opens(self, *given, **known)

    def closing(self):
        noted.closed.append(self)
        closes(self)

    monkeypatch.setattr(ConnectionPool, "__init__", opening)
    monkeypatch.setattr(ConnectionPool, "close", closing)
    return noted


def test_kafka_is_reached_once_and_let_go_before_the_app_runs(dead, connections):
    dead.decided(dead.write(0, ["a"]), term=1)
    first = reached_within(budget(), dead.settings)
    recovery = Recovery(dead.store.location, dead.settings, first=first)

    recover_before_start(recovery, known_dead=lambda _: True, act=True)

    assert dead.visible() == ["a"]
    assert len(connections.opened) == 1
    assert set(connections.closed) == set(connections.opened)
    recover_before_start(recovery, known_dead=lambda _: True, act=True)
    assert len(connections.opened) == 2, "a restart, days later, opens its own"


def test_a_budget_that_does_not_hold_leaves_no_connection_behind(dead, connections):
    with pytest.raises(TimeoutBudgetError):
        reached_within(budget(transaction_timeout=MINUTE), dead.settings)

    assert len(connections.opened) == len(connections.closed) == 1
