"""What became of the rows that librdkafka was given, and at which offsets they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.kafka.librdkafka.faults import PURGED
from airflow_eos.kafka.transactions.identity import OffsetRange
from airflow_eos.kafka.transactions.pending import unknown_offsets

if TYPE_CHECKING:
    from confluent_kafka import KafkaError as Code
    from confluent_kafka import Message as Delivered


class Reports:
    """Delivery reports, summed up. Refers to no producer, so that losing that one destroys it.

    ``failure`` is the first one, with its topic and partition.
    """

    def __init__(self) -> None:
        self.failure: tuple[Code, str | None, int | None] | None = None
        self._first: dict[tuple[str, int], int] = {}
        self._last: dict[tuple[str, int], int] = {}

    def __call__(self, error: Code | None, message: Delivered) -> None:
        """Note one report, as librdkafka's ``on_delivery``."""
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is not None:
            if self.failure is None and error.code() not in PURGED:
                self.failure = error, topic, partition
            return
        where = str(topic), -1 if partition is None else partition
        offset = -1 if offset is None else offset
        # The least of both: an offset below 0 says that the broker no longer knew it.
        self._first[where] = min(self._first.get(where, offset), offset)
        self._last[where] = max(self._last.get(where, offset), offset)

    def ranges(self) -> tuple[OffsetRange, ...]:
        """The offsets of what was acknowledged, partition by partition.

        Raises:
            TransactionError: the broker no longer knew an offset.
        """
        for (topic, partition), first in self._first.items():
            if first < 0:
                raise unknown_offsets(topic, partition)
        return tuple(
            OffsetRange(*where, first, self._last[where]) for where, first in self._first.items()
        )
