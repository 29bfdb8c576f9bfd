"""What one partition's answer to a read_committed Fetch says, on answers made by hand."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import kafka.errors as kafka_errors
import pytest

from airflow_eos.errors import KafkaError, TopicError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.transactions.identity import OffsetRange, PreparedTransaction
from airflow_eos.kafka.transactions.outcomes import Glimpse, _read
from airflow_eos.protocol.decision import Outcome

PRODUCER, EPOCH, WITNESS = 77, 5, 100
PREPARED = PreparedTransaction(
    "t-0-0", PRODUCER, EPOCH, (OffsetRange("out", 0, WITNESS, 109),), 10, "", 0, 60_000
)


def batch(first=WITNESS, rows=10, producer=PRODUCER, epoch=EPOCH, attributes=0x10, count=None):
    return struct.pack(
        ">qiibIhiqqqhii",
        *(first, 49, 0, 2, 0, attributes, rows - 1, 0, 0, producer, epoch, 0),
        rows if count is None else count,
    )


def answer(records=b"", stable=1000, high=1000, aborted=(), code=0):
    entries = [SimpleNamespace(producer_id=p, first_offset=o) for p, o in aborted]
    return SimpleNamespace(
        error_code=code,
        high_watermark=high,
        last_stable_offset=stable,
        aborted_transactions=entries or None,
        records=records,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answer(batch()), Outcome.COMMITTED),
        (answer(batch(first=WITNESS - 3)), Outcome.COMMITTED),
        (answer(batch(), aborted=[(PRODUCER, WITNESS)]), Outcome.ABORTED),
        (answer(batch(), aborted=[(9, 50), (PRODUCER, WITNESS - 40)]), Outcome.ABORTED),
        (answer(batch(), aborted=[(PRODUCER, WITNESS + 1)]), Outcome.COMMITTED),
        (answer(batch(), aborted=[(PRODUCER + 1, WITNESS)]), Outcome.COMMITTED),
        (answer(stable=WITNESS), Outcome.OPEN),
        (answer(stable=WITNESS - 50), Outcome.OPEN),
        (answer(batch(), stable=WITNESS + 1), Outcome.COMMITTED),
        (answer(batch(epoch=EPOCH + 1)), Glimpse.REPLACED),
        (answer(batch(epoch=EPOCH - 1), aborted=[(PRODUCER, WITNESS)]), Glimpse.REPLACED),
        (answer(batch(producer=-1, epoch=-1, attributes=0)), Glimpse.REPLACED),
        (answer(batch(count=0)), Outcome.UNKNOWN),
        (answer(batch(count=0), aborted=[(PRODUCER, WITNESS)]), Outcome.UNKNOWN),
        (answer(batch(attributes=0x30)), Glimpse.REPLACED),
        (answer(batch(first=WITNESS + 1)), Outcome.UNKNOWN),
        (answer(b""), Glimpse.NOTHING),
        (answer(code=faults.OFFSET_OUT_OF_RANGE), Glimpse.HIDDEN),
        (answer(high=WITNESS, stable=WITNESS), Glimpse.HIDDEN),
        (answer(high=WITNESS + 1, stable=WITNESS), Outcome.OPEN),
    ],
)
def test_what_the_log_says(given, expected):
    assert _read(PREPARED, given) is expected


def test_no_answer_is_no_outcome():
    assert _read(PREPARED, None) is None


@pytest.mark.parametrize(
    "error",
    [
        kafka_errors.NotLeaderForPartitionError,
        kafka_errors.UnknownTopicOrPartitionError,
        kafka_errors.OffsetNotAvailableError,
        kafka_errors.FencedLeaderEpochError,
        kafka_errors.KafkaStorageError,
    ],
)
def test_a_leader_that_moves_is_asked_again(error):
    assert _read(PREPARED, answer(code=error.errno)) is None


def test_a_missing_acl_and_a_strange_error_are_errors():
    with pytest.raises(TopicError, match="Read on Topic 'out'"):
        _read(PREPARED, answer(code=faults.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaError, match="UNKNOWN"):
        _read(PREPARED, answer(code=-1))
