"""What the sensors read from a real broker and a real database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from confluent_kafka import Producer
from psycopg.conninfo import conninfo_to_dict

from airflow_eos.core.checkpoint import CheckpointStore, PipelineIdentity, claim
from airflow_eos.core.checkpoint.progress import SourceProgress
from airflow_eos.errors import TopicError
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.ops.supervision.progress import unread_offsets
from airflow_eos.sensors import TransactionTimeoutSensor
from tests.integration.postgres.conftest import World, end_all
from tests.support.servers.postgres import EmbeddedPostgres


@pytest.fixture
def settings(kafka_broker) -> KafkaSettings:
    return KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})


@pytest.fixture
def left_open(kafka_broker):
    """A function that opens a transaction, writes a row and leaves it so until the test ends."""
    producers = []

    def leave(topic: str, transactional_id: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": kafka_broker.bootstrap_servers,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 60_000,
            }
        )
        producers.append(producer)
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, value="x", partition=0)
        assert producer.flush(30) == 0

    yield leave
    for producer in producers:
        producer.abort_transaction(30)


def read(topic: str, **partitions: int) -> SourceProgress:
    end = {topic: {int(name[1:]): offset for name, offset in partitions.items()}}
    return SourceProgress(0, "kafka", None, end, "-")


@pytest.mark.long
def test_unread_offsets_are_counted_to_the_end_of_every_partition(kafka_broker, settings, topic):
    orders = topic("orders", 2)
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    for number in range(10):
        producer.produce(orders, value=str(number), partition=number % 3 % 2)  # 7 and 3
    assert producer.flush(30) == 0
    assert unread_offsets(settings, [read(orders)]) == 10  # partitions that it has not seen yet
    assert unread_offsets(settings, [read(orders, p0=7)]) == 3
    assert unread_offsets(settings, [read(orders, p0=7, p1=3)]) == 0
    with pytest.raises(TopicError, match="ends at offset 3, and the query has read it up to 4"):
        unread_offsets(settings, [read(orders, p0=7, p1=4)])


@pytest.mark.long
def test_rows_of_an_open_transaction_upstream_are_not_unread(settings, topic, left_open):
    orders = topic("orders")
    left_open(orders, f"{orders}-eos-0-0")
    assert unread_offsets(settings, [read(orders, p0=0)]) == 0


def test_sources_whose_ends_are_not_known_are_not_counted(settings):
    assert unread_offsets(settings, []) is None
    assert unread_offsets(settings, [SourceProgress(0, "other", None, None, "{}")]) is None


@pytest.mark.long
def test_a_topic_that_is_gone_is_not_idle(settings):
    with pytest.raises(TopicError, match="not-there"):
        unread_offsets(settings, [read("not-there", p0=0)])


@pytest.mark.usefixtures("connections")
def test_an_open_transaction_fires_once_enough_of_its_timeout_has_passed(topic, left_open):
    out = topic("out")
    left_open(out, f"{out}-eos-0-0")
    sensor = TransactionTimeoutSensor(task_id="t", transactional_id_prefix=out, part_left=1)
    [found] = sensor.execute({})
    assert found["key"].startswith(f"{out}-eos-0-0-")
    assert found["timeout_ms"] == 60_000
    assert 0 < found["time_left_ms"] < 60_000
    sensor = TransactionTimeoutSensor(task_id="t", transactional_id_prefix=out, part_left=0.1)
    assert not sensor.poke({}).is_done


# --- The watchdog of a pipeline that writes to a database: what waits there holds locks for ever --


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as running:
        yield running


@pytest.fixture
def world(server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A table, with an Airflow connection to its database."""
    how = conninfo_to_dict(server.dsn)
    connection = {
        "conn_type": "postgres",
        "host": how.pop("host"),
        "login": how.pop("user"),
        "schema": how.pop("dbname"),
        "extra": how,
    }
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(connection))
    made = World(server)
    yield made
    end_all(made)


@pytest.mark.long
@pytest.mark.usefixtures("connections")
def test_what_waits_in_a_database_is_seen_also_where_a_prefix_is_given(
    world: World, tmp_path: Path
) -> None:
    """As the example DAG gives both: the checkpoint's participants, and the app's prefix."""
    participant = world.participant()
    place = f"file://{tmp_path}/checkpoint"
    pipeline = PipelineIdentity(
        id="1" * 32, participants=participant.members, created_at_ms=1, created_by="driver 1"
    )
    claim(CheckpointStore.open(place), pipeline)
    work = world.prepare()

    def sensor(**changes: Any) -> TransactionTimeoutSensor:
        return TransactionTimeoutSensor(
            task_id="timeouts",
            checkpoint_location=place,
            transactional_id_prefix=world.tag,
            max_age=timedelta(milliseconds=1),
            **changes,
        )

    found = sensor(participant_conn_ids={"orders": "shop"}).poke({})
    assert found.is_done
    assert [(each["participant"], each["key"]) for each in found.xcom_value] == [
        ("orders", work.key)
    ]
    with pytest.raises(AirflowFailException, match="give how to reach its database"):
        sensor().poke({})
    participant.commit([work])
    participant.close()
    assert not sensor(participant_conn_ids={"postgres": "shop"}).poke({}).is_done
