"""A small compacted topic of one partition: read whole, appended to. Knows no meaning.

Over librdkafka, which finds leaders and repeats by itself. No consumer group is joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.compacted_topic import acknowledged_end, named, partitions

if TYPE_CHECKING:
    from airflow_eos.kafka.client.settings import KafkaSettings

_TIMEOUT_S = 30.0
_ANSWER_S = 5.0
_AT_ONCE = 1_000
_GATHER_S = 0.02
"""How long librdkafka gathers messages for one call, also where it has the last one."""


class Reader:
    """Reads the topic whole, as often as it is asked to, over connections that it keeps."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        from confluent_kafka import Consumer

        self._topic = topic
        self._consumer: Any = Consumer(
            {
                **settings.librdkafka(),
                "group.id": "airflow-eos",  # librdkafka wants one; it is never joined
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 10,
            }
        )

    def read(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Key and value of every record up to the end of now, in order; none where no topic is.

        Raises:
            KafkaError: it may not be read, or (KafkaUnavailableError) does not answer.
        """
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        if partitions(self._consumer, self._topic) == 0:
            return
        end = acknowledged_end(self._consumer, self._topic)
        self._consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
        try:
            yield from self._to(end)
        finally:
            self._consumer.unassign()

    def close(self) -> None:
        """End librdkafka's threads; idempotent."""
        self._consumer.close()

    def _to(self, end: int) -> Iterator[tuple[bytes, bytes | None]]:
        from confluent_kafka import KafkaError as Code
        from confluent_kafka import KafkaException

        silent_s = 0.0
        while silent_s < _TIMEOUT_S:
            messages = self._consumer.consume(_AT_ONCE, timeout=_GATHER_S)
            silent_s = 0.0 if messages else silent_s + _GATHER_S
            for message in messages:
                error = message.error()
                if error is None:
                    yield message.key() or b"", message.value()
                elif error.code() == Code._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own code
                    if message.offset() >= end:
                        return
                elif error.code() == faults.GROUP_AUTHORIZATION_FAILED:
                    continue  # librdkafka looks for a coordinator that nobody needs
                elif not error.retriable():
                    raise named(KafkaException(error), self._topic, "Read")
        raise KafkaUnavailableError(
            f"Topic {self._topic!r} cannot be read to its end. Check the brokers."
        )


class Appender:
    """Appends records; each flush waits until all of them are acknowledged by all replicas."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._failure: Any = None
        self._producer: Any = Producer(
            {
                **settings.librdkafka(),
                "acks": "all",
                "linger.ms": 0,
                "socket.nagle.disable": True,
                # Records of one key in the order in which they were given, also when repeated.
                "max.in.flight.requests.per.connection": 1,
                "message.timeout.ms": int(_TIMEOUT_S * 1000),
            }
        )

    def append(self, key: bytes, value: bytes | None) -> None:
        """Begin to append; None is a tombstone."""
        self._producer.produce(self._topic, key=key, value=value, partition=0, on_delivery=self._on)

    def flush(self) -> None:
        """Wait for everything that was appended.

        Raises:
            KafkaError: some of it was not acknowledged; it may stand there all the same.
        """
        from confluent_kafka import KafkaException

        left = self._producer.flush(_TIMEOUT_S + _ANSWER_S)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise named(KafkaException(failure), self._topic, "Write")
        if left:
            raise KafkaUnavailableError(
                f"Topic {self._topic!r} did not acknowledge {left} records within "
                f"{_TIMEOUT_S:g} s. Check the brokers."
            )

    def close(self) -> None:
        """Send what was appended, a moment long, and end librdkafka's threads; idempotent.

        They would go on looking for their brokers until the garbage is collected.
        """
        if self._producer is not None:
            self._producer.flush(_ANSWER_S)
            self._producer = None

    def _on(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failure = error
