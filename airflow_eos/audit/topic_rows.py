"""Read a whole topic as a ``read_committed`` reader sees it, into a few numbers a row.

Only librdkafka's consumer and nothing of the code under test: this is the audit's own eye.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka import KafkaError as Code

from airflow_eos.audit.reader import (
    PartitionEnds,
    cannot_read,
    concerns_the_group,
    is_compacted,
    partition_ends,
    reader,
)
from airflow_eos.errors import KafkaUnavailableError

if TYPE_CHECKING:
    import numpy.typing as npt

    from airflow_eos.audit.expression import Extract
    from airflow_eos.kafka.client.settings import KafkaSettings

NO_KEY = 0
_MESSAGES_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class TopicRows:
    """One topic, 28 bytes a row. ``ids`` and ``keys`` are 64-bit hashes, valid in this process.

    Several million rows stay far from a chance collision of 64 bits. ``keys`` is ``NO_KEY`` where
    a row has none; ``unidentified`` counts rows that are named by their whole value because they
    lack the part that should name them (malformed rows, as in a dead-letter topic). ``compacted``
    is None where the broker does not tell.
    """

    topic: str
    ids: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    partitions: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    unidentified: int
    ends: dict[int, PartitionEnds]
    compacted: bool | None = False

    @property
    def whole(self) -> bool:
        """Whether it has every row that was ever written to it."""
        return self.compacted is False and all(
            end.low == 0 and end.stable == end.high for end in self.ends.values()
        )


@dataclass(slots=True)
class _Columns:
    ids: array[int]
    keys: array[int]
    partitions: array[int]
    offsets: array[int]
    unidentified: int = 0

    def add(self, message: Message, identify: Extract, key_of: Extract) -> None:
        name = identify(message)
        if name is None:
            self.unidentified += 1
            value: Any = message.value()
            name = b"\0whole value\0" + (value or b"")
        key = key_of(message)
        self.ids.append(hash(name))
        self.keys.append(NO_KEY if key is None else hash(key) or 1)
        self.partitions.append(message.partition() or 0)
        self.offsets.append(message.offset() or 0)


def read_topic(
    settings: KafkaSettings,
    topic: str,
    *,
    identify: Extract,
    key_of: Extract,
    timeout_s: float = 30.0,
) -> TopicRows:
    """Read every partition from its beginning to the last stable offset of this moment.

    Raises:
        TopicError: The topic does not exist or may not be read.
        KafkaUnavailableError: No broker answered, or none sent anything, for ``timeout_s``.
    """
    consumer = reader(settings, "read_committed")
    try:
        ends = partition_ends(settings, consumer, topic, timeout_s)
        columns = _Columns(array("q"), array("q"), array("i"), array("q"))
        _drain(consumer, topic, ends, columns, identify, key_of, timeout_s)
    finally:
        consumer.close()
    return TopicRows(
        topic=topic,
        ids=np.frombuffer(columns.ids, np.int64),
        keys=np.frombuffer(columns.keys, np.int64),
        partitions=np.frombuffer(columns.partitions, np.int32),
        offsets=np.frombuffer(columns.offsets, np.int64),
        unidentified=columns.unidentified,
        ends=ends,
        compacted=is_compacted(settings, topic, timeout_s),
    )


def _drain(
    consumer: Consumer,
    topic: str,
    ends: dict[int, PartitionEnds],
    columns: _Columns,
    identify: Extract,
    key_of: Extract,
    timeout_s: float,
) -> None:
    unread = {partition for partition, end in ends.items() if end.low < end.stable}
    consumer.assign([TopicPartition(topic, each, ends[each].low) for each in sorted(unread)])
    heard = time.monotonic()
    while unread:
        messages = consumer.consume(_MESSAGES_AT_ONCE, timeout=0.5)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > timeout_s:
            raise KafkaUnavailableError(
                f"No broker sent anything of topic {topic} for {timeout_s:.0f} s, partitions "
                f"{sorted(unread)} are not read to their end. Look at the brokers, then try again."
            )
        for message in messages:
            partition = message.partition()
            if message.error() is not None:
                if _is_end(message, topic):
                    unread.discard(partition)  # only markers were left

            elif partition in unread:
                last = ends[partition].stable - 1
                if (message.offset() or 0) <= last:
                    columns.add(message, identify, key_of)
                if (message.offset() or 0) >= last:
                    unread.discard(partition)


def _is_end(message: Message, topic: str) -> bool:
    """Whether it tells the end of a partition; raise what is worse than a passing fault."""
    error = message.error()
    if error is None or error.retriable() or concerns_the_group(error):
        return False
    if error.code() == Code._PARTITION_EOF:  # noqa: SLF001  librdkafka's name
        return True
    raise cannot_read(topic, error)
