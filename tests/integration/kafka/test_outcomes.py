"""The outcome table of docs/protocol.md, row by row, on brokers of each transaction version."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka import participant as settle_module
from airflow_eos.kafka.client.offsets import topic_ids
from airflow_eos.kafka.participant import settle
from airflow_eos.kafka.transactions.coordinator import EndResult, end_transactions
from airflow_eos.kafka.transactions.hanging import require_committed_everywhere
from airflow_eos.kafka.transactions.outcomes import outcomes
from airflow_eos.local.broker import EmbeddedKafka

FAST = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transactional.id.expiration.ms": "8000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    "transaction.state.log.num.partitions": "4",
    "log.cleaner.backoff.ms": "100",
    "log.segment.delete.delay.ms": "100",
}


@pytest.fixture(
    scope="module",
    params=[2, pytest.param(1, marks=pytest.mark.proof), 0],
    ids=lambda v: f"transaction-version-{v}",
)
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(FAST, features={"transaction.version": request.param}) as running:
        yield running


@pytest.fixture(scope="module")
def kafka(broker: EmbeddedKafka, raw_kafka: Callable[[str], Any]) -> Any:
    return raw_kafka(broker.bootstrap_servers)


@pytest.fixture
def out(broker: EmbeddedKafka) -> str:
    return broker.create_topic(f"out-{uuid.uuid4().hex[:8]}", 2)


@pytest.fixture(scope="module", autouse=True)
def expiring(broker: EmbeddedKafka, kafka: Any) -> dict[Outcome, Any]:
    """Ended at the start of the module, so that the ids expire while the other tests run."""
    topic = broker.create_topic(f"expiring-{uuid.uuid4().hex[:8]}", 1)
    committed, aborted = kafka.prepare("old-0-0", topic), kafka.prepare("old-1-0", topic)
    kafka.end(committed)
    kafka.end(aborted, commit=False)
    return {Outcome.COMMITTED: committed, Outcome.ABORTED: aborted}


@pytest.mark.proof
def test_the_wire_knows_the_finalized_transaction_version(kafka, request):
    assert f"transaction-version-{kafka.wire.cluster.transaction_version}" in request.node.name


def test_open(kafka, out):
    prepared = kafka.prepare("t-0-0", out)
    assert kafka.outcome(prepared) is Outcome.OPEN


@pytest.mark.proof
def test_committed(kafka, out):
    prepared = kafka.prepare("t-0-0", out)
    assert kafka.end(prepared) is EndResult.DONE
    assert kafka.closed_outcome(prepared) is Outcome.COMMITTED


def test_committed_twice_is_answered_the_same(kafka, out):
    prepared = kafka.prepare("t-0-0", out)
    assert [kafka.end(prepared) for _ in range(3)] == [EndResult.DONE] * 3


@pytest.mark.proof
def test_aborted_by_a_client(kafka, out):
    prepared = kafka.prepare("t-0-0", out)
    assert kafka.end(prepared, commit=False) is EndResult.DONE
    assert kafka.end(prepared) is EndResult.LOOK
    assert kafka.closed_outcome(prepared) is Outcome.ABORTED


def test_an_abort_after_the_commit_changes_nothing(kafka, out):
    prepared = kafka.prepare("t-0-0", out)
    kafka.end(prepared)
    assert kafka.end(prepared, commit=False) is EndResult.LOOK
    assert kafka.closed_outcome(prepared) is Outcome.COMMITTED


@pytest.mark.proof
def test_aborted_by_its_timeout(kafka, out):
    prepared = kafka.prepare("t-0-0", out, timeout_ms=500)
    kafka.await_no_longer_open(prepared)
    assert kafka.end(prepared) is EndResult.LOOK
    assert kafka.outcome(prepared) is Outcome.ABORTED


@pytest.mark.proof
def test_the_id_taken_again_after_the_commit(kafka, out):
    first = kafka.prepare("t-0-0", out)
    kafka.end(first)
    second = kafka.prepare("t-0-0", out)
    assert kafka.end(first) is EndResult.LOOK
    assert kafka.outcome(first) is Outcome.COMMITTED
    assert kafka.outcome(second) is Outcome.OPEN


@pytest.mark.proof
def test_the_id_taken_again_while_open(kafka, out):
    first = kafka.prepare("t-0-0", out)
    second = kafka.prepare("t-0-0", out)
    assert kafka.end(first) is EndResult.LOOK
    assert kafka.end(second) is EndResult.DONE
    assert kafka.closed_outcome(second) is Outcome.COMMITTED
    assert kafka.outcome(first) is Outcome.ABORTED


def test_ended_by_a_zombie_only_under_its_own_epoch(kafka, out):
    first = kafka.prepare("t-0-0", out)
    second = kafka.prepare("t-0-0", out)
    assert kafka.end(first, commit=False) is EndResult.LOOK
    assert kafka.outcome(second) is Outcome.OPEN


@pytest.mark.proof
def test_the_id_expired(kafka, expiring, wait_until):
    for outcome, prepared in expiring.items():
        wait_until(lambda prepared=prepared: kafka.end(prepared, commit=True) is EndResult.LOOK)
        assert kafka.outcome(prepared) is outcome


def test_an_id_never_used_is_looked_up_not_guessed(kafka, out):
    prepared = kafka.prepare("t-0-0", out)
    stranger = prepared.identity.__class__("never-0-0", 4711, 0)
    assert end_transactions(kafka.wire, [stranger], commit=True) == {stranger: EndResult.LOOK}


def test_rows_past_retention_are_unknown(kafka, out):
    prepared = kafka.prepare("t-0-0", out)
    kafka.end(prepared)
    kafka.await_no_longer_open(prepared)
    kafka.plain(out, [(b"k", b"v")])
    kafka.delete_records(out, prepared.witness.last + 1)
    assert kafka.outcome(prepared) is Outcome.UNKNOWN


@pytest.mark.proof
@pytest.mark.parametrize("commit", [True, False])
def test_rows_that_compaction_removed_are_unknown(kafka, broker, wait_until, commit):
    topic = broker.create_topic(
        f"compacted-{uuid.uuid4().hex[:8]}",
        1,
        {
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.001",
            "delete.retention.ms": "0",
        },
    )
    prepared = kafka.prepare("t-0-0", topic, rows=[(b"a", b"1"), (b"b", b"1")])
    kafka.end(prepared, commit=commit)
    truth = kafka.closed_outcome(prepared)

    def compacted() -> bool:
        kafka.plain(topic, [(b"a", b"2"), (b"b", b"2")])
        outcome = kafka.outcome(prepared)
        assert outcome in {truth, Outcome.UNKNOWN}
        return outcome is Outcome.UNKNOWN

    wait_until(compacted)


@pytest.mark.proof
def test_a_topic_that_is_gone_or_new_is_unknown(kafka, broker, out):
    prepared = kafka.prepare("t-0-0", out)
    kafka.end(prepared)
    kafka.await_no_longer_open(prepared)
    kafka.delete_topic(out)
    assert kafka.outcome(prepared) is Outcome.UNKNOWN
    broker.create_topic(out, 1)
    assert kafka.outcome(prepared) is Outcome.UNKNOWN
    kafka.plain(out, [(b"k", b"somebody else's")])
    assert kafka.outcome(prepared) is Outcome.UNKNOWN


@pytest.mark.parametrize("rows", [0, 1, 9], ids=["empty", "with a row", "with more rows"])
def test_a_commit_whose_topic_was_made_again_is_not_known_whatever_its_coordinator_says(
    kafka, broker, rows
):
    out = broker.create_topic(f"again-{uuid.uuid4().hex[:8]}", 1)
    kafka.plain(out, [(b"k", b"delivered before")] * 3)
    prepared = kafka.prepare("t-0-0", out)
    kafka.delete_topic(out)
    broker.create_topic(out, 1)
    if rows:
        kafka.plain(out, [(b"k", b"another's")] * rows)
    assert settle(kafka.wire, [prepared]) == {prepared.identity: Outcome.COMMITTED}
    assert require_committed_everywhere(kafka.wire, [prepared]) == {prepared.identity}


def test_a_commit_whose_topic_was_made_again_is_not_known_though_its_marker_is_there(kafka, broker):
    """The coordinator writes it by the topic's name: no log ends before the first of our rows."""
    out = broker.create_topic(f"again-{uuid.uuid4().hex[:8]}", 1)
    prepared = [kafka.prepare(f"t-{n}-0", out, rows=[(b"k", b"v")] * 5) for n in range(3)]
    kafka.delete_topic(out)
    broker.create_topic(out, 1)
    assert set(settle(kafka.wire, prepared).values()) == {Outcome.COMMITTED}
    lost = require_committed_everywhere(kafka.wire, prepared)
    assert lost == {each.identity for each in prepared}


def test_a_commit_whose_topic_was_made_again_is_not_known_while_it_is_held_up_by_another(
    kafka, broker
):
    """What is open at the place of our rows hides whose they are; the topic's id does not."""
    out = broker.create_topic(f"again-{uuid.uuid4().hex[:8]}", 1)
    prepared = kafka.prepare("t-0-0", out)
    [at] = prepared.written
    noted = structs.replace(at, topic_id=topic_ids(kafka.wire, [out])[out])
    prepared = structs.replace(prepared, written=(noted,))
    kafka.delete_topic(out)
    broker.create_topic(out, 1)
    kafka.prepare("other-0-0", out, rows=[(b"k", b"another's")] * 9)
    assert settle(kafka.wire, [prepared]) == {prepared.identity: Outcome.COMMITTED}
    assert require_committed_everywhere(kafka.wire, [prepared]) == {prepared.identity}


def test_a_commit_whose_rows_are_past_retention_or_whose_topic_is_gone_is_a_commit(kafka, broker):
    out = broker.create_topic(f"past-{uuid.uuid4().hex[:8]}", 1)
    prepared = kafka.prepare("t-0-0", out)
    assert settle(kafka.wire, [prepared]) == {prepared.identity: Outcome.COMMITTED}
    kafka.await_no_longer_open(prepared)
    kafka.plain(out, [(b"k", b"another's")])
    kafka.delete_records(out, 2)
    assert require_committed_everywhere(kafka.wire, [prepared]) == set()
    kafka.delete_topic(out)
    assert require_committed_everywhere(kafka.wire, [prepared]) == set()


def test_a_commit_held_up_by_an_older_transaction_is_a_commit(kafka, out):
    kafka.prepare("other-0-0", out)
    ours = kafka.prepare("t-0-0", out)
    assert settle(kafka.wire, [ours]) == {ours.identity: Outcome.COMMITTED}
    assert require_committed_everywhere(kafka.wire, [ours]) == set()


def test_the_outcome_hidden_behind_another_open_transaction_is_open(kafka, out):
    other, ours = kafka.prepare("other-0-0", out), kafka.prepare("t-0-0", out)
    kafka.end(ours)
    assert kafka.outcome(ours) is Outcome.OPEN
    kafka.end(other, commit=False)
    assert kafka.closed_outcome(ours) is Outcome.COMMITTED
    assert kafka.closed_outcome(other) is Outcome.ABORTED


def test_outcomes_of_one_producer_id_are_kept_apart_by_offset(kafka, out):
    aborted = kafka.prepare("t-0-0", out)
    kafka.end(aborted, commit=False)
    committed = kafka.prepare("t-0-0", out)
    kafka.end(committed)
    again = kafka.prepare("t-0-0", out)
    kafka.end(again, commit=False)
    kafka.await_no_longer_open(again)
    assert list(outcomes(kafka.wire, [aborted, committed, again]).values()) == [
        Outcome.ABORTED,
        Outcome.COMMITTED,
        Outcome.ABORTED,
    ]


@pytest.mark.proof
def test_settle_commits_what_is_open_and_looks_up_the_rest(kafka, out):
    opened = kafka.prepare("t-0-0", out)
    aborted = kafka.prepare("t-1-0", out, partition=1)
    kafka.end(aborted, commit=False)
    taken = kafka.prepare("t-2-0", out)
    kafka.end(taken)
    kafka.end(kafka.prepare("t-2-0", out))
    settled = settle(kafka.wire, [opened, aborted, taken])
    assert settled == {
        opened.identity: Outcome.COMMITTED,
        aborted.identity: Outcome.ABORTED,
        taken.identity: Outcome.COMMITTED,
    }


@pytest.mark.proof
def test_settle_never_returns_open(kafka, out):
    other = kafka.prepare("other-0-0", out)
    ours = kafka.prepare("t-0-0", out)
    kafka.end(ours, commit=False)
    with pytest.raises(KafkaUnavailableError, match="still open"):
        settle(kafka.wire, [ours], deadline_s=0.5)
    kafka.end(other)
    assert settle(kafka.wire, [ours]) == {ours.identity: Outcome.ABORTED}


def test_a_lost_answer_to_the_commit_is_not_read_as_an_outcome(kafka, out, monkeypatch):
    prepared = [kafka.prepare(f"t-{i}-0", out) for i in range(3)]
    submit = kafka.wire.submit
    lost: list[Any] = []

    def losing(message, **kwargs):
        future = submit(message, **kwargs)
        if type(message).__name__ == "EndTxnRequest" and len(lost) < 4:
            future.result(10)  # the broker has acted, we never hear of it
            lost.append(future)
            future = future.__class__()
            future.set_exception(KafkaUnavailableError("the connection broke"))
        return future

    monkeypatch.setattr(kafka.wire, "submit", losing)
    settled = settle(kafka.wire, prepared)
    assert len(lost) == 4
    assert set(settled.values()) == {Outcome.COMMITTED}


def test_a_failpoint_lies_between_two_transactions_of_the_settle_step(kafka, out, monkeypatch):
    prepared = [kafka.prepare(f"t-{i}-0", out, partition=i) for i in range(2)]
    monkeypatch.setenv("EOS_FAILPOINTS", "settled-some=raise")
    with pytest.raises(RuntimeError, match="settled-some"):
        settle(kafka.wire, prepared)
    assert kafka.closed_outcome(prepared[0]) is Outcome.COMMITTED
    assert kafka.outcome(prepared[1]) is Outcome.OPEN
    monkeypatch.delenv("EOS_FAILPOINTS")
    assert set(settle_module.settle(kafka.wire, prepared).values()) == {Outcome.COMMITTED}
