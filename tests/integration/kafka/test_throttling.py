"""A producer quota of the broker slows a writer down, and that is all it does."""

from __future__ import annotations

import random
import time
from typing import Any

import pyarrow as pa
import pytest
from kafka.protocol.admin import AlterClientQuotasRequest

from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.sink import Producer, open_writer
from airflow_eos.kafka.transactions.coordinator import end_transactions
from airflow_eos.local import EmbeddedKafka

pytestmark = pytest.mark.proof

BYTES_PER_S = 500_000
ROWS, ROW_BYTES = 800, 10_000
"""8 MB; Kafka measures over ten seconds (quota.window.num), so the first 5 MB pass at any pace."""


def limit(wire: ConnectionPool, client_id: str) -> None:
    entry = AlterClientQuotasRequest.EntryData
    request = AlterClientQuotasRequest(
        entries=[
            entry(
                entity=[entry.EntityData(entity_type="client-id", entity_name=client_id)],
                ops=[entry.OpData(key="producer_byte_rate", value=BYTES_PER_S, remove=False)],
            )
        ],
        validate_only=False,
    )
    (answer,) = wire.request(request).entries
    assert answer.error_code == 0, answer


def written(settings: KafkaSettings, producer: Producer, topic: str, values: list[bytes]) -> Any:
    """Write and commit all; how long the writing took."""
    writer: Any = open_writer(settings, producer=producer, topic=topic, compression="none")
    with writer._wire:
        started = time.monotonic()
        writer.begin(f"{topic}-0-0", 120_000)
        for start in range(0, ROWS, 50):
            rows = pa.array(values[start : start + 50], pa.binary())
            writer.write(pa.RecordBatch.from_pydict({"value": rows}))
        prepared = writer.prepare()
        took = time.monotonic() - started
        end_transactions(writer._wire, [prepared.identity], commit=True)
    return took


@pytest.mark.parametrize("producer", ["arrow", pytest.param("librdkafka", marks=pytest.mark.proof)])
def test_a_throttled_writer_is_slower_loses_nothing_and_keeps_the_order(
    kafka_broker: EmbeddedKafka, topic, read, producer
):
    noise = random.Random(1)
    values = [b"%05d" % i + noise.randbytes(ROW_BYTES) for i in range(ROWS)]
    client_id = f"throttled-{producer}"
    settings = KafkaSettings.from_librdkafka(
        {"bootstrap.servers": kafka_broker.bootstrap_servers, "client.id": client_id}
    )
    slow = topic("slow")
    with ConnectionPool(settings) as wire:
        limit(wire, client_id)
    # All but the last request wait for the quota: what is beyond ten seconds' worth takes time.
    due = (ROWS * ROW_BYTES - 1_100_000 - 10 * BYTES_PER_S) / BYTES_PER_S
    throttled = written(settings, producer, slow, values)
    for _ in range(5):
        if throttled > due * 0.8:
            break
        slow = topic("slower")  # a quota holds a moment after it was acknowledged
        throttled = written(settings, producer, slow, values)
    assert throttled > due * 0.8
    assert [m.value() for m in read(slow)] == values
