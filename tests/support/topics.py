"""What goes into a topic, and what readers of one see: by librdkafka, not by our own client."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition


def produce(bootstrap: str, topic: str, rows: Iterable[tuple[str, str | bytes]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for key, value in rows:
        producer.produce(topic, key=key, value=value)
        producer.poll(0)
    assert producer.flush(30) == 0


def read_topic(
    bootstrap: str, topic: str, *, isolation: str = "read_committed"
) -> list[tuple[str, str]]:
    """Every row (key, value) a reader of this isolation level gets now, in the log's order."""
    rows = read_raw(bootstrap, topic, isolation=isolation)
    return [(key.decode(), value.decode()) for key, value in rows]


def read_raw(
    bootstrap: str, topic: str, *, isolation: str = "read_committed"
) -> list[tuple[bytes, bytes]]:
    """The same, where keys and values are no text."""
    found = read_messages(bootstrap, topic, isolation=isolation)
    return [(message.key() or b"", message.value()) for message in found]


def read_messages(bootstrap: str, topic: str, *, isolation: str = "read_committed") -> list[Any]:
    """The same as librdkafka has them, with headers and time stamps."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 5,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        found: list[Any] = []
        ended: set[int | None] = set()
        deadline = time.monotonic() + 300
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, f"{topic} cannot be read to its end"
            # It waits for so many or for so long, also behind the end of all partitions.
            for message in consumer.consume(5000, timeout=0.1):
                if message.error():
                    ended.add(message.partition())
                else:
                    found.append(message)
        # Partitions come in whatever order the broker answers.
        return sorted(found, key=lambda each: (each.partition(), each.offset()))
    finally:
        consumer.close()
