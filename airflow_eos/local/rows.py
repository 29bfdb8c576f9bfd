"""Write rows to a topic and read them, to try things out: by librdkafka, not our own client."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from airflow_eos.errors import LocalEnvironmentError

_SECONDS = 30.0

Row = tuple[str | None, str]
"""A row: its key (None: no key) and its value."""


def write_rows(bootstrap_servers: str, topic: str, rows: Iterable[Row]) -> int:
    """Write rows to a topic and wait until the broker has acknowledged all of them.

    Returns:
        The number of rows.

    Raises:
        LocalEnvironmentError: the topic does not exist, a row was refused, or the broker does not
            answer.
    """
    with closing(Consumer(_settings(bootstrap_servers))) as consumer:
        _partitions(consumer, topic)
    refused: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _row: object) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 20, "log_level": 0})
    count = 0
    for key, value in rows:
        while True:
            try:
                producer.produce(topic, key=key, value=value, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(1)
            except KafkaException as error:  # as for a row that is too long for any broker
                refused.append(error.args[0])
                break
        count += 1
    if left := producer.flush(_SECONDS):
        raise LocalEnvironmentError(
            f"{left} of {count} rows are not in {topic} after {_SECONDS:.0f} s: "
            f"{bootstrap_servers} does not take them; read the broker's log."
        )
    if refused:
        raise LocalEnvironmentError(
            f"{len(refused)} of {count} rows are not in {topic}, the others are: "
            f"{refused[0].str()}. Look at the topic's configuration, and write those rows again."
        )
    return count


def read_rows(bootstrap_servers: str, topic: str) -> Iterator[Row]:
    """Yield the rows that a ``read_committed`` reader gets now; each partition's in order.

    Raises:
        LocalEnvironmentError: the topic does not exist, or cannot be read to its end.
    """
    with closing(Consumer(_settings(bootstrap_servers))) as consumer:
        partitions = _partitions(consumer, topic)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        ended: set[int | None] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(_SECONDS)  # consume() would wait for a full count
            if message is None:
                raise LocalEnvironmentError(
                    f"{topic} cannot be read to its end: {bootstrap_servers} has not answered for "
                    f"{_SECONDS:.0f} s; read the broker's log."
                )
            error = message.error()
            if error is None:
                yield _text(message.key()), _text(message.value()) or ""
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name
                ended.add(message.partition())
            elif not error.retriable():
                raise LocalEnvironmentError(
                    f"{topic} cannot be read to its end: {error.str()}. What was read is not all "
                    "of it; read the broker's log, then try again."
                )


def _text(raw: str | bytes | None) -> str | None:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    try:
        found = consumer.list_topics(topic, timeout=_SECONDS).topics[topic]
    except KafkaException as error:
        raise LocalEnvironmentError(
            f"no broker answers at the address: {error.args[0].str()}. `airflow-eos broker "
            "start` starts one."
        ) from error
    if found.error is not None:
        raise LocalEnvironmentError(
            f"there is no topic {topic}: make it with `airflow-eos broker topic {topic}`."
        )
    return list(found.partitions)


def _settings(bootstrap_servers: str) -> dict[str, str | int | float | bool]:
    return {
        "bootstrap.servers": bootstrap_servers,
        "group.id": uuid.uuid4().hex,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": False,
        "log_level": 0,
    }
