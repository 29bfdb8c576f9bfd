"""Three brokers, three copies: leaders and the coordinator move while a writer writes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.protocol.admin.topics import ElectionType

from airflow_eos.arrow.records.decode import tables
from airflow_eos.errors import TransactionError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.offsets import LATEST, partitions_of, positions
from airflow_eos.kafka.client.reading import OffsetSpan, read_span
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.sink import PRODUCERS, Producer, open_writer
from airflow_eos.kafka.transactions.coordinator import end_transactions
from airflow_eos.local import EmbeddedKafka
from tests.integration.kafka.conftest import stable, until

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.usefixtures("at_once")]

PARTITIONS = 3
CHUNK = 200


@pytest.fixture(scope="module")
def brokers() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(brokers=3) as running:
        yield running


@pytest.fixture
def settings(brokers: EmbeddedKafka) -> KafkaSettings:
    return KafkaSettings.from_librdkafka({"bootstrap.servers": brokers.bootstrap_servers})


@pytest.fixture(autouse=True)
def librdkafka_on_one_core() -> Iterator[None]:
    """Its brokers' threads spin while partitions wait to be added to a transaction.

    (``rd_kafka_toppar_producer_serve``: "If there are messages still in the queue, make the next
    wakeup immediate".) On two cores they would starve the coordinator that they wait for.
    """
    over = threading.Event()

    def confine() -> None:
        while not over.wait(0.2):
            for thread in Path("/proc/self/task").iterdir():
                with contextlib.suppress(OSError):  # it has ended
                    if (thread / "comm").read_text().startswith("rdk:"):
                        os.sched_setaffinity(int(thread.name), {min(os.sched_getaffinity(0))})

    confining = threading.Thread(target=confine)
    confining.start()
    yield
    over.set()
    confining.join()


class Scene:
    """One topic, one transaction, and somebody who moves things meanwhile."""

    def __init__(
        self, brokers: EmbeddedKafka, settings: KafkaSettings, read: Callable[..., list[Any]]
    ) -> None:
        self.brokers, self._settings, self._read = brokers, settings, read
        self.topic = brokers.create_topic(f"out-{uuid.uuid4().hex[:8]}", PARTITIONS)
        self.transactional_id = f"{self.topic}-0-0"

    def leaders(self) -> dict[int, int]:
        with ConnectionPool(self._settings) as wire:
            return wire.cluster.leaders(self.topic, refresh=True)

    def coordinator(self) -> int:
        with ConnectionPool(self._settings) as wire:
            return wire.cluster.coordinators([self.transactional_id])[self.transactional_id]

    def rotate(self) -> None:
        """An operator gives every partition another preferred leader, and has it elected."""
        before = self.leaders()
        wanted = {p: [node % 3 + 1, (node + 1) % 3 + 1, node] for p, node in before.items()}
        admin = KafkaAdminClient(bootstrap_servers=self.brokers.bootstrap_servers)
        try:
            moves = {TopicPartition(self.topic, p): nodes for p, nodes in wanted.items()}
            assert set(admin.alter_partition_reassignments(moves).values()) == {None}
            until(lambda: not admin.list_partition_reassignments())
            admin.elect_leaders(ElectionType.PREFERRED, {self.topic: list(wanted)})
        finally:
            admin.close()
        until(lambda: self.leaders() == {p: nodes[0] for p, nodes in wanted.items()})

    def write_while(self, producer: Producer, move: Callable[[], None]) -> int:
        """Write until the move is over, and a while longer; commit; the rows written."""
        problems: list[BaseException] = []

        def moving() -> None:
            try:
                move()
            except BaseException as error:  # noqa: BLE001 - told in the test's own thread
                problems.append(error)

        mover = threading.Thread(target=moving)
        writer: Any = open_writer(
            self._settings, producer=producer, topic=self.topic, compression="lz4"
        )
        with writer._wire:
            writer.begin(self.transactional_id, 300_000)
            try:
                written = self._chunk(writer, 0)
                mover.start()
                while mover.is_alive():
                    written = self._chunk(writer, written)
                    mover.join(0.02)
                for _ in range(10):
                    written = self._chunk(writer, written)
                assert not problems, problems
                identity = writer.prepare().identity
            except TransactionError as error:
                # librdkafka gives a transaction up where a broker sees a gap in its sequence, as
                # it may when leaders move (confluentinc/librdkafka#3577): the task runs again.
                if producer != "librdkafka" or "OUT_OF_ORDER_SEQUENCE_NUMBER" not in str(error):
                    raise
                writer.abort()
                mover.join()
                assert not problems, problems
                return self.write_while(producer, lambda: None)
        with ConnectionPool(self._settings) as wire:
            ended = end_transactions(wire, [identity], commit=True)
            assert ended[identity].name == "DONE"
        # The answer comes before the markers: until then a range ends before them.
        until(lambda: stable(self._settings, self.topic))
        return written

    def _chunk(self, writer: Any, start: int) -> int:
        numbers = range(start, start + CHUNK)
        keys, values = [f"k{n % 37}" for n in numbers], [str(n) for n in numbers]
        writer.write(pa.RecordBatch.from_pydict({"key": keys, "value": values}))
        return start + CHUNK

    def assert_once_and_in_order(self, rows: int) -> None:
        messages = self._read(self.topic, self.brokers.bootstrap_servers)
        assert sorted(int(m.value()) for m in messages) == list(range(rows))
        for partition in range(PARTITIONS):
            numbers = [int(m.value()) for m in messages if m.partition() == partition]
            assert numbers == sorted(numbers)


@pytest.fixture
def scene(brokers: EmbeddedKafka, settings: KafkaSettings, read: Callable[..., Any]) -> Scene:
    return Scene(brokers, settings, read)


@pytest.mark.parametrize("producer", PRODUCERS)
def test_leaders_are_moved_by_an_operator(scene: Scene, producer: Producer) -> None:
    before = scene.leaders()
    scene.assert_once_and_in_order(scene.write_while(producer, scene.rotate))
    assert all(scene.leaders()[p] != node for p, node in before.items())


@pytest.mark.parametrize(
    ("who", "end", "producer"),
    [
        ("leader", "kill", "arrow"),
        pytest.param("coordinator", "stop", "librdkafka", marks=pytest.mark.proof),
        pytest.param("leader", "stop", "librdkafka", marks=pytest.mark.proof),
        pytest.param("coordinator", "kill", "librdkafka", marks=pytest.mark.proof),
        pytest.param("coordinator", "stop", "arrow", marks=pytest.mark.proof),
        pytest.param("leader", "kill", "librdkafka", marks=pytest.mark.proof),
        pytest.param("leader", "stop", "arrow", marks=pytest.mark.proof),
        pytest.param("coordinator", "kill", "arrow", marks=pytest.mark.proof),
    ],
)
def test_a_broker_is_restarted(scene: Scene, producer: Producer, end: str, who: str) -> None:
    def restart() -> None:
        node = scene.leaders()[0] if who == "leader" else scene.coordinator()
        getattr(scene.brokers, end)(node)
        scene.brokers.start(node)

    scene.assert_once_and_in_order(scene.write_while(producer, restart))


@pytest.mark.parametrize("move", ["rotate", pytest.param("stop", marks=pytest.mark.proof), "kill"])
def test_ranges_are_read_while_their_leaders_move(
    scene: Scene, settings: KafkaSettings, move: str
) -> None:
    """Every row once and in order, though the answers come from one broker and then another."""
    written = scene.write_while("arrow", lambda: None)
    node = scene.leaders()[0]
    moving = scene.rotate if move == "rotate" else partial(getattr(scene.brokers, move), node)
    with ConnectionPool(settings) as wire:
        places = partitions_of(wire, [scene.topic])
        ends = positions(wire, places, LATEST)
        found = {}
        mover = threading.Thread(target=moving)
        for topic, partition in places:
            span = OffsetSpan(topic, partition, 0, ends[topic, partition])
            values: list[int] = []
            # One record batch at a time, so that many fetches are still to come when they move.
            for number, batches in enumerate(read_span(wire, span, fetch_bytes=1)):
                if number == 1 and mover.ident is None:
                    mover.start()
                for table in tables(batches, span, ("value",)):
                    values += [int(each) for each in table.column("value").to_pylist()]
                time.sleep(0.05 * mover.is_alive())
            found[partition] = values
    mover.join()
    if move != "rotate":
        scene.brokers.start(node)
    assert all(values == sorted(set(values)) for values in found.values())
    assert sorted(value for values in found.values() for value in values) == list(range(written))
