"""A person's word about a transaction: once, for ever, and about that transaction only."""

from __future__ import annotations

import pytest

from airflow_eos.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.checkpoint.rulings import read_rulings, resolve, skip_input, skipped_input
from airflow_eos.errors import CheckpointFormatError, ConfigurationError, DecisionNeededError
from airflow_eos.kafka.transactions.identity import (
    TransactionIdentity,
    belongs_to_prefix,
    named,
    transactional_id_of,
)
from airflow_eos.kinds.kafka.sink import KafkaSink
from airflow_eos.protocol.decision import Outcome, WorkIdentity
from tests.unit.recovery.facts_of import commit, prepared

ONE = WorkIdentity("kafka", "sink", "etl-0-0-7-3")
NEXT = WorkIdentity("kafka", "sink", "etl-0-0-7-4")
PATH = "eos/rulings/etl-0-0-7-3.json"


@pytest.fixture
def store(tmp_path):
    return CheckpointStore.open(tmp_path)


def test_a_ruling_is_about_one_epoch_only(store):
    resolve(store, ONE, Outcome.COMMITTED)

    assert read_rulings(store, [ONE, NEXT]) == {ONE: Outcome.COMMITTED}


def test_the_same_ruling_again_is_no_error(store):
    first = resolve(store, ONE, Outcome.ABORTED)

    assert resolve(store, ONE, Outcome.ABORTED) == first


def test_the_opposite_ruling_is_refused(store):
    resolve(store, ONE, Outcome.COMMITTED)

    with pytest.raises(DecisionNeededError, match="'committed'"):
        resolve(store, ONE, Outcome.ABORTED)


@pytest.mark.parametrize("outcome", [Outcome.OPEN, Outcome.UNKNOWN])
def test_only_committed_or_aborted_can_be_ruled(store, outcome):
    with pytest.raises(ConfigurationError):
        resolve(store, ONE, outcome)


@pytest.mark.parametrize("name", ["../../x-0-0", "a/b-0-0", "", "..", "a\n-0-0"])
def test_a_key_cannot_leave_the_checkpoint(store, name):
    with pytest.raises(ConfigurationError, match="no key"):
        resolve(store, WorkIdentity("kafka", "sink", name), Outcome.COMMITTED)


@pytest.mark.parametrize("prefix", [".hidden", "-", "..", "a" * 200, "etl-0-0", "-0-0"])
def test_every_prefix_that_the_sink_takes_can_be_ruled_about(store, prefix):
    KafkaSink("localhost:9092", "out", prefix)
    transaction = TransactionIdentity(transactional_id_of(prefix, 0, 0), 7, 3)
    one = named(transaction, "sink")
    resolve(store, one, Outcome.COMMITTED)

    assert read_rulings(store, [one]) == {one: Outcome.COMMITTED}
    assert belongs_to_prefix(transaction.transactional_id, prefix)


def test_a_ruling_that_was_copied_is_refused(store):
    resolve(store, ONE, Outcome.COMMITTED)
    store.put("eos/rulings/etl-0-0-7-4.json", store.get(PATH))

    with pytest.raises(DecisionNeededError, match="copied"):
        read_rulings(store, [NEXT])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"{}",
        b'{"format_version":1}',
        b'{"format_version":2}',
        b'{"format_version":3}',
        b'{"format_version":1,"transaction":{"transactional_id":"a-0-0"}}',
    ],
)
def test_a_garbled_ruling_is_never_guessed_at(store, data):
    store.put(PATH, data)

    with pytest.raises(CheckpointFormatError):
        read_rulings(store, [ONE])
    with pytest.raises(CheckpointFormatError):
        resolve(store, ONE, Outcome.COMMITTED)


def test_a_ruling_against_what_a_later_commit_proves_is_refused(store):
    """The first piece was named again: it was lost when that was decided."""
    first, again = prepared(0, content="a"), prepared(0, content="a", epoch=1)
    store.put("offsets/5", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n{"in":{"0":9}}')
    log = DecisionLog(store)
    log.record(commit(first))
    log.record(commit(again, attempt=2))
    with pytest.raises(ConfigurationError, match="'aborted' is proven") as refused:
        resolve(store, first.identity, Outcome.COMMITTED)
    assert refused.value.remedies[0].start
    assert read_rulings(store, [first.identity]) == {}
    assert resolve(store, again.identity, Outcome.COMMITTED).outcome is Outcome.COMMITTED


SKIPPED = "eos/rulings/input/orders/3/10-19.json"


def test_offsets_that_are_stepped_over_are_told_of_the_topics_that_are_read_and_of_no_other(store):
    assert skipped_input(store, ["orders"]) == ()
    first = skip_input(store, "orders", 3, 10, 19, ruled_by="ann")
    hidden = skip_input(store, ".orders", 0, 0, 0, ruled_by="ann")
    assert store.get(SKIPPED) is not None
    assert skip_input(store, "orders", 3, 10, 19, ruled_by="bob") == first, "it stands for ever"
    assert skipped_input(store, ["orders"]) == (first,)
    assert skipped_input(store, [".orders", "orders"]) == (hidden, first)


@pytest.mark.parametrize("place", ["orders/3/10-29", "orders/4/10-19", "other/3/10-19"])
def test_offsets_ruled_elsewhere_are_not_stepped_over(store, place):
    skip_input(store, "orders", 3, 10, 19, ruled_by="ann")
    store.put(f"eos/rulings/input/{place}.json", store.get(SKIPPED))
    with pytest.raises(DecisionNeededError, match="copied"):
        skipped_input(store, ["orders", "other"])


@pytest.mark.parametrize("data", [b"", b"{", b'{"format_version":1}', b'{"format_version":2}'])
def test_a_garbled_ruling_about_the_input_is_never_guessed_at(store, data):
    store.put(SKIPPED, data)
    with pytest.raises(CheckpointFormatError):
        skipped_input(store, ["orders"])
