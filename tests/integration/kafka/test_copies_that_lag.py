"""Three brokers, one of them frozen: what the log shows while a replica in sync does not follow."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kafka.record import MemoryRecordsBuilder
from msgspec.structs import replace

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.messages import ProduceRequest
from airflow_eos.kafka.client.offsets import log_ends
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.identity import OffsetRange, TransactionIdentity
from airflow_eos.kafka.transactions.outcomes import GRACE_S, outcomes
from airflow_eos.local import EmbeddedKafka
from tests.integration.kafka.conftest import RawKafka, until

pytestmark = pytest.mark.slow

REQUEST_TIMED_OUT = 7
PATIENT = {
    # A frozen broker stays in sync for as long as a test needs it.
    "broker.session.timeout.ms": "120000",
    "replica.lag.time.max.ms": "120000",
}


@pytest.fixture(scope="module")
def brokers() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(PATIENT, brokers=3) as running:
        yield running


@pytest.fixture(scope="module")
def kafka(brokers: EmbeddedKafka, raw_kafka: Callable[[str], RawKafka]) -> RawKafka:
    return raw_kafka(brokers.bootstrap_servers)


@contextmanager
def frozen(brokers: EmbeddedKafka, node: int) -> Iterator[None]:
    process: Any = brokers._processes[node]._process
    os.killpg(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGCONT)


def in_sync(brokers: EmbeddedKafka, topic: str) -> list[int]:
    admin: Any = AdminClient({"bootstrap.servers": brokers.bootstrap_servers})
    # A broker that has not heard of the topic yet names no partition of it.
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return [replica for partition in partitions.values() for replica in partition.isrs]


class Behind:
    """A transaction whose second row only its leader has, while a replica in sync is frozen."""

    def __init__(self, brokers: EmbeddedKafka, kafka: RawKafka) -> None:
        self.kafka = kafka
        self.topic = brokers.create_topic(f"out-{uuid.uuid4().hex[:8]}", 1)
        # A broker that was slow to start is no replica in sync yet, and nobody waits for it.
        until(lambda: len(in_sync(brokers, self.topic)) == 3)
        name = f"{self.topic}-0-0"
        self.identity = kafka.coordinator.init(name, 60_000)
        # The first row makes the transaction known, which needs all replicas of its coordinator.
        first = kafka.write(self.identity, self.topic)
        self.leader = kafka.wire.cluster.leaders(self.topic, refresh=True)[0]
        at = OffsetRange(self.topic, 0, first.witness.first + 1, first.witness.first + 1)
        self.prepared = replace(first, written=(at,))
        busy = {self.leader, kafka.wire.cluster.coordinators([name])[name]}
        self.follower = next(node for node in (1, 2, 3) if node not in busy)

    def write_more(self) -> None:
        """The second row; nobody acknowledges it, and the leader has it."""
        kind = ProduceRequest.TopicProduceData
        data = kind.PartitionProduceData(index=0, records=row_of(self.identity, sequence=1))
        message = ProduceRequest(
            transactional_id=self.identity.transactional_id,
            acks=-1,
            timeout_ms=500,
            topic_data=[kind(name=self.topic, partition_data=[data])],
            max_version=12,
        )
        answer = self.kafka.wire.request(message, node_id=self.leader)
        code = answer.responses[0].partition_responses[0].error_code
        assert code == REQUEST_TIMED_OUT


def row_of(identity: TransactionIdentity, *, sequence: int) -> bytes:
    builder = MemoryRecordsBuilder(
        magic=2,
        compression_type=0,
        batch_size=1 << 20,
        transactional=True,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=sequence,
    )
    builder.append(timestamp=1, key=b"k", value=b"more")
    builder.close()
    return bytes(builder.buffer())


@pytest.mark.long
def test_a_high_watermark_that_lags_is_waited_for_and_nobody_is_asked(
    brokers: EmbeddedKafka, kafka: RawKafka
) -> None:
    """It lags as long as a replica in sync does not follow; UNKNOWN would stand for ever."""
    behind = Behind(brokers, kafka)
    witness = behind.prepared.witness
    with frozen(brokers, behind.follower):
        behind.write_more()
        ends = log_ends(kafka.wire, behind.topic, 0, leader=behind.leader)
        assert ends == (0, witness.first + 1)
        # A short patience with the frozen one, which may be asked for leaders, too; not for a
        # first connection: it takes one and says nothing for all the time that is allowed.
        awake = brokers.bootstrap_servers.split(",")[behind.leader - 1]
        hasty = {"bootstrap.servers": awake, "socket.timeout.ms": 1000}
        with (
            ConnectionPool(KafkaSettings.from_librdkafka(hasty)) as wire,
            pytest.raises(KafkaUnavailableError, match="replica in sync"),
        ):
            outcomes(wire, [behind.prepared], deadline_s=2 * GRACE_S)
    until(lambda: kafka.outcome(behind.prepared) is Outcome.OPEN)
    kafka.end(behind.prepared)
    assert kafka.closed_outcome(behind.prepared) is Outcome.COMMITTED


def test_a_follower_is_not_asked_where_the_log_ends(
    brokers: EmbeddedKafka, kafka: RawKafka
) -> None:
    behind = Behind(brokers, kafka)
    assert log_ends(kafka.wire, behind.topic, 0, leader=behind.follower) is None
    assert log_ends(kafka.wire, behind.topic, 0, leader=behind.leader) == (0, 1)
