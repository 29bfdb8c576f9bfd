"""Where partitions begin and end for a reader, and where a moment is in them: one look for all."""

from __future__ import annotations

import base64
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

from airflow_eos.errors import KafkaError, KafkaUnavailableError, TopicError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.cluster import topic_refused
from airflow_eos.kafka.client.deadline import Deadline
from airflow_eos.kafka.client.fetch import READ_COMMITTED, READ_UNCOMMITTED
from airflow_eos.kafka.client.messages import ListOffsetsRequest

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_eos.kafka.client.wire import Wire

Place = tuple[str, int]
"""Topic and partition."""

EARLIEST, LATEST = -2, -1
_CONSUMER = -1
_POLICY = "cleanup.policy"
_WITHIN_S = 30.0


def partitions_of(wire: Wire, topics: Collection[str], *, refresh: bool = False) -> list[Place]:
    """Every partition that the topics have now.

    Raises:
        TopicError: a topic does not exist, or may not be described.
    """
    return [
        (topic, partition)
        for topic in sorted(set(topics))
        for partition in sorted(wire.cluster.leaders(topic, refresh=refresh))
    ]


def topic_ids(wire: Wire, topics: Collection[str]) -> dict[str, str]:
    """Topic → id, which a topic that is deleted and made again does not keep; asked for now.

    Left out are those of a broker without ids (Metadata below version 10): nobody watches them.

    Raises:
        TopicError: a topic does not exist, or may not be described.
    """
    found = {}
    for topic in topics:
        told = wire.cluster.describe_topic(topic)
        if told.error_code == faults.UNKNOWN_TOPIC_OR_PARTITION:
            raise TopicError(
                f"Topic {topic!r}, which the query reads, does not exist, or was deleted while it "
                "was read: rows that were not read are gone with it. Create the topic before the "
                "first start."
            )
        if told.error_code != faults.NONE:
            raise topic_refused(told.error_code, topic)
        if told.topic_id is None:
            _tell_of_no_ids()
            continue
        # As Java writes it (Uuid.toString), which is how Spark's source has it noted.
        found[topic] = base64.urlsafe_b64encode(told.topic_id.bytes).decode().rstrip("=")
    return found


def cleanup_policies(wire: Wire, topics: Collection[str]) -> dict[str, str]:
    """Topic → ``cleanup.policy``; none of those whose settings may not be read."""
    found = {}
    for topic in topics:
        try:
            found[topic] = wire.cluster.topic_config(topic, [_POLICY])[_POLICY]
        except KafkaUnavailableError:
            raise
        except KafkaError:
            continue
    return found


@cache
def _tell_of_no_ids() -> None:
    import structlog

    structlog.get_logger(__name__).warning(
        "topics_not_watched",
        hint="this broker gives topics no ids (Metadata below version 10): a topic that is deleted "
        "and made again with more rows than were read is not noticed",
    )


def positions(
    wire: Wire, places: Collection[Place], when: int, *, committed_only: bool = True
) -> dict[Place, int]:
    """The offset of each place: where it begins or ends, or of a moment.

    Args:
        wire: connections to the cluster.
        places: of which topics and partitions.
        when: ``EARLIEST``, ``LATEST``, or ms since the epoch: the first row of then or later, -1
            where there is none.
        committed_only: ``LATEST`` is the last stable offset, not the high watermark.

    Raises:
        TopicError: a topic does not exist, or may not be described.
        KafkaUnavailableError: a leader did not answer in time.
    """
    found: dict[Place, int] = {}
    deadline = Deadline(_WITHIN_S)
    refresh = False
    while len(found) < len(places):
        asked: dict[int, list[Place]] = defaultdict(list)
        leaders = {
            topic: wire.cluster.leaders(topic, refresh=refresh)
            for topic in {topic for topic, _ in places}
        }
        for place in places:
            if place not in found:
                asked[leaders[place[0]].get(place[1], -1)].append(place)
        found |= _ask(wire, asked, when, committed_only)
        refresh = True
        if len(found) < len(places) and not deadline.pause():
            topic, partition = next(place for place in places if place not in found)
            raise KafkaUnavailableError(
                f"Partition {partition} of topic {topic!r} does not say where it begins and ends "
                f"for {deadline}. Check that its leader runs, then start again."
            )
    return found


def _ask(
    wire: Wire,
    asked: dict[int, list[Place]],
    when: int,
    committed_only: bool,  # noqa: FBT001
) -> dict[Place, int]:
    isolation = READ_COMMITTED if committed_only else READ_UNCOMMITTED
    sent = [
        wire.submit(_request(places, when, isolation), node_id=leader)
        for leader, places in asked.items()
        if leader >= 0
    ]
    found: dict[Place, int] = {}
    for future in sent:
        try:
            answer = future.result()
        except KafkaUnavailableError:
            continue
        for topic in answer.topics:
            for each in topic.partitions:
                doing = (
                    f"while asking for offsets of partition {each.partition_index} of topic "
                    f"{topic.name!r}"
                )
                if faults.answered(each.error_code, doing, acl=f"Describe on Topic {topic.name!r}"):
                    found[topic.name, each.partition_index] = int(each.offset)
    return found


def _request(places: list[Place], when: int, isolation: int) -> ListOffsetsRequest:
    kind = ListOffsetsRequest.ListOffsetsTopic
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in places:
        by_topic[topic].append(partition)
    return ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=isolation,
        topics=[
            kind(
                name=topic,
                partitions=[
                    kind.ListOffsetsPartition(
                        partition_index=partition, current_leader_epoch=-1, timestamp=when
                    )
                    for partition in partitions
                ],
            )
            for topic, partitions in by_topic.items()
        ],
        min_version=2,  # isolation
        max_version=7,
    )
