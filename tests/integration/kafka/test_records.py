"""Any Arrow batch, read back by librdkafka and by Kafka's own Java consumer, CRCs checked."""

from __future__ import annotations

import base64
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_eos.arrow.producer.writer import TransactionalWriter
from airflow_eos.kafka.client.codecs import NAMES
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.coordinator import end_transactions
from airflow_eos.local import EmbeddedKafka, broker_jars
from airflow_eos.local.jars import java_program, logging_jars
from tests.support.jvm import SHORT_LIVED
from tests.unit.kafka.record_rows import HEADERS, expected, record_rows

pytestmark = pytest.mark.long

JAVA = Path(__file__).parents[2] / "java"
NO_TIME = -1
# Hypothesis picks times from 1970 to the year 292278994, which brokers refuse by default.
ANY_TIME = {
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "retention.ms": "-1",
    "segment.ms": str(2**63 - 1),
}


@pytest.fixture(scope="module")
def wire(kafka_broker: EmbeddedKafka) -> Iterator[ConnectionPool]:
    servers = {"bootstrap.servers": kafka_broker.bootstrap_servers}
    with ConnectionPool(KafkaSettings.from_librdkafka(servers)) as opened:
        yield opened


@pytest.fixture(scope="module")
def consumer(kafka_broker: EmbeddedKafka) -> Iterator[Any]:
    opened = Consumer(
        {
            "bootstrap.servers": kafka_broker.bootstrap_servers,
            "group.id": "records",
            "isolation.level": "read_committed",
            "check.crcs": True,
            "enable.auto.commit": False,
        }
    )
    yield opened
    opened.close()


def write(wire: ConnectionPool, topic: str, batches: list[pa.RecordBatch], compression: str) -> Any:
    writer = TransactionalWriter(wire, topic=topic, compression=compression)
    writer.begin("records-0-0", 60_000)
    for rows in batches:
        writer.write(rows)
    written = writer.prepare()
    assert written is not None
    assert written.identity is not None
    end_transactions(wire, [written.identity], commit=True)
    return written.written[0]


def without_now(row: tuple[Any, ...], since_ms: int) -> tuple[Any, ...]:
    """A time that the writer filled in becomes ``NO_TIME``, once it is known to be about now."""
    key, value, at, headers = row
    return key, value, NO_TIME if since_ms <= at <= time.time() * 1000 else at, headers


def as_seen_from_c(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """librdkafka hands out the names of headers as C strings, which end at their first NUL."""
    *fields, headers = row
    return (*fields, [(name.split("\0")[0], value) for name, value in headers])


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(record_rows(), min_size=1, max_size=8), st.sampled_from(NAMES))
def test_librdkafka_reads_any_arrow_batch_back_equal(
    kafka_broker, any_time_topic, wire, consumer, batches, compression
):
    since_ms = int(time.time() * 1000)
    written = write(wire, any_time_topic, batches, compression)
    wanted = [as_seen_from_c(row) for rows in batches for row in expected(rows, NO_TIME)]

    consumer.assign([TopicPartition(any_time_topic, 0, written.first)])
    found: list[Any] = []
    while len(found) < len(wanted):
        found += consumer.consume(len(wanted) - len(found), timeout=10)
    seen = [(m.key(), m.value(), m.timestamp()[1], list(m.headers() or [])) for m in found]

    assert [without_now(row, since_ms) for row in seen] == wanted


@pytest.fixture(scope="module")
def any_time_topic(kafka_broker: EmbeddedKafka) -> str:
    return kafka_broker.create_topic(f"any-{uuid.uuid4().hex[:8]}", config=ANY_TIME)


def java(source: str, *arguments: str, stdin: str = "") -> list[str]:
    """Run a single-file program with Kafka's client library."""
    jars = os.pathsep.join(map(str, (*broker_jars(), *logging_jars())))
    ran = subprocess.run(
        [java_program(), *SHORT_LIVED.split(), "-cp", jars, str(JAVA / source), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout.splitlines()


def mixed_rows() -> pa.RecordBatch:
    """Every kind of field next to every other one."""
    count = 400
    sizes = [0, 1, 11, 12, 13, 63, 64, 8_191, 8_192, 65_535, 65_536, 100_000]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array(
                [None if i % 5 == 0 else b"k" * (i % 20) for i in range(count)], pa.binary()
            ),
            "value": pa.array(
                [
                    None if i % 7 == 0 else bytes([i % 256]) * sizes[i % len(sizes)]
                    for i in range(count)
                ],
                pa.large_binary(),
            ),
            "timestamp": pa.array(
                [1_790_000_000_000 + (-1) ** i * i * 1_000 for i in range(count)],
                pa.timestamp("ms"),
            ),
            "headers": pa.array(
                [
                    None
                    if i % 3 == 0
                    else [
                        {"key": f"h{j}-ü", "value": None if j % 2 else bytes([j])}
                        for j in range(i % 4)
                    ]
                    for i in range(count)
                ],
                HEADERS,
            ),
        }
    )


def from_base64(text: str) -> bytes | None:
    return None if text == "-" else base64.b64decode(text[1:])


def test_kafkas_java_consumer_reads_every_codec_back_equal(kafka_broker, topic, wire):
    name = topic()
    rows = mixed_rows()
    for compression in NAMES:
        write(wire, name, [rows], compression)

    wanted = expected(rows) * len(NAMES)
    lines = java("ReadTopic.java", kafka_broker.bootstrap_servers, name, str(len(wanted)))

    found = []
    for line in lines:
        _, _, at, *rest = line.split(" ")
        key, value, *headers = map(from_base64, rest)
        pairs = zip(headers[::2], headers[1::2], strict=True)
        found.append((key, value, int(at), [((k or b"").decode(), v) for k, v in pairs]))
    assert found == wanted
