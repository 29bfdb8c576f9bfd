"""A partition that has no leader when its transaction ends gets no marker (KAFKA-20734).

Kafka's own answer is "done". Three brokers, and a topic with one copy of each partition.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from typer.testing import CliRunner

from airflow_eos.cli.app import app
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import DeliveryError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.participant import KafkaParticipant
from airflow_eos.kafka.sink import open_writer
from airflow_eos.kafka.transactions.coordinator import end_transactions
from airflow_eos.kafka.transactions.hanging import end_what_a_timeout_left, find_hanging
from airflow_eos.kafka.transactions.identity import (
    PreparedTransaction,
    as_work,
    transactional_id_of,
)
from airflow_eos.kafka.transactions.listing import not_ended_yet
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from airflow_eos.local import EmbeddedKafka
from tests.integration.kafka.conftest import stable, until

pytestmark = pytest.mark.slow

NODES = (1, 2, 3)
ROWS = 300
LONG_MS, SHORT_MS = 300_000, 15_000


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(2, id="version 2"),
        pytest.param(1, id="version 1", marks=pytest.mark.proof),
    ],
)
def brokers(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    quick = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    features = {"transaction.version": request.param}
    with EmbeddedKafka(quick, brokers=3, features=features) as running:
        yield running


@pytest.fixture
def settings(brokers: EmbeddedKafka) -> KafkaSettings:
    return KafkaSettings.from_librdkafka({"bootstrap.servers": brokers.bootstrap_servers})


@pytest.fixture
def topic(brokers: EmbeddedKafka) -> str:
    """Partition 0 is on broker 1 alone, and so on."""
    name = f"out-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers})
    alone = NewTopic(name, 3, replica_assignment=[[node] for node in NODES])
    admin.create_topics([alone])[name].result(30)
    return name


@pytest.fixture
def timeout_ms() -> int:
    return LONG_MS


@pytest.fixture
def prepared(settings: KafkaSettings, topic: str, timeout_ms: int) -> PreparedTransaction:
    with ConnectionPool(settings) as wire:
        until(lambda: set(wire.cluster.leaders(topic, refresh=True).values()) == set(NODES))
    return write(settings, topic, 0, timeout_ms=timeout_ms)


def write(
    settings: KafkaSettings, topic: str, first: int, *, task: int = 0, timeout_ms: int = LONG_MS
) -> PreparedTransaction:
    values = [str(number) for number in range(first, first + ROWS)]
    writer: Any = open_writer(settings, producer="arrow", topic=topic, compression="lz4")
    with writer._wire:
        writer.begin(transactional_id_of(topic, task, 0), timeout_ms)
        writer.write(pa.RecordBatch.from_pydict({"key": values, "value": values}))
        found = writer.prepare()
    return PreparedTransaction(
        **msgspec.structs.asdict(found.identity),
        written=found.written,
        rows=ROWS,
        fingerprint="0" * 32,
        opened_at_ms=1,
        timeout_ms=timeout_ms,
    )


@pytest.fixture
def participant(settings: KafkaSettings, topic: str) -> Iterator[KafkaParticipant]:
    found = KafkaParticipant(
        ConnectionPool(settings), PrefixLedger(settings, prefix=topic), name="sink", target=topic
    )
    yield found
    found.close()


@pytest.fixture
def leaderless(brokers: EmbeddedKafka, settings: KafkaSettings, prepared, topic: str) -> Any:
    """A partition whose only broker is dead, and is brought back by whoever calls this."""
    with ConnectionPool(settings) as wire:
        homes = wire.cluster.coordinators([prepared.transactional_id])
    down = next(node for node in NODES if node not in homes.values())
    brokers.kill(down)
    with ConnectionPool(settings) as wire:
        until(lambda: wire.cluster.leaders(topic, refresh=True).get(down - 1, -1) == -1)
    back: list[int] = []

    def bring_back() -> None:
        if not back:
            back.append(down)
            brokers.start(down)

    yield bring_back
    bring_back()


def visible(read: Callable[..., Any], brokers: EmbeddedKafka, topic: str) -> list[int]:
    return sorted(int(message.value()) for message in read(topic, brokers.bootstrap_servers))


def end(settings: KafkaSettings, prepared: PreparedTransaction, *, commit: bool) -> None:
    with ConnectionPool(settings) as wire:
        ended = end_transactions(wire, [prepared.identity], commit=commit)
    assert ended[prepared.identity].name == "DONE"


aborted = pytest.mark.parametrize(
    "timeout_ms",
    [
        pytest.param(LONG_MS, id="by one that died"),
        pytest.param(SHORT_MS, id="by timeout", marks=pytest.mark.proof),
    ],
)


def abort_unmarked(
    settings: KafkaSettings, prepared: PreparedTransaction, leaderless: Callable[[], None]
) -> None:
    """Abort it, or wait for its timeout, while a partition of it cannot take the marker."""
    if prepared.timeout_ms == SHORT_MS:
        with ConnectionPool(settings) as wire:
            until(lambda: not not_ended_yet(wire, [prepared.identity]))
    else:
        end(settings, prepared, commit=False)
    leaderless()


@pytest.mark.proof
def test_kafka_says_done_and_readers_never_get_past_it(
    settings: KafkaSettings, topic: str, prepared: PreparedTransaction, leaderless: Any
) -> None:
    """Why all of this is needed: once this fails, Kafka has mended it."""
    end(settings, prepared, commit=True)
    leaderless()
    with ConnectionPool(settings) as wire:
        [left] = until(lambda: find_hanging(wire, {topic}, older_than_ms=0))
    assert left.producer_id == prepared.producer_id
    assert not stable(settings, topic)


@pytest.mark.parametrize("commit", [True, pytest.param(False, marks=pytest.mark.proof)])
def test_the_command_ends_it_as_its_coordinator_has_ended_it(
    settings: KafkaSettings,
    brokers: EmbeddedKafka,
    topic: str,
    prepared: PreparedTransaction,
    leaderless: Any,
    read: Callable[..., Any],
    commit: bool,
) -> None:
    end(settings, prepared, commit=commit)
    leaderless()
    with ConnectionPool(settings) as wire:
        [left] = until(lambda: find_hanging(wire, {topic}, older_than_ms=0))
    assert left.committed is commit
    command = ["hanging", topic, "-b", brokers.bootstrap_servers, "--older-than", "0"]
    ended = CliRunner().invoke(app, [*command, "--end", "--yes"])
    assert (ended.exit_code, "committed" in ended.stdout) == (0, commit)
    assert stable(settings, topic)
    assert visible(read, brokers, topic) == (list(range(ROWS)) if commit else [])


@pytest.mark.parametrize("died", [False, pytest.param(True, marks=pytest.mark.proof)])
def test_what_was_committed_is_seen(
    settings: KafkaSettings,
    brokers: EmbeddedKafka,
    topic: str,
    prepared: PreparedTransaction,
    leaderless: Any,
    participant: KafkaParticipant,
    read: Callable[..., Any],
    died: bool,
) -> None:
    """Its partition comes back while it is committed; or its driver died before it looked."""
    if died:
        end(settings, prepared, commit=True)
    coming = threading.Timer(0.0 if died else 1.0, leaderless)
    coming.start()
    if died:
        coming.join()
    found = participant.commit([as_work(prepared, "sink")])
    coming.join()
    assert set(found.values()) == {Outcome.COMMITTED}
    assert stable(settings, topic)
    assert visible(read, brokers, topic) == list(range(ROWS))


@pytest.mark.parametrize("ours", [True, pytest.param(False, marks=pytest.mark.proof)])
def test_what_was_aborted_does_not_come_with_the_next_transaction_of_its_producer(
    settings: KafkaSettings,
    brokers: EmbeddedKafka,
    topic: str,
    prepared: PreparedTransaction,
    leaderless: Any,
    participant: KafkaParticipant,
    read: Callable[..., Any],
    ours: bool,
) -> None:
    """``ours`` False: what Kafka makes of it by itself."""
    if ours:
        coming = threading.Timer(1.0, leaderless)
        coming.start()
        assert set(participant.abort([as_work(prepared, "sink").identity]).values()) == {True}
        coming.join()
    else:
        end(settings, prepared, commit=False)
        leaderless()
    later = write(settings, topic, ROWS)
    assert later.producer_id == prepared.producer_id
    participant.commit([as_work(later, "sink")])
    twice = set(visible(read, brokers, topic)) - set(range(ROWS, 2 * ROWS))
    assert not twice if ours else twice


@aborted
def test_what_nobody_looked_after_is_not_decided_with_the_next_transaction_of_its_producer(
    settings: KafkaSettings,
    brokers: EmbeddedKafka,
    topic: str,
    prepared: PreparedTransaction,
    leaderless: Any,
    participant: KafkaParticipant,
    read: Callable[..., Any],
) -> None:
    """And goes with it where it is aborted: the batch after it is delivered, once."""
    abort_unmarked(settings, prepared, leaderless)
    later = as_work(write(settings, topic, ROWS), "sink")
    with pytest.raises(DeliveryError, match="without its marker"):
        participant.require_decidable([later])
    assert set(participant.abort([later.identity]).values()) == {True}
    last = as_work(write(settings, topic, 2 * ROWS), "sink")
    participant.require_decidable([last])
    assert set(participant.commit([last]).values()) == {Outcome.COMMITTED}
    assert stable(settings, topic)
    assert visible(read, brokers, topic) == list(range(2 * ROWS, 3 * ROWS))


@aborted
@pytest.mark.parametrize("where", ["in its first partition", "in another one"])
def test_a_promise_that_was_aborted_without_a_marker_is_replayed_and_holds_no_reader_up(
    settings: KafkaSettings,
    brokers: EmbeddedKafka,
    topic: str,
    prepared: PreparedTransaction,
    leaderless: Any,
    participant: KafkaParticipant,
    read: Callable[..., Any],
    where: str,
) -> None:
    """In its first partition the log calls it open for good: no start came past it."""
    abort_unmarked(settings, prepared, leaderless)
    assert not stable(settings, topic)
    with ConnectionPool(settings) as wire:
        [left] = until(lambda: find_hanging(wire, {topic}, older_than_ms=0))
    is_first = where == "in its first partition"
    written = sorted(prepared.written, key=lambda at: (at.partition == left.partition) != is_first)
    promised = as_work(msgspec.structs.replace(prepared, written=tuple(written)), "sink")
    assert set(participant.commit([promised]).values()) == {Outcome.ABORTED}
    assert stable(settings, topic)
    last = as_work(write(settings, topic, ROWS), "sink")
    participant.require_decidable([last])
    assert set(participant.commit([last]).values()) == {Outcome.COMMITTED}
    assert visible(read, brokers, topic) == list(range(ROWS, 2 * ROWS))


def test_what_its_coordinator_has_committed_gets_no_abort_marker(
    settings: KafkaSettings, topic: str, prepared: PreparedTransaction, leaderless: Any
) -> None:
    end(settings, prepared, commit=True)
    leaderless()
    with ConnectionPool(settings) as wire:
        until(lambda: find_hanging(wire, {topic}, older_than_ms=0))
        end_what_a_timeout_left(wire, [prepared])
        [left] = find_hanging(wire, {topic}, older_than_ms=0)
    assert left.committed


def test_what_others_have_open_in_the_partition_is_in_nobodys_way(
    settings: KafkaSettings, topic: str, prepared: PreparedTransaction, participant: Any
) -> None:
    """The first transaction is older and open there, of another producer."""
    later = as_work(write(settings, topic, ROWS, task=1), "sink")
    participant.require_decidable([later])
    participant.require_decidable([as_work(prepared, "sink"), later])
