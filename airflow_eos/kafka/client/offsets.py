"""Offsets of many partitions: their beginnings and ends, or their first rows since a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from airflow_eos.core.checkpoint.topics import TopicPartition, no_such_topic, tell_of_no_ids
from airflow_eos.errors import KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.cluster import id_of, topic_refused
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.errors import Deadline
from airflow_eos.kafka.client.fetch import READ_COMMITTED, READ_UNCOMMITTED
from airflow_eos.kafka.client.messages import DescribeQuorumRequest, ListOffsetsRequest

EARLIEST, LATEST = -2, -1
_CONSUMER = -1
_POLICY = "cleanup.policy"
_WITHIN_S = 30.0


def partitions_of(
    wire: ConnectionPool, topics: Collection[str], *, refresh: bool = False
) -> list[TopicPartition]:
    """Return all partitions of the topics, by cached metadata or, with ``refresh``, as of now.

    Raises:
        TopicError: a topic does not exist, or may not be described.
    """
    return [
        (topic, partition)
        for topic in sorted(set(topics))
        for partition in sorted(wire.cluster.leaders(topic, refresh=refresh))
    ]


def topic_ids(wire: ConnectionPool, topics: Collection[str]) -> dict[str, str]:
    """Return the present id of each topic; a topic that is deleted and made again gets another.

    Topics without an id are left out, and not watched (Metadata below version 10, or a cluster
    that was never told to give ids).

    Raises:
        TopicError: a topic does not exist, or may not be described.
    """
    found = {}
    for topic in topics:
        told = wire.cluster.describe_topic(topic)
        if told.error_code == faults.UNKNOWN_TOPIC_OR_PARTITION:
            raise no_such_topic([topic])
        if told.error_code != faults.NONE:
            raise topic_refused(told.error_code, topic)
        if its := id_of(told):
            found[topic] = its
        else:
            tell_of_no_ids()
    return found


def cleanup_policies(wire: ConnectionPool, topics: Collection[str]) -> dict[str, str]:
    """Return the ``cleanup.policy`` of each topic, without topics that do not tell theirs."""
    found = {}
    for topic in topics:
        try:
            told = wire.cluster.topic_config(topic, [_POLICY])
        except KafkaUnavailableError:
            raise
        except KafkaError:
            continue
        if _POLICY in told:
            found[topic] = told[_POLICY]
    return found


def positions(
    wire: ConnectionPool,
    partitions: Collection[TopicPartition],
    when: int,
    *,
    committed_only: bool = True,
) -> dict[TopicPartition, int]:
    """Return, for each partition, the offset of its beginning, its end or a time.

    Args:
        when: ``EARLIEST``, ``LATEST``, or a time in ms since the epoch: the offset of the first
            row of that time or later, -1 where there is none.
        committed_only: ``LATEST`` is the last stable offset, not the high watermark.

    Raises:
        TopicError: a topic does not exist, or may not be described.
        KafkaUnavailableError: a leader did not answer in time.
    """
    found: dict[TopicPartition, int] = {}
    deadline = Deadline(_WITHIN_S)
    refresh = False
    while left := [tp for tp in partitions if tp not in found]:
        asked: dict[int, list[TopicPartition]] = defaultdict(list)
        leaders = {
            topic: wire.cluster.leaders(topic, refresh=refresh)
            for topic in {topic for topic, _ in partitions}
        }
        for tp in left:
            asked[leaders[tp[0]].get(tp[1], -1)].append(tp)
        found |= _ask(wire, asked, when, committed_only)
        refresh = True
        if not found.keys() >= set(left) and not deadline.pause():
            topic, partition = next(tp for tp in left if tp not in found)
            raise KafkaUnavailableError(
                f"Partition {partition} of topic {topic!r} does not say where it begins and ends "
                f"for {deadline}. Check that its leader runs, then start again."
            )
    return {tp: found[tp] for tp in partitions}


def by_topic(partitions: Collection[TopicPartition]) -> dict[str, list[int]]:
    """Group partitions by topic, as requests have them."""
    found: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        found[topic].append(partition)
    return found


def _ask(
    wire: ConnectionPool,
    by_leader: dict[int, list[TopicPartition]],
    when: int,
    committed_only: bool,  # noqa: FBT001
) -> dict[TopicPartition, int]:
    isolation = READ_COMMITTED if committed_only else READ_UNCOMMITTED
    sent = [
        wire.submit(_request(partitions, when, isolation=isolation), node_id=leader)
        for leader, partitions in by_leader.items()
        if leader >= 0
    ]
    found: dict[TopicPartition, int] = {}
    for future in sent:
        with suppress(KafkaUnavailableError):
            found |= {
                tp: offset
                for tp, offset in _offsets(future.result())
                if when >= 0 or offset >= 0  # an end of -1 is no answer: ask again
            }
    return found


def _request(
    tps: Collection[TopicPartition],
    when: int,
    *,
    isolation: int = READ_UNCOMMITTED,
    replica: int = _CONSUMER,
    min_version: int = 2,  # isolation
    max_version: int = 7,
) -> ListOffsetsRequest:
    kind = ListOffsetsRequest.ListOffsetsTopic
    return ListOffsetsRequest(
        replica_id=replica,
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
            for topic, partitions in by_topic(tps).items()
        ],
        min_version=min_version,
        max_version=max_version,
    )


def _offsets(answer: Any) -> Iterator[tuple[TopicPartition, int]]:
    """Yield the offsets in a leader's response, without partitions that it leads no more."""
    for topic in answer.topics:
        for each in topic.partitions:
            doing = f"while asking for offsets of partition {each.partition_index} of topic "
            acl = f"Describe on Topic {topic.name!r}"
            if faults.answered(each.error_code, doing + repr(topic.name), acl=acl):
                yield (topic.name, each.partition_index), int(each.offset)


# --- log ends -------------------------------------------------------------------------------------
# Where a partition's log begins and ends on its leader.
#
# A consumer is told the high watermark: how far all in-sync replicas have the log. The leader may
# have more: a replica may be slow (for 30 s, ``replica.lag.time.max.ms``), and a new leader does
# not know the high watermark at first (KIP-207).


_DEBUGGING = -2  # ListOffsetsRequest.DEBUGGING_REPLICA_ID: is told the end of the log itself
_EARLIEST_LOCAL = -4  # KIP-405: the first offset on the leader's own disk
_TELLS_LOCAL = 8
"""First version of ListOffsets with ``_EARLIEST_LOCAL``; before it Kafka has no tiered storage."""


class LogEnds(NamedTuple):
    """The first offset in a partition's log, and the offset that the next row gets."""

    first: int
    next: int


def log_ends(wire: ConnectionPool, topic: str, partition: int, *, leader: int) -> LogEnds | None:
    """Ask ``leader`` for the ends of a partition's log; ``None`` if it does not tell or lead now.

    Raises:
        TopicError: the topic may not be described.
        KafkaError: an unexpected error code.
    """
    tp = (topic, partition)
    following = _of_leader(
        wire, leader, tp, _request([tp], LATEST, replica=_DEBUGGING, min_version=1)
    )
    # Asked second: a follower answers the request above, too, and refuses this one.
    first = _of_leader(wire, leader, tp, _request([tp], EARLIEST, min_version=1))
    return None if first is None or following is None else LogEnds(first, following)


def tells_local(wire: ConnectionPool) -> bool:
    """Whether the cluster tells which offsets are on the leader's disk (Kafka 3.6, KIP-405)."""
    return wire.highest_version(ListOffsetsRequest) >= _TELLS_LOCAL


def is_local(wire: ConnectionPool, topic: str, partition: int, offset: int, *, leader: int) -> bool:
    """Whether ``leader`` reads ``offset`` from its own disk; False also where it does not tell.

    It fetches rows from remote storage in the background, and answers a consumer with no rows and
    no error until that is done, or while its quota is used up (KIP-405, KIP-956). So an empty
    answer means a hole only where it came from the disk. The first local offset only grows: an
    offset that is local now was local when an earlier answer was given.

    Raises:
        TopicError: the topic may not be described.
        KafkaError: an unexpected error code.
    """
    if not tells_local(wire):
        return True
    tp = (topic, partition)
    request = _request([tp], _EARLIEST_LOCAL, min_version=_TELLS_LOCAL, max_version=9)
    first = _of_leader(wire, leader, tp, request)
    return first is not None and 0 <= first <= offset


def _of_leader(
    wire: ConnectionPool, leader: int, tp: TopicPartition, request: ListOffsetsRequest
) -> int | None:
    try:
        answer = wire.submit(request, node_id=leader).result()
    except KafkaUnavailableError:
        return None
    offset = dict(_offsets(answer)).get(tp, -1)
    return offset if offset >= 0 else None


# --- quorum ---------------------------------------------------------------------------------------
# The cluster's clock, read from the metadata quorum.


_TOPIC = "__cluster_metadata"


def cluster_clock_ms(wire: ConnectionPool) -> int | None:
    """Return the active controller's clock in ms since the epoch; None where it is not told.

    As the quorum's leader it has caught up with itself *now*, always (KIP-836). The request needs
    Describe on Cluster, and a cluster without ZooKeeper.

    Raises:
        KafkaUnavailableError: no broker answered.
    """
    topic = DescribeQuorumRequest.TopicData
    request = DescribeQuorumRequest(
        topics=[
            topic(topic_name=_TOPIC, partitions=[topic.PartitionData(partition_index=0)]),
        ],
        min_version=1,  # the times
    )
    try:
        answer = wire.request(request)
    except KafkaUnavailableError:
        raise
    except KafkaError:  # a broker that lacks DescribeQuorum 1
        return None
    told = [
        int(each.last_caught_up_timestamp)
        for topics in answer.topics
        for found in topics.partitions
        if answer.error_code == found.error_code == faults.NONE
        for each in found.current_voters
        if each.replica_id == found.leader_id and each.last_caught_up_timestamp > 0
    ]
    return told[0] if told else None
