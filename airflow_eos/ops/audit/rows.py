"""Read a whole topic as a ``read_committed`` reader sees it, into a few numbers a row.

It uses only librdkafka's consumer and nothing of the code under test.
"""

from __future__ import annotations

import logging
import time
import uuid
from array import array
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from confluent_kafka import Consumer, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka import KafkaError as Code
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from airflow_eos.errors import KafkaError, KafkaUnavailableError, TopicError

if TYPE_CHECKING:
    import numpy.typing as npt

    from airflow_eos.kafka.client.settings import KafkaSettings

_LOOK_S = 2.0

Extract = Callable[[Message], bytes | None]
"""A function that returns the named part of a message as bytes, or None where it has none."""


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """Offsets of one partition: first retained, last stable offset, high watermark.

    Between the last stable offset and the high watermark lie rows of open transactions.
    """

    low: int
    stable: int
    high: int


def partition_ends(
    settings: KafkaSettings, committed: AuditConsumer, topic: str, timeout_s: float
) -> dict[int, PartitionEnds]:
    """Return the ends of each partition, asked as a read_committed and a read_uncommitted reader.

    In this order: rows that a live pipeline commits in between look open, never the other way.
    """
    found = {}
    with closing(reader(settings, "read_uncommitted")) as uncommitted:
        for partition in _partitions(committed, topic, timeout_s):
            tp = TopicPartition(topic, partition)
            low, stable = _watermarks(committed, tp, timeout_s)
            _, high = _watermarks(uncommitted, tp, timeout_s)
            found[partition] = PartitionEnds(low, stable, high)
    return found


def is_compacted(settings: KafkaSettings, topic: str, timeout_s: float) -> bool | None:
    """Whether rows may be missing from the middle of a topic; None where nobody tells us.

    Raises:
        KafkaUnavailableError: no broker answered.
    """
    admin = AdminClient(settings.librdkafka(), logger=_silent())
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        answer = admin.describe_configs([resource], request_timeout=timeout_s)[resource]
        policy = _answered(answer, timeout_s).get("cleanup.policy")
        return None if policy is None else "compact" in str(policy.value)
    except KafkaException as error:
        if error.args[0].code() == Code.TOPIC_AUTHORIZATION_FAILED:
            return None
        raise _unavailable(settings.bootstrap_servers, error) from error


def topic_id(settings: KafkaSettings, topic: str, timeout_s: float) -> str | None:
    """Return the topic's id, which a topic that is made again does not keep; None if nobody tells.

    Raises:
        KafkaUnavailableError: no broker answered.
    """
    admin = AdminClient(settings.librdkafka(), logger=_silent())
    asked = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)
    try:
        found = _answered(asked[topic], timeout_s).topic_id
    except KafkaException as error:
        raise _unavailable(settings.bootstrap_servers, error) from error
    # librdkafka's base64 is not URL-safe; Java's, by which the product notes it, is.
    return None if found is None else str(found).translate(str.maketrans("+/", "-_"))


def _answered(future: Future[Any], timeout_s: float) -> Any:
    """Return an admin client's answer; KafkaException also where librdkafka's time ends late."""
    try:
        return future.result(timeout_s)
    except TimeoutError:
        raise KafkaException(Code(Code._TIMED_OUT)) from None  # noqa: SLF001  librdkafka's name


def peek(settings: KafkaSettings, topic: str, partition: int, offset: int) -> Message | None:
    """Fetch one row again, to show it to a person; None where it cannot be had any more."""
    with closing(reader(settings, "read_uncommitted")) as consumer:
        consumer.assign([TopicPartition(topic, partition, offset)])
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and not concerns_the_group(message.error()):
                wanted = message.error() is None and message.offset() == offset
                return message if wanted else None
    return None


class AuditConsumer(Consumer):
    """A consumer that remembers whether it was refused: librdkafka only goes on trying.

    Attributes:
        refusal: the error with which they refused the client.
    """

    def __init__(self, config: dict[str, Any], **others: Any) -> None:
        self.servers = str(config.get("bootstrap.servers"))
        self.refusal: Code | None = None
        super().__init__({**config, "error_cb": self._hear}, **others)

    def _hear(self, error: Code) -> None:
        if error.code() in (Code._AUTHENTICATION, Code.SASL_AUTHENTICATION_FAILED):  # noqa: SLF001
            self.refusal = error


def _partitions(consumer: AuditConsumer, topic: str, timeout_s: float) -> list[int]:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            patience = max(min(_LOOK_S, deadline - time.monotonic()), 0.1)
            metadata = consumer.list_topics(topic, timeout=patience).topics[topic]
            break
        except KafkaException as error:
            consumer.poll(0)  # calls error_cb, which notes a refusal
            if consumer.refusal is not None:
                raise KafkaError(
                    f"Kafka at {consumer.servers} did not accept this client: "
                    f"{consumer.refusal.str()}. Check security.protocol, sasl.mechanism and its "
                    "credentials."
                ) from error
            if time.monotonic() >= deadline:
                raise _unavailable(consumer.servers, error) from error
    if metadata.error is not None or not metadata.partitions:
        raise cannot_read(topic, metadata.error)
    return sorted(metadata.partitions)


def _watermarks(consumer: AuditConsumer, tp: TopicPartition, timeout_s: float) -> tuple[int, int]:
    try:
        found: Any = consumer.get_watermark_offsets(tp, timeout=timeout_s, cached=False)
    except KafkaException as error:
        raise _unavailable(consumer.servers, error) from error
    if found is None:
        raise KafkaUnavailableError(f"No broker told the offsets of {tp.topic} in {timeout_s} s.")
    low, high = found
    return int(low), int(high)


def cannot_read(topic: str, error: Code | None) -> TopicError:
    """Return the error for a topic that is not there, or may not be read."""
    reason = error.str() if error is not None else "it has no partitions"
    return TopicError(
        f"Topic {topic!r} cannot be audited: {reason}. Check its name and the cluster, and that "
        f"the principal has the ACL Read on Topic {topic!r}."
    )


def concerns_the_group(error: Code | None) -> bool:
    """Whether the error is about the group alone: librdkafka looks for one that we never join."""
    return error is not None and error.code() == Code.GROUP_AUTHORIZATION_FAILED


def _unavailable(servers: str, error: KafkaException) -> KafkaUnavailableError:
    return KafkaUnavailableError(
        f"Kafka at {servers} did not answer: {error.args[0].str()}. Check bootstrap.servers and "
        "that the brokers run, then try again."
    )


def reader(settings: KafkaSettings, isolation: str) -> AuditConsumer:
    """Build a consumer of the given ``isolation.level`` from a connection's settings."""
    config = {
        key: value
        for key, value in settings.librdkafka().items()
        # a connection may carry a producer's settings as well
        if not key.startswith(("transaction", "enable.idempotence", "acks", "compression", "queue"))
    }
    return AuditConsumer(
        config
        | {
            "group.id": f"airflow-eos-audit-{uuid.uuid4().hex}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
        },
        logger=_silent(),
    )


def _silent() -> logging.Logger:
    """Return a logger that keeps librdkafka off the terminal: errors come back as exceptions."""
    logger = logging.getLogger("airflow_eos.recovery.audit")
    logger.setLevel(logging.CRITICAL)
    return logger


NO_KEY = 0
_MESSAGES_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class TopicRows:
    """The rows of one topic, 28 bytes each; ``ids`` and ``keys`` hash to 64 bits in this process.

    Several million rows stay far from a chance collision of 64 bits. ``keys`` is ``NO_KEY`` where
    a row has none; ``unidentified`` counts rows that are named by their whole value because they
    lack the part that should name them (malformed rows, as in a dead-letter topic). ``keyless``
    counts the other rows that have no key. ``compacted`` is None where the broker does not tell.
    """

    topic: str
    ids: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    partitions: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    unidentified: int
    ends: dict[int, PartitionEnds]
    compacted: bool | None = False
    keyless: int = 0

    @property
    def whole(self) -> bool:
        """Whether the topic has every row that was ever written to it."""
        return self.compacted is False and all(
            end.low == 0 and end.stable == end.high for end in self.ends.values()
        )


@dataclass(slots=True)
class _MessageColumns:
    ids: array[int]
    keys: array[int]
    partitions: array[int]
    offsets: array[int]
    unidentified: int = 0
    keyless: int = 0

    def add(self, message: Message, identify: Extract, key_of: Extract) -> None:
        name, key = identify(message), key_of(message)
        if name is not None and key is None:
            self.keyless += 1
        if name is None:
            self.unidentified += 1
            value: Any = message.value()
            name = b"\0whole value\0" + (value or b"")
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
    with closing(reader(settings, "read_committed")) as consumer:
        ends = partition_ends(settings, consumer, topic, timeout_s)
        columns = _MessageColumns(array("q"), array("q"), array("i"), array("q"))
        _drain(consumer, topic, ends, columns, identify, key_of, timeout_s)
    return TopicRows(
        topic=topic,
        ids=np.frombuffer(columns.ids, np.int64),
        keys=np.frombuffer(columns.keys, np.int64),
        partitions=np.frombuffer(columns.partitions, np.int32),
        offsets=np.frombuffer(columns.offsets, np.int64),
        unidentified=columns.unidentified,
        keyless=columns.keyless,
        ends=ends,
        compacted=is_compacted(settings, topic, timeout_s),
    )


def _drain(
    consumer: Consumer,
    topic: str,
    ends: dict[int, PartitionEnds],
    columns: _MessageColumns,
    identify: Extract,
    key_of: Extract,
    timeout_s: float,
) -> None:
    unread = {partition for partition, end in ends.items() if end.low < end.stable}
    consumer.assign([TopicPartition(topic, each, ends[each].low) for each in sorted(unread)])
    heard = time.monotonic()
    while unread:
        known = len(columns.ids), len(unread)
        for message in consumer.consume(_MESSAGES_AT_ONCE, timeout=0.5):
            partition = message.partition() or 0
            if message.error() is not None:
                # A new leader, or a follower, does not know at first how far its log goes: what it
                # calls the end may come before rows that were there when the ends were asked for.
                if _is_end(message, topic) and (message.offset() or 0) >= ends[partition].stable:
                    unread.discard(partition)  # only markers were left
            elif partition in unread:
                last = ends[partition].stable - 1
                if (message.offset() or 0) <= last:
                    columns.add(message, identify, key_of)
                if (message.offset() or 0) >= last:
                    unread.discard(partition)
        # What somebody writes on behind an end says nothing of a partition that nobody answers for.
        if (len(columns.ids), len(unread)) != known:
            heard = time.monotonic()
        elif time.monotonic() - heard > timeout_s:
            raise KafkaUnavailableError(
                f"No broker sent anything of topic {topic} for {timeout_s:.0f} s, partitions "
                f"{sorted(unread)} are not read to their end. Look at the brokers, then try again."
            )


def _is_end(message: Message, topic: str) -> bool:
    """Whether the message tells the end of a partition; raise what is no passing fault."""
    error = message.error()
    if error is None or error.retriable() or concerns_the_group(error):
        return False
    if error.code() == Code._PARTITION_EOF:  # noqa: SLF001  librdkafka's name
        return True
    raise cannot_read(topic, error)
