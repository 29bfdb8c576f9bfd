"""How much a query has not read yet: its last offsets against the ends of the topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from airflow_eos.errors import KafkaUnavailableError, TopicError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_eos.checkpoint.progress import SourceProgress
    from airflow_eos.kafka.client.settings import KafkaSettings

_TIMEOUT_S = 30.0


def unread_offsets(kafka: KafkaSettings, sources: Sequence[SourceProgress]) -> int | None:
    """Count the offsets between what was planned last and what a reader could read now.

    The end is the last stable offset: rows of a transaction that is still open upstream cannot be
    read, so they are no reason to call a pipeline stalled. An upper bound of rows. None where a
    source is not Kafka, or nothing was ever planned.

    Raises:
        KafkaUnavailableError: the cluster did not answer.
        TopicError: an input topic is gone.
    """
    if not sources or any(source.end is None for source in sources):
        return None
    client = AdminClient(kafka.librdkafka())
    try:
        return sum(_unread(client, source.end or {}) for source in sources)
    except KafkaException as error:
        raise KafkaUnavailableError(
            f"The ends of the input topics could not be read from {kafka.bootstrap_servers}: "
            f"{error.args[0]}. Check that the brokers are up and the topics exist."
        ) from error


def _unread(client: AdminClient, read: dict[str, dict[int, int]]) -> int:
    partitions = [
        TopicPartition(topic, partition)
        for topic in read
        for partition in _partitions(client, topic)
    ]
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    ends = client.list_offsets(
        dict.fromkeys(partitions, latest),
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=_TIMEOUT_S,
    )
    # A partition that the query has not seen yet counts from its beginning.
    return sum(
        max(0, end.result(_TIMEOUT_S).offset - read[each.topic].get(each.partition, 0))
        for each, end in ends.items()
    )


def _partitions(client: AdminClient, topic: str) -> list[int]:
    found = client.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
    if found.error is not None:
        raise TopicError(
            f"Input topic {topic!r} cannot be looked at: {found.error.str()}. Was it deleted, or "
            "is kafka_config_id the connection of another cluster?"
        )
    return list(found.partitions)
