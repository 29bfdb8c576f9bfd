"""A transaction as prepared work, and back; what is no transaction is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from airflow_eos.errors import CheckpointFormatError, ConfigurationError
from airflow_eos.kafka.transactions.identity import (
    OffsetRange,
    PreparedTransaction,
    TransactionIdentity,
    as_transaction,
    as_work,
    named,
    transaction_of,
)
from airflow_eos.kinds.kafka.participant import KafkaParticipant
from airflow_eos.protocol.decision import WorkIdentity

PREPARED = PreparedTransaction(
    "orders-etl-3-0", 7, 2, (OffsetRange("out", 1, 5, 9),), 5, "0" * 32, 1_000, 60_000
)


@pytest.mark.parametrize("transactional_id", ["etl-0-0", "-0-0", "a.b-1-2-3-4", "..-0-0"])
def test_a_key_names_one_transaction(transactional_id):
    identity = TransactionIdentity(transactional_id, 2**63 - 1, 2**15 - 1)
    assert transaction_of(named(identity, "sink")) == identity


def test_a_transaction_comes_back_from_what_a_decision_keeps_of_it():
    stored = msgspec.json.encode(as_work(PREPARED, "orders"))
    work = msgspec.json.decode(stored, type=type(as_work(PREPARED, "orders")))
    assert work == as_work(PREPARED, "orders")
    assert as_transaction(work) == PREPARED


@pytest.mark.parametrize(
    "key", ["etl", "etl-0", "etl-0-x", f"etl-0-0-{2**63}-0", f"etl-0-0-7-{2**15}", "etl-0-0-7--1"]
)
def test_a_key_of_another_grammar_is_refused(key):
    with pytest.raises(ConfigurationError, match="names no transaction"):
        transaction_of(WorkIdentity("kafka", "sink", key))


def test_work_of_another_kind_is_refused():
    with pytest.raises(ConfigurationError, match="files 'sink'"):
        transaction_of(WorkIdentity("files", "sink", "etl-0-0-7-3"))


@pytest.mark.parametrize(
    "detail",
    [
        {},
        {"written": []},
        {"written": [{"topic": "out"}]},
        {"written": [{"topic": "out", "partition": 0, "first": -1, "last": 2}]},
        {"written": [{"topic": "out", "partition": 0, "first": 0, "last": 2}], "more": 1},
    ],
)
def test_a_detail_without_a_witness_is_never_guessed_at(detail):
    work = msgspec.structs.replace(as_work(PREPARED, "sink"), detail=detail)
    with pytest.raises(CheckpointFormatError, match="not Kafka's"):
        as_transaction(work)


@pytest.mark.parametrize("theirs", ["other-eos-0-0", "etl-eu-eos-0-0", "etl-0-7"])
def test_a_decision_of_another_pipeline_ends_nothing_of_either(theirs):
    """Its file was copied over ours: theirs were committed, and ours, which it lacks, aborted."""
    nobody: Any = None
    ledger: Any = SimpleNamespace(prefix="etl")
    participant = KafkaParticipant(nobody, ledger, name="sink")
    ours, foreign = (
        as_work(msgspec.structs.replace(PREPARED, transactional_id=each), "sink")
        for each in ("etl-eos-3-0", theirs)
    )
    participant.check([ours])
    for asked in (participant.check, participant.commit, participant.outcome):
        with pytest.raises(CheckpointFormatError, match="another pipeline's decision"):
            asked([ours, foreign])
