"""The input of a history as a topic, for those whose source is not played."""

from __future__ import annotations

from confluent_kafka import KafkaError, Message, Producer


class TopicInput:
    """Rows appended to a topic that exists, without a transaction."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic

    def append(self, rows: list[tuple[int, str, str]]) -> list[tuple[int, int, str, str]]:
        """Write (partition, key, value); returns them with their offsets."""
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "log_level": 3}
        )
        placed: list[tuple[int, int, str, str]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            key, value = message.key() or b"", message.value() or b""
            placed.append(
                (message.partition() or 0, message.offset() or 0, key.decode(), value.decode())
            )

        for partition, key, value in rows:
            producer.produce(self._topic, value, key, partition=partition, on_delivery=delivered)
        assert producer.flush(60) == 0
        return sorted(placed)
