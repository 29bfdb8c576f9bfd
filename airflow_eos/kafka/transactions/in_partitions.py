"""What the leaders of partitions say: which transactions are open there, known or not (KIP-664)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.messages import DescribeProducersRequest
from airflow_eos.kafka.client.positions import Place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from airflow_eos.kafka.client.deadline import Deadline
    from airflow_eos.kafka.client.wire import Wire


@dataclass(frozen=True, slots=True, order=True)
class HangingTransaction:
    """One transaction, in one partition; what its marker needs.

    Attributes:
        topic: where it is open.
        partition: where it is open.
        start: offset of its first row, which the last stable offset cannot pass.
        producer_id: of who wrote it.
        producer_epoch: the newest that the partition has seen.
        coordinator_epoch: of the marker before; -1 where there was none.
        last_written_ms: timestamp of its newest row, milliseconds since the epoch.
        committed: its coordinator has committed it, and its marker was left out (see
            ``markers.py``): it is to be committed here as well.
    """

    topic: str
    partition: int
    start: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_written_ms: int
    committed: bool = False


def open_in_partitions(
    wire: Wire, partitions: Collection[Place], deadline: Deadline
) -> set[HangingTransaction]:
    """What the leaders have open, whether or not anybody knows of it.

    Raises:
        KafkaUnavailableError: a leader did not answer in time.
    """
    found: set[HangingTransaction] = set()
    left = sorted(partitions)
    refresh = False
    while left:
        again: list[Place] = []
        for asked, answer in _describe(wire, left, refresh=refresh):
            if answer is None:
                again.append(asked)
            else:
                found |= _open_of(asked, answer)
        if again and not deadline.pause():
            raise KafkaUnavailableError(
                f"The producers of {len(again)} partitions could not be described within "
                f"{deadline}, as of {again[0][0]}-{again[0][1]}. Check that all brokers run, then "
                "ask again."
            )
        left, refresh = again, True
    return found


def _describe(wire: Wire, partitions: list[Place], *, refresh: bool) -> Iterator[tuple[Place, Any]]:
    """The answer of each partition's leader, one request for each leader; None: ask again."""
    leaders = {t: wire.cluster.leaders(t, refresh=refresh) for t in {t for t, _ in partitions}}
    shares: defaultdict[int | None, list[Place]] = defaultdict(list)
    for topic, partition in partitions:
        shares[leaders[topic].get(partition)].append((topic, partition))
    sent = {
        leader: wire.submit(_producers_of(share), node_id=leader)
        for leader, share in shares.items()
        if leader is not None
    }
    for leader, share in shares.items():
        try:
            topics = sent[leader].result().topics if leader is not None else ()
        except KafkaUnavailableError:
            topics = ()
        answers = {(t.name, each.partition_index): each for t in topics for each in t.partitions}
        for topic, partition in share:
            answer = answers.get((topic, partition))
            doing = f"while describing the producers of {topic}-{partition}"
            acl = f"Read on Topic {topic!r}"
            said = answer is not None and faults.answered(answer.error_code, doing, acl=acl)
            yield (topic, partition), answer if said else None


def _producers_of(places: list[Place]) -> DescribeProducersRequest:
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in places:
        by_topic[topic].append(partition)
    asked = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(
        topics=[asked(name=name, partition_indexes=found) for name, found in by_topic.items()]
    )


def _open_of(where: Place, answer: Any) -> set[HangingTransaction]:
    topic, partition = where
    return {
        HangingTransaction(
            topic=topic,
            partition=partition,
            start=producer.current_txn_start_offset,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            coordinator_epoch=producer.coordinator_epoch,
            last_written_ms=producer.last_timestamp,
        )
        for producer in answer.active_producers
        if producer.current_txn_start_offset >= 0
    }
