"""A task whose transaction was aborted under it must not go on as if its first rows were there."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from airflow_eos.arrow.producer.writer import TransactionalWriter
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import FencedError, KafkaError
from airflow_eos.kafka.transactions.coordinator import end_transactions
from airflow_eos.kafka.transactions.identity import OffsetRange, PreparedTransaction
from airflow_eos.kafka.transactions.listing import list_open
from airflow_eos.local import EmbeddedKafka


def rows(value: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([value])})


@pytest.mark.usefixtures("at_once")
def test_a_task_that_writes_on_after_recovery_has_aborted_it_is_refused(
    kafka_broker: EmbeddedKafka, raw_kafka: Callable[[str], Any], topic: Callable[..., str]
) -> None:
    """The abort raises the epoch (EndTxn v5); without that, the rest of its rows would be a
    transaction of its own, under the same identity, that a driver could decide and commit."""
    kafka = raw_kafka(kafka_broker.bootstrap_servers)
    prefix, out = f"etl{uuid.uuid4().hex[:8]}", topic("out")
    writer = TransactionalWriter(kafka.wire, topic=out)
    writer.begin(f"{prefix}-eos-0-0", 60_000)
    writer.write(rows(b"first"))
    [found] = list_open(kafka.wire, prefix)
    begun = PreparedTransaction(
        transactional_id=found.transactional_id,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        written=(OffsetRange(out, 0, 0, 0),),
        rows=1,
        fingerprint="",
        opened_at_ms=0,
        timeout_ms=60_000,
    )

    end_transactions(kafka.wire, [found.identity], commit=False)
    assert kafka.closed_outcome(begun) is Outcome.ABORTED  # and its marker is in the partition

    with pytest.raises(FencedError):
        write_the_rest(writer)
    assert list_open(kafka.wire, prefix) == ()


def write_the_rest(writer: TransactionalWriter) -> None:
    try:
        writer.write(rows(b"second"))
        writer.prepare()
    except KafkaError:
        writer.abort()
        raise
