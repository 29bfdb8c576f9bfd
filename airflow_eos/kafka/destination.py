"""The topics that rows go to, their limits, and which rows they cannot take.

Topics are asked for again every minute. Brokers measure a record batch as they store it, so what a
topic is measured in is told here too, whichever writer sends the rows.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from airflow_eos.errors import RowError, TopicError
from airflow_eos.kafka.client.codecs import NAMES, Codec, codec
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.records import FRAME_BYTES, HEADER_BYTES, first_record
from airflow_eos.kafka.columns import (
    explicit_partitions,
    header_items,
    require_bytes,
    require_value,
    timestamps_of,
    topics_of,
)

_NEVER_BYTES = (1 << 31) - (1 << 20)
"""The size from which a row fits no request, however well it may compress."""
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's own default of max.message.bytes, for principals that may not read the topic's."""
_FRESH_S = 60.0
_SETTINGS = ("max.message.bytes", "segment.bytes", "compression.type")
"""The two settings that limit the size of a record batch, and what it is measured as."""
_SHOWN_BYTES = 60


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, as a writer knows it.

    Attributes:
        name: the topic's name.
        partitions: how many it has.
        max_batch_bytes: size of the largest record batch, as it is sent and as it is stored.
        stored: the codec of the topic's ``compression.type``, in which batches are sent: brokers
            measure what they store, too. None: they store batches as they come.
        turns: numbers that tell the partition of the next rows without a key.
    """

    name: str
    partitions: int
    max_batch_bytes: int
    stored: Codec | None = None
    turns: Iterator[int] = field(
        default_factory=lambda: itertools.count(random.randrange(1 << 16)),  # noqa: S311 - no secret
        compare=False,
    )

    @property
    def surely_fits(self) -> int:
        """The bytes up to which a row fits the topic, whatever they compress to."""
        limit = self.max_batch_bytes  # incompressible rows can grow by a few bytes
        return limit - HEADER_BYTES - limit // 128 - FRAME_BYTES

    def require_partitions(self, given: NDArray[Any]) -> None:
        """Refuse rows that name a partition which the topic does not have (RowError)."""
        if int(given.max(initial=-1)) >= self.partitions:
            row = int(given.argmax())
            raise RowError(
                f"row {row} is for partition {int(given[row])} of topic {self.name!r}, "
                f"which has the partitions 0 to {self.partitions - 1}: correct the column "
                "'partition', or leave it null to let the key choose"
            )

    def too_large(self, key: bytes | None, size: int, how: Codec) -> RowError:
        """Return the error for a row that needs ``size`` bytes, compressed by ``how``."""
        shown = None if key is None else key[:_SHOWN_BYTES] + b"..." * (len(key) > _SHOWN_BYTES)
        named = "the row without a key" if key is None else f"the row with key {shown!r}"
        whose = ", by the topic's compression.type" if self.stored is not None else ""
        return RowError(
            f"{named} needs {size} bytes as a record batch of its own ({how.name}{whose}); "
            f"topic {self.name!r} takes {self.max_batch_bytes} "
            "(the lesser of max.message.bytes and segment.bytes): raise that setting, "
            f"{'set compression.type=producer, ' if whose else ''}or send less in one row"
        )


class Topics:
    """Cache of topics by name: each one's partitions, largest record batch, and codec."""

    def __init__(self, wire: ConnectionPool) -> None:
        self._wire = wire
        self._known: dict[str, tuple[float, Topic]] = {}

    @property
    def partitions(self) -> int:
        """The number of partitions of all topics looked up so far."""
        return sum(topic.partitions for _, topic in self._known.values())

    @property
    def max_batch_bytes(self) -> int:
        """The size of a record batch that all topics looked up so far take."""
        limits = (topic.max_batch_bytes for _, topic in self._known.values())
        return min(limits, default=DEFAULT_MAX_MESSAGE_BYTES)

    @property
    def stored(self) -> Codec | None:
        """The one codec of all topics looked up so far; None where they have none in common."""
        found = {topic.stored for _, topic in self._known.values()}
        return found.pop() if len(found) == 1 else None

    def invalidate(self) -> None:
        """Have the next look-up ask again: a limit may have been raised within the minute."""
        self._known = {name: (-math.inf, topic) for name, (_, topic) in self._known.items()}

    def look_up(self, name: str) -> Topic:
        """Return a topic as of the last minute: partitions may have been added since.

        Raises:
            TopicError: the topic does not exist or may not be described.
        """
        now = time.monotonic()
        asked_at, known = self._known.get(name, (-_FRESH_S, None))
        if known is not None and now - asked_at < _FRESH_S:
            return known
        count = len(self._wire.cluster.leaders(name, refresh=True))
        most, stored = self._limit(name)
        topic = Topic(name, count, most, stored)
        if known is not None:
            topic = replace(topic, turns=known.turns)
        self._known[name] = (now, topic)
        return topic

    def _limit(self, topic: str) -> tuple[int, Codec | None]:
        """Return the size of a topic's largest record batch, and the codec that it is stored in."""
        try:
            found = self._wire.cluster.topic_config(topic, _SETTINGS)
        except TopicError:
            # Writing needs no right to read settings: what is refused for its size is halved.
            return DEFAULT_MAX_MESSAGE_BYTES, None
        most = int(found.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES))
        kept = {"uncompressed": "none"}.get(kind := found.get("compression.type", "producer"), kind)
        most = min(most, int(found.get("segment.bytes", most)))
        return most, codec(kept) if kept in NAMES else None


class Destination:
    """The topics that rows go to, with their limits, and the codec.

    Args:
        wire: the connections by which topics are looked up.
        topic: the topic of rows without a ``topic`` of their own.
        compression: none, gzip, snappy, lz4 or zstd.

    Raises:
        ConfigurationError: no such compression.
    """

    def __init__(self, wire: ConnectionPool, *, topic: str | None, compression: str) -> None:
        self.topic = topic
        self.topics = Topics(wire)
        self.codec = codec(compression)

    def require_sendable(self, rows: pa.RecordBatch) -> None:
        """Look the rows' topics up, and refuse rows that cannot be sent; nothing is sent.

        Raises:
            RowError: a row that cannot be sent as it is.
            TopicError: a topic that some row names does not exist.
        """
        try:
            self._require_sendable(rows)
        except RowError:
            # The topic's limit may just have been raised because of this row.
            self.topics.invalidate()
            self._require_sendable(rows)

    def _require_sendable(self, rows: pa.RecordBatch) -> None:
        names = rows.schema.names
        require_value(rows)
        for name in {"key", "value"}.intersection(names):
            require_bytes(rows.column(name), name)
        timestamps_of(rows, now_ms=0)
        if "headers" in names:
            header_items(rows.column("headers"))
        topics, of_row = topics_of(rows, self.topic)
        found = [self.topics.look_up(name) for name in topics]
        given = explicit_partitions(rows.column("partition")) if "partition" in names else None
        if given is not None:
            for number, topic in enumerate(found):
                topic.require_partitions(given if of_row is None else given[of_row == number])
        for row in _larger(rows, min(topic.surely_fits for topic in found)):
            topic = found[0 if of_row is None else int(of_row[row])]
            self._require_fitting(topic, rows.slice(row, 1))

    def _require_fitting(self, topic: Topic, row: pa.RecordBatch) -> None:
        names = {"key", "value", "headers"}.intersection(row.schema.names)
        [its] = row.select(sorted(names)).to_pylist()
        key, value = _as_bytes(its.get("key")), _as_bytes(its["value"])
        how, size = topic.stored or self.codec, _size(row)
        if size < _NEVER_BYTES:
            headers = [(each["key"], each["value"]) for each in its.get("headers") or ()]
            size = HEADER_BYTES + len(how.compress(first_record(key, value, headers)))
        if size > topic.max_batch_bytes:
            raise topic.too_large(key, size, how)


def _larger(rows: pa.RecordBatch, most: int, first: int = 0) -> Iterator[int]:
    """Yield the rows that may have more than ``most`` bytes; many are small all together."""
    if not rows.num_rows or _size(rows) <= most:
        return
    if rows.num_rows == 1:
        yield first
        return
    half = rows.num_rows // 2
    yield from _larger(rows.slice(0, half), most, first)
    yield from _larger(rows.slice(half), most, first + half)


def _size(rows: pa.RecordBatch) -> int:
    """Return the bytes of rows; pyarrow before 24 cannot tell those of views."""
    views = (pa.binary_view(), pa.string_view())
    plain = (each.cast(pa.large_binary()) if each.type in views else each for each in rows.columns)
    return sum(each.nbytes for each in plain)


def _as_bytes(content: Any) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
