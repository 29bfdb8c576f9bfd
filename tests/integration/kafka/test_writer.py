"""What is the Arrow writer's alone: test_both_writers.py has what any producer owes a task."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from airflow_eos.arrow.producer.writer import TransactionalWriter
from airflow_eos.errors import KafkaUnavailableError, RowError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.messages import ProduceRequest
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.coordinator import end_transactions
from airflow_eos.kafka.transactions.listing import list_open
from airflow_eos.local import EmbeddedKafka

pytestmark = pytest.mark.proof

TIMEOUT_MS = 60_000


def wire_to(broker: EmbeddedKafka) -> ConnectionPool:
    return ConnectionPool(
        KafkaSettings.from_librdkafka({"bootstrap.servers": broker.bootstrap_servers})
    )


@pytest.fixture(scope="module")
def wire(kafka_broker: EmbeddedKafka) -> Iterator[ConnectionPool]:
    with wire_to(kafka_broker) as opened:
        yield opened


def rows_of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def numbered(start: int, stop: int, keys: int = 97) -> pa.RecordBatch:
    return rows_of(
        key=[f"key-{i % keys}" for i in range(start, stop)],
        value=[f"value-{i}" for i in range(start, stop)],
    )


def commit(wire: ConnectionPool, written: Any) -> None:
    end_transactions(wire, [written.identity], commit=True)


def values(messages: list[Any]) -> list[bytes]:
    return [m.value() for m in messages]


def test_an_abort_takes_back_what_is_being_sent_beside(wire, topic, read):
    """Rows are encoded and sent on another thread: none of them may arrive after the abort."""
    name = topic()
    writer = TransactionalWriter(wire, topic=name)
    for task, writes in enumerate([4, 5, 10]):  # the first one before the id is taken
        writer.begin(f"beside-eos-{task}-0", TIMEOUT_MS)
        for _ in range(writes):
            writer.write(rows_of(value=["x" * 250] * 10_000))
        assert writer._handed is not None
        writer.abort()
    writer.begin("beside-eos-9-0", TIMEOUT_MS)
    writer.write(numbered(0, 3))
    commit(wire, writer.prepare())

    # First, since a reader would wait for what is open.
    assert list_open(wire, "beside") == ()
    assert values(read(name)) == [b"value-0", b"value-1", b"value-2"]


def test_an_error_beside_is_raised_by_every_later_call_until_the_abort(wire, topic, read):
    name = topic()
    writer = TransactionalWriter(wire, topic=name)
    writer.begin("later-eos-0-0", TIMEOUT_MS)
    writer.write(rows_of(value=["x" * (9 << 20), "y"], partition=[0, 7]))
    for _ in range(2):
        with pytest.raises(RowError, match="partition 7"):
            writer.prepare()
    with pytest.raises(RowError, match="partition 7"):
        writer.write(rows_of(value=["x" * (9 << 20)], partition=[0]))
    writer.abort()
    writer.begin("later-eos-0-0", TIMEOUT_MS)
    writer.write(rows_of(value=["z"]))
    commit(wire, writer.prepare())
    assert values(read(name)) == [b"z"]


@pytest.mark.parametrize("name", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_every_codec(wire, topic, read, name):
    out = topic()
    writer = TransactionalWriter(wire, topic=out, compression=name)
    writer.begin(f"codec-{name}-eos-0-0", TIMEOUT_MS)
    writer.write(numbered(0, 30_000))
    commit(wire, writer.prepare())

    assert values(read(out)) == [f"value-{i}".encode() for i in range(30_000)]


def test_rows_go_to_the_topic_and_partition_that_they_name(wire, topic, read):
    orders, dead = topic("orders", partitions=3), topic("dead")
    writer = TransactionalWriter(wire, topic=orders)
    writer.begin("routed-eos-0-0", TIMEOUT_MS)
    writer.write(
        rows_of(
            value=["a", "b", "c", "d"],
            topic=[None, dead, orders, dead],
            partition=pa.array([2, None, 1, 0], pa.int32()),
        )
    )
    written = writer.prepare()
    commit(wire, written)

    assert [(m.partition(), m.value()) for m in read(orders)] == [(1, b"c"), (2, b"a")]
    assert values(read(dead)) == [b"b", b"d"]
    assert {(r.topic, r.partition) for r in written.written} == {
        (orders, 1),
        (orders, 2),
        (dead, 0),
    }


def test_small_batches_are_gathered_into_large_ones(wire, topic, read):
    name = topic()
    writer = TransactionalWriter(wire, topic=name)
    writer.begin("gather-eos-0-0", TIMEOUT_MS)
    for start in range(0, 1_000, 10):
        writer.write(numbered(start, start + 10))
    writer.write(rows_of(value=["another schema"]))
    commit(wire, writer.prepare())

    assert values(read(name)) == [*(f"value-{i}".encode() for i in range(1_000)), b"another schema"]


class TroubledWire:
    """A wire that loses produce requests, or only their answers, at random."""

    def __init__(self, wire: ConnectionPool, seed: int) -> None:
        self._wire = wire
        self._random = random.Random(seed)
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    def submit(self, message: Any, **where: Any) -> Future[Any]:
        chance = self._random.random()
        if chance < 0.6 or not isinstance(message, ProduceRequest):
            return self._wire.submit(message, **where)
        self.lost += 1
        if chance < 0.8:
            self._wire.submit(message, **where).result(30)
        lost: Future[Any] = Future()
        lost.set_exception(KafkaUnavailableError("lost on purpose"))
        return lost


@pytest.mark.parametrize("transactional_id", ["trouble-eos-0-0", None])
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(more, marks=pytest.mark.proof) for more in (2, 3))]
)
def test_lost_requests_and_lost_answers_neither_lose_nor_double_rows(
    wire, topic, read, at_once, seed, transactional_id
):
    name = topic(partitions=3)
    troubled = TroubledWire(wire, seed)
    writer = TransactionalWriter(troubled, topic=name)  # type: ignore[arg-type]
    writer.begin(transactional_id, TIMEOUT_MS)
    for start in range(0, 6_000, 100):
        writer.write(numbered(start, start + 100))
    written = writer.prepare()
    assert written is not None
    if transactional_id is not None:
        commit(wire, written)

    messages = read(name)
    assert troubled.lost > 10
    assert sorted(values(messages)) == sorted(f"value-{i}".encode() for i in range(6_000))
    for partition in range(3):
        numbers = [int(m.value()[6:]) for m in messages if m.partition() == partition]
        assert numbers == sorted(numbers), "resends must not overtake within a partition"


@pytest.mark.slow
def test_a_broker_that_is_killed_and_comes_back_costs_nothing(read):
    with EmbeddedKafka() as broker:
        name = broker.create_topic("out", 2)
        with wire_to(broker) as wire:
            writer = TransactionalWriter(wire, topic=name)
            writer.begin("killed-eos-0-0", 300_000)
            for part in range(6):
                for start in range(part * 100_000, part * 100_000 + 100_000, 20_000):
                    writer.write(numbered(start, start + 20_000))
                if part == 2:
                    broker.kill()
                    broker.start(1)
            commit(wire, writer.prepare())
        messages = read(name, broker.bootstrap_servers)

    assert len(messages) == 600_000
    assert len(set(values(messages))) == 600_000


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 1])
def test_brokers_without_transaction_version_2(read, version):
    """AddPartitionsToTxn is a request of its own there; KIP-890's implicit add is refused."""
    with EmbeddedKafka(features={"transaction.version": version}) as broker:
        name = broker.create_topic("out", 3)
        with wire_to(broker) as wire:
            assert wire.cluster.transaction_version == version
            writer = TransactionalWriter(wire, topic=name)
            for attempt in range(3):
                writer.begin("old-eos-0-0", TIMEOUT_MS)
                writer.write(numbered(attempt * 1000, attempt * 1000 + 1000))
                if attempt == 1:
                    writer.abort()
                else:
                    commit(wire, writer.prepare())
        found = {int(value[6:]) for value in values(read(name, broker.bootstrap_servers))}

    assert found == {*range(1000), *range(2000, 3000)}
