"""What a writer knows of the topics that it writes to, asked for again every minute."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from airflow_eos.errors import TopicError
from airflow_eos.kafka.producer.partitioner import Partitioner
from airflow_eos.kafka.producer.routing import Topic

if TYPE_CHECKING:
    from airflow_eos.kafka.client.wire import Wire

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's own default of max.message.bytes, for principals that may not read the topic's."""
_FRESH_S = 60.0
_SETTING = "max.message.bytes"


class Topics:
    """Topics by name: their partitions, whose turn it is among them, the largest record batch."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._known: dict[str, tuple[float, Topic]] = {}

    @property
    def partitions(self) -> int:
        """Of all topics looked up so far."""
        return sum(topic.partitioner.partitions for _, topic in self._known.values())

    @property
    def max_batch_bytes(self) -> int:
        """What all topics looked up so far take in one record batch."""
        limits = (topic.max_batch_bytes for _, topic in self._known.values())
        return min(limits, default=DEFAULT_MAX_MESSAGE_BYTES)

    def invalidate(self) -> None:
        """Ask again at the next look-up: a limit may have been raised within the minute."""
        self._known = {name: (-math.inf, topic) for name, (_, topic) in self._known.items()}

    def look_up(self, name: str) -> Topic:
        """The topic as it was within the last minute: partitions may have been added since.

        Raises:
            TopicError: it does not exist or may not be described.
        """
        now = time.monotonic()
        asked_at, known = self._known.get(name, (-_FRESH_S, None))
        if known is not None and now - asked_at < _FRESH_S:
            return known
        count = len(self._wire.cluster.leaders(name, refresh=True))
        partitioner = known.partitioner if known is not None else Partitioner(name, count)
        if partitioner.partitions != count:
            partitioner = Partitioner(name, count)
        topic = Topic(name, partitioner, self._max_batch_bytes(name))
        self._known[name] = (now, topic)
        return topic

    def _max_batch_bytes(self, topic: str) -> int:
        try:
            found = self._wire.cluster.topic_config(topic, [_SETTING])
        except TopicError:
            # No ACL to read settings is no reason not to write: the broker still has its say.
            return DEFAULT_MAX_MESSAGE_BYTES
        return int(found.get(_SETTING, DEFAULT_MAX_MESSAGE_BYTES))
