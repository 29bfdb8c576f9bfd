"""What readers see, and transactions opened by raw requests, in exactly the state a test needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka.protocol.admin import DeleteRecordsRequest, DeleteTopicsRequest
from kafka.record import MemoryRecordsBuilder

from airflow_eos.arrow.producer import writer
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.messages import ProduceRequest
from airflow_eos.kafka.client.offsets import LATEST, partitions_of, positions
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.coordinator import (
    EndResult,
    TransactionCoordinator,
    end_transactions,
)
from airflow_eos.kafka.transactions.identity import (
    OffsetRange,
    PreparedTransaction,
    TransactionIdentity,
)
from airflow_eos.kafka.transactions.outcomes import outcomes
from airflow_eos.local import EmbeddedKafka


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Arrow writer gathers nothing: a batch has been sent when ``write`` returns."""
    monkeypatch.setattr(writer, "GATHER_BYTES", 1)
    monkeypatch.setattr(writer, "GATHER_BYTES_A_PARTITION", 0)
    hand_over = writer.TransactionalWriter._hand_over

    def and_take_back(self: writer.TransactionalWriter, current: Any) -> None:
        hand_over(self, current)
        self._take_back()

    monkeypatch.setattr(writer.TransactionalWriter, "_hand_over", and_take_back)


class RawKafka:
    """A wire, a coordinator, and transactions prepared, ended and looked at by hand."""

    def __init__(self, bootstrap_servers: str) -> None:
        settings = KafkaSettings.from_librdkafka({"bootstrap.servers": bootstrap_servers})
        self.wire = ConnectionPool(settings)
        self.coordinator = TransactionCoordinator(self.wire)

    def prepare(
        self,
        transactional_id: str,
        topic: str,
        *,
        partition: int = 0,
        rows: Sequence[tuple[bytes | None, bytes | None]] = ((b"k", b"v"),),
        timeout_ms: int = 60_000,
    ) -> PreparedTransaction:
        identity = self.coordinator.init(transactional_id, timeout_ms)
        if self.wire.cluster.transaction_version < 2:
            self.coordinator.add_partitions(identity, [(topic, partition)])
        return self.write(identity, topic, partition=partition, rows=rows, timeout_ms=timeout_ms)

    def write(
        self,
        identity: TransactionIdentity,
        topic: str,
        *,
        partition: int = 0,
        rows: Sequence[tuple[bytes | None, bytes | None]] = ((b"k", b"v"),),
        timeout_ms: int = 60_000,
    ) -> PreparedTransaction:
        first = self.produce(_batch(rows, identity), topic, partition, identity.transactional_id)
        written = OffsetRange(topic, partition, first, first + len(rows) - 1)
        return PreparedTransaction(
            identity.transactional_id,
            identity.producer_id,
            identity.producer_epoch,
            (written,),
            len(rows),
            "",
            0,
            timeout_ms,
        )

    def produce(
        self, records: bytes, topic: str, partition: int = 0, transactional_id: str | None = None
    ) -> int:
        kind = ProduceRequest.TopicProduceData
        data = kind.PartitionProduceData(index=partition, records=records)
        message = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[kind(name=topic, partition_data=[data])],
            max_version=12 if self.wire.cluster.transaction_version >= 2 else 11,
        )

        def acknowledged() -> Any:
            leader = self.wire.cluster.leaders(topic)[partition]
            answer = self.wire.request(message, node_id=leader).responses[0].partition_responses[0]
            # NOT_LEADER_OR_FOLLOWER: the topic is so new that its leader does not know it yet
            assert answer.error_code in {0, 6}, answer
            return answer if answer.error_code == 0 else None

        return int(until(acknowledged).base_offset)

    def plain(self, topic: str, rows: Sequence[tuple[bytes | None, bytes | None]]) -> int:
        return self.produce(_batch(rows, None), topic)

    def end(self, prepared: PreparedTransaction, *, commit: bool = True) -> EndResult:
        return end_transactions(self.wire, [prepared.identity], commit=commit)[prepared.identity]

    def outcome(self, prepared: PreparedTransaction) -> Outcome:
        return outcomes(self.wire, [prepared])[prepared.identity]

    def closed_outcome(self, prepared: PreparedTransaction) -> Outcome:
        """The outcome once the marker is written, which follows the coordinator's answer."""
        outcome: Outcome = until(lambda: _unless_open(self.outcome(prepared)))
        return outcome

    def await_no_longer_open(self, prepared: PreparedTransaction) -> None:
        until(lambda: self.outcome(prepared) is not Outcome.OPEN)

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        kind = DeleteRecordsRequest.DeleteRecordsTopic
        cut = kind.DeleteRecordsPartition(partition_index=partition, offset=before)
        message = DeleteRecordsRequest(
            topics=[kind(name=topic, partitions=[cut])], timeout_ms=30_000
        )
        self.wire.request(message, node_id=self.wire.cluster.leaders(topic)[partition])

    def delete_topic(self, topic: str) -> None:
        self.wire.request(
            DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000, max_version=5)
        )
        until(lambda: self.wire.cluster.find_leaders(topic, refresh=True) is None)


def _unless_open(outcome: Outcome) -> Outcome | None:
    return None if outcome is Outcome.OPEN else outcome


def _batch(
    rows: Sequence[tuple[bytes | None, bytes | None]], identity: TransactionIdentity | None
) -> bytes:
    whose: dict[str, Any] = {}
    if identity is not None:
        whose = {
            "transactional": True,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.producer_epoch,
            "base_sequence": 0,
        }
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20, **whose)
    for key, value in rows:
        # by the clock: segments roll by the time that rows say, and only rolled ones are cleaned
        builder.append(timestamp=int(time.time() * 1000), key=key, value=value)
    builder.close()
    return bytes(builder.buffer())


def until(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    """The first true answer; a bounded wait for what the broker does in its own time."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, "the broker did not do it in time"
        time.sleep(0.05)
    return answer


def stable(settings: KafkaSettings, topic: str) -> bool:
    """Whether readers get to the end of every partition."""
    with ConnectionPool(settings) as wire:
        places = partitions_of(wire, [topic])
        ends = positions(wire, places, LATEST, committed_only=False)
        return positions(wire, places, LATEST) == ends


@pytest.fixture(scope="session")
def raw_kafka() -> Iterator[Callable[[str], RawKafka]]:
    """``raw_kafka(bootstrap_servers)``: opened once each, closed at the end of the session."""
    opened: dict[str, RawKafka] = {}

    def open_one(bootstrap_servers: str) -> RawKafka:
        if bootstrap_servers not in opened:
            opened[bootstrap_servers] = RawKafka(bootstrap_servers)
        return opened[bootstrap_servers]

    yield open_one
    for raw in opened.values():
        raw.wire.close()


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    """``wait_until(condition)`` polls until it is true, a minute at most."""
    return until


@pytest.fixture
def read(kafka_broker: EmbeddedKafka) -> Callable[..., list[Any]]:
    """``read(topic)``: all messages that a read_committed reader sees, by partition and offset."""

    def all_of(topic: str, servers: str = kafka_broker.bootstrap_servers) -> list[Any]:
        config = {
            "bootstrap.servers": servers,
            "group.id": "test",
            "check.crcs": True,
            "enable.auto.commit": False,
        }
        # The end for read_committed moves only when markers are written, which follows the answer
        # to EndTxn: ask for the end of the log, and read until that is passed.
        looking = Consumer(config | {"isolation.level": "read_uncommitted"})
        reading = Consumer(config | {"isolation.level": "read_committed"})
        try:
            return _drain(reading, topic, _ends(looking, topic))
        finally:
            looking.close()
            reading.close()

    return all_of


def _ends(consumer: Any, topic: str) -> dict[int, int]:
    partitions = consumer.list_topics(topic).topics[topic].partitions
    return {p: consumer.get_watermark_offsets(TopicPartition(topic, p))[1] for p in partitions}


def _drain(consumer: Any, topic: str, ends: dict[int, int]) -> list[Any]:
    consumer.assign([TopicPartition(topic, p, 0) for p in ends])
    found: list[Any] = []
    while any(
        position.offset < ends[position.partition]
        for position in consumer.position([TopicPartition(topic, p) for p in ends if ends[p]])
    ):
        for message in consumer.consume(10_000, timeout=0.2):
            assert message.error() is None, message.error()
            found.append(message)
    return sorted(found, key=lambda m: (m.partition(), m.offset()))
