"""A topic's limit is remembered for a minute, but never against whoever has just raised it."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest

from airflow_eos.errors import RowError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.producer.writer import TransactionalWriter
from tests.integration.hazards.test_shapes import set_limit


def test_a_limit_raised_because_of_a_row_counts_at_once(kafka_broker, topic):
    servers = kafka_broker.bootstrap_servers
    name = topic("limited", 1, {"max.message.bytes": "3000"})
    large = pa.RecordBatch.from_pydict({"value": [os.urandom(9000)]})
    with ConnectionPool(KafkaSettings.from_librdkafka({"bootstrap.servers": servers})) as wire:
        writer = TransactionalWriter(wire, topic=name)
        writer.begin(None, 60_000)
        writer.write(large)
        with pytest.raises(RowError, match=r"max\.message\.bytes"):
            writer.prepare()
        writer.abort()
        set_limit(servers, name, 100_000)
        writer.begin(None, 60_000)
        writer.write(large)
        written = writer.prepare()
    assert written is not None
    assert written.rows == 1
