"""The partitioner row by row against Kafka's Java producer and librdkafka's ``murmur2_random``."""

from __future__ import annotations

import base64
import functools
import random
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from airflow_eos.arrow.producer.partitioner import choose, murmur2
from airflow_eos.arrow.records.columns import views_of
from airflow_eos.kafka.destination import Topic
from tests.integration.kafka.test_records import java

PARTITIONS = 7


@pytest.fixture(scope="module")
def keys() -> list[bytes]:
    noise = random.Random(11)
    lengths = [*range(40), 100, 1_000, 1_023, 1_024, 1_025, 5_000]
    return [noise.randbytes(noise.choice(lengths)) for _ in range(3_000)] + [b"", b"\xff" * 21]


@pytest.mark.long
def test_every_row_goes_where_the_java_producer_sends_it(kafka_broker, topic, keys):
    name = topic(partitions=PARTITIONS)
    lines = java(
        "ProduceKeys.java",
        kafka_broker.bootstrap_servers,
        name,
        stdin="".join(base64.b64encode(key).decode() + "\n" for key in keys),
    )
    hashes, partitions = zip(*(map(int, line.split()) for line in lines), strict=True)
    views = views_of(pa.array(keys, pa.binary()), "key")

    assert murmur2(views).tolist() == [h & 0xFFFFFFFF for h in hashes]
    assert choose(Topic(name, PARTITIONS, 1), views).tolist() == list(partitions)


def test_every_row_goes_where_librdkafka_sends_it(kafka_broker, topic, keys):
    name = topic(partitions=PARTITIONS)
    partitions: dict[int, int] = {}
    producer = Producer(
        {"bootstrap.servers": kafka_broker.bootstrap_servers, "partitioner": "murmur2_random"}
    )

    def note(row: int, _error: Any, message: Any) -> None:
        partitions[row] = message.partition()

    for i, key in enumerate(keys):
        producer.produce(name, b"", key, on_delivery=functools.partial(note, i))
    producer.flush(60)

    views = views_of(pa.array(keys, pa.binary()), "key")
    chosen = choose(Topic(name, PARTITIONS, 1), views).tolist()
    # librdkafka takes an empty key for none and sends it anywhere.
    assert {i: chosen[i] for i, key in enumerate(keys) if key} == {
        i: partition for i, partition in partitions.items() if keys[i]
    }
