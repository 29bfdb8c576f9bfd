"""Where the log of a partition begins and ends, as its leader itself has it.

A consumer is told the high watermark: how far all replicas in sync have the log. The leader may
have more than that: a replica may be slow (for 30 s, ``replica.lag.time.max.ms``), and a new
leader does not know the high watermark at first (KIP-207).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.messages import ListOffsetsRequest

if TYPE_CHECKING:
    from airflow_eos.kafka.client.wire import Wire

_CONSUMER = -1
_DEBUGGING = -2  # ListOffsetsRequest.DEBUGGING_REPLICA_ID: told the end of the log itself
_EARLIEST, _LATEST = -2, -1
_EARLIEST_LOCAL = -4  # KIP-405: where the leader's own disk begins
_TELLS_LOCAL = 8
"""The version of ListOffsets that has it: Apache Kafka has no tiered storage without."""


class LogEnds(NamedTuple):
    """The first offset that is there, and the one that the next row gets."""

    first: int
    next: int


def log_ends(wire: Wire, topic: str, partition: int, *, leader: int) -> LogEnds | None:
    """Ask ``leader``; ``None`` where it does not say, or is the leader no longer.

    Raises:
        TopicError: the topic may not be described.
        KafkaError: an answer that nobody expects.
    """
    following = _ask(wire, topic, partition, leader, (_DEBUGGING, _LATEST))
    # Second, because a follower would answer the other question, too, and this one it refuses.
    first = _ask(wire, topic, partition, leader, (_CONSUMER, _EARLIEST))
    return None if first is None or following is None else LogEnds(first, following)


def is_local(wire: Wire, topic: str, partition: int, offset: int, *, leader: int) -> bool:
    """Whether ``leader`` reads ``offset`` from its own disk; False as well where it does not say.

    What lies in remote storage it fetches in the background, and answers a consumer with no rows
    and no error until that is done, or while its quota is used up (KIP-405, KIP-956). So an empty
    answer tells of a hole only where it came from the disk. The beginning of that only moves on:
    an offset that is local now was local when an answer of before was given.

    Raises:
        TopicError: the topic may not be described.
        KafkaError: an answer that nobody expects.
    """
    if wire.highest_version(ListOffsetsRequest) < _TELLS_LOCAL:
        return True
    question = (_CONSUMER, _EARLIEST_LOCAL)
    first = _ask(wire, topic, partition, leader, question, versions=(_TELLS_LOCAL, 9))
    return first is not None and 0 <= first <= offset


def _ask(
    wire: Wire,
    topic: str,
    partition: int,
    leader: int,
    question: tuple[int, int],
    *,
    versions: tuple[int, int] = (1, 7),
) -> int | None:
    replica, timestamp = question
    kind = ListOffsetsRequest.ListOffsetsTopic
    wanted = kind.ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=-1, timestamp=timestamp
    )
    request = ListOffsetsRequest(
        replica_id=replica,
        isolation_level=0,
        topics=[kind(name=topic, partitions=[wanted])],
        min_version=versions[0],
        max_version=versions[1],
    )
    try:
        answer = wire.submit(request, node_id=leader).result().topics[0].partitions[0]
    except KafkaUnavailableError:
        return None
    doing = f"while asking for the offsets of partition {partition} of topic {topic!r}"
    said = faults.answered(answer.error_code, doing, acl=f"Describe on Topic {topic!r}")
    return int(answer.offset) if said else None
