"""The writer against a real broker; everything is read back by librdkafka, read_committed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from airflow_eos.errors import (
    ConfigurationError,
    FencedError,
    KafkaUnavailableError,
    RowError,
    TopicError,
)
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.messages import ProduceRequest
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.producer.writer import TransactionalWriter
from airflow_eos.kafka.transactions.coordinator import end_transactions
from airflow_eos.kafka.transactions.identity import OffsetRange
from airflow_eos.kafka.transactions.listing import list_open
from airflow_eos.local import EmbeddedKafka

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


def write_and_prepare(writer: TransactionalWriter, rows: pa.RecordBatch) -> None:
    writer.write(rows)
    writer.prepare()


def commit(wire: ConnectionPool, written: Any) -> None:
    end_transactions(wire, [written.identity], commit=True)


def values(messages: list[Any]) -> list[bytes]:
    return [m.value() for m in messages]


def test_another_process_commits_what_a_writer_prepared_and_lost(kafka_broker, topic, read):
    name = topic(partitions=3)
    with wire_to(kafka_broker) as first:
        writer = TransactionalWriter(first, topic=name)
        writer.begin("lost-eos-0-0", TIMEOUT_MS)
        writer.write(numbered(0, 500))
        written = writer.prepare()
        assert written is not None
    assert written.rows == 500

    with wire_to(kafka_broker) as second:
        (still_open,) = list_open(second, "lost")
        assert still_open.identity == written.identity
        commit(second, written)

    messages = read(name)
    assert sorted(values(messages)) == sorted(f"value-{i}".encode() for i in range(500))
    for offsets in written.written:
        ours = [m.offset() for m in messages if m.partition() == offsets.partition]
        assert (offsets.first, offsets.last) == (min(ours), max(ours))


def assert_goes_on_alone(
    wire: ConnectionPool,
    writer: TransactionalWriter,
    transactional_id: str,
    read: Callable[[], list[Any]],
) -> None:
    """After an abort: three rows more, and nothing else, visible or open."""
    writer.begin(transactional_id, TIMEOUT_MS)
    writer.write(numbered(0, 3))
    commit(wire, writer.prepare())

    # First, since a reader would wait for what is open.
    assert list_open(wire, transactional_id.partition("-")[0]) == ()
    assert values(read()) == [b"value-0", b"value-1", b"value-2"]


def test_an_aborted_transaction_is_invisible_and_the_writer_goes_on(wire, topic, read, at_once):
    name = topic()
    writer = TransactionalWriter(wire, topic=name)
    writer.begin("abort-eos-0-0", TIMEOUT_MS)
    writer.write(numbered(0, 60_000))
    writer.abort()
    assert_goes_on_alone(wire, writer, "abort-eos-0-0", lambda: read(name))


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
    assert_goes_on_alone(wire, writer, "beside-eos-9-0", lambda: read(name))


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


def test_a_task_without_rows_opens_nothing(wire, topic):
    writer = TransactionalWriter(wire, topic=topic())
    writer.begin("empty-eos-0-0", TIMEOUT_MS)
    writer.write(numbered(0, 0))

    assert writer.prepare() is None
    writer.begin("empty-eos-0-0", TIMEOUT_MS)
    writer.abort()
    assert list_open(wire, "empty") == ()


def test_a_second_begin_is_refused_until_the_first_has_ended(wire, topic):
    writer = TransactionalWriter(wire, topic=topic())
    writer.begin("twice-eos-0-0", TIMEOUT_MS)

    with pytest.raises(ConfigurationError, match="still writes 'twice-eos-0-0'"):
        writer.begin("twice-eos-0-1", TIMEOUT_MS)


def test_without_a_transaction_rows_are_visible_at_once(wire, topic, read):
    name = topic(partitions=2)
    writer = TransactionalWriter(wire, topic=name)
    writer.begin(None, TIMEOUT_MS)
    writer.write(numbered(0, 100))
    written = writer.prepare()

    assert written is not None
    assert written.identity is None
    assert len(read(name)) == 100


@pytest.mark.parametrize("name", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_every_codec(wire, topic, read, name):
    out = topic()
    writer = TransactionalWriter(wire, topic=out, compression=name)
    writer.begin(f"codec-{name}-eos-0-0", TIMEOUT_MS)
    writer.write(numbered(0, 30_000))
    commit(wire, writer.prepare())

    assert values(read(out)) == [f"value-{i}".encode() for i in range(30_000)]


def test_record_batches_stay_under_the_topics_limit(wire, topic, read):
    name = topic(partitions=2, config={"max.message.bytes": "20000"})
    noise = random.Random(3)
    contents = [noise.randbytes(noise.choice([10, 500, 9_000, 19_000])) for _ in range(300)]
    writer = TransactionalWriter(wire, topic=name, compression="lz4")
    writer.begin("limit-eos-0-0", TIMEOUT_MS)
    writer.write(rows_of(value=pa.array(contents, pa.binary()), partition=[0] * 300))
    commit(wire, writer.prepare())

    assert values(read(name)) == contents


def test_a_row_that_only_fits_compressed_is_sent(wire, topic, read):
    name = topic(config={"max.message.bytes": "20000"})
    writer = TransactionalWriter(wire, topic=name, compression="zstd")
    writer.begin("squeezed-eos-0-0", TIMEOUT_MS)
    writer.write(rows_of(value=["small", "x" * 1_000_000, "small"]))
    commit(wire, writer.prepare())

    assert [len(value) for value in values(read(name))] == [5, 1_000_000, 5]


def test_a_row_too_large_is_refused_by_name_before_any_is_sent(wire, topic, read):
    name = topic(config={"max.message.bytes": "20000"})
    writer = TransactionalWriter(wire, topic=name, compression="none")
    writer.begin("large-eos-0-0", TIMEOUT_MS)
    writer.write(rows_of(key=["fine", "culprit"], value=["x", "y" * 20_000]))

    with pytest.raises(RowError, match=r"key b'culprit' needs 200\d\d bytes.*takes 20000"):
        writer.prepare()
    assert list_open(wire, "large") == ()
    writer.abort()
    assert read(name) == []


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


def test_a_missing_topic_is_refused_before_any_row_is_sent(wire, topic, read):
    name = topic()
    writer = TransactionalWriter(wire, topic=name)
    writer.begin("missing-eos-0-0", TIMEOUT_MS)
    writer.write(rows_of(value=["a", "b"], topic=[name, "no-such-topic"]))

    with pytest.raises(TopicError, match="'no-such-topic' does not exist"):
        writer.prepare()
    writer.abort()
    assert read(name) == []


def test_rows_without_any_topic_are_refused(wire):
    writer = TransactionalWriter(wire, topic=None)
    writer.begin("nowhere-eos-0-0", TIMEOUT_MS)
    writer.write(rows_of(value=["a"]))

    with pytest.raises(RowError, match="no column 'topic', and the sink names no topic"):
        writer.prepare()


def test_whoever_lost_the_id_is_fenced(wire, topic, at_once):
    name = topic()
    old = TransactionalWriter(wire, topic=name)
    old.begin("fenced-eos-0-0", TIMEOUT_MS)
    old.write(numbered(0, 80_000))
    new = TransactionalWriter(wire, topic=name)
    new.begin("fenced-eos-0-0", TIMEOUT_MS)
    new.write(numbered(0, 30_000))
    taken = new.prepare()

    with pytest.raises(FencedError, match="somebody else took the transactional id"):
        write_and_prepare(old, numbered(80_000, 81_000))
    old.abort()
    commit(wire, taken)


def test_offsets_are_ours_where_others_write_in_between(wire, topic, read):
    name = topic()
    plain, ours = (TransactionalWriter(wire, topic=name) for _ in range(2))
    plain.begin(None, TIMEOUT_MS)
    plain.write(numbered(0, 5))
    plain.prepare()
    ours.begin("between-eos-0-0", TIMEOUT_MS)
    ours.write(numbered(5, 15))
    written = ours.prepare()

    assert written is not None
    assert written.written == (OffsetRange(name, 0, 5, 14),)
    commit(wire, written)
    assert len(read(name)) == 15


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
