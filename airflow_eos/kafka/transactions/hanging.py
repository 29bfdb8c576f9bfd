"""Hanging transactions (KIP-664): open in a partition, and no coordinator knows of them.

Nobody can commit or abort such a transaction any more, its timeout included: that is a task of the
coordinator, which has forgotten it or never knew. It holds the last stable offset of its partition
back for ever, for every ``read_committed`` reader. What is left is to write the marker into the
partition itself, as ``kafka-transactions.sh abort`` does: the commit marker where its coordinator
still knows that it has committed it, else the abort marker. A promise that is aborted so is
replayed, as after a timeout.

The order of the questions is the proof. A coordinator adds a partition to a transaction *before*
the partition takes the first row, and forgets it *after* the marker is there. So what is open in
the partition, then unknown to every coordinator, then still open from the same offset, is hanging.
Coordinators do not list what the asking principal may not describe, though, and brokers before 3.6
do not verify that a partition was added; hence the age as well, as Kafka's own tool has it: what is
older than the longest timeout would have been ended, whoever owns it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import KafkaUnavailableError, TransactionError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.deadline import Deadline
from airflow_eos.kafka.client.messages import DescribeProducersRequest, WriteTxnMarkersRequest
from airflow_eos.kafka.transactions.listing import (
    committed_by_coordinators,
    held_by_coordinators,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from concurrent.futures import Future

    from airflow_eos.kafka.client.wire import Wire

_MAX_TIMEOUT = "transaction.max.timeout.ms"
_PADDING_MS = 5 * 60 * 1000  # org.apache.kafka.tools.TransactionsCommand


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
            :mod:`.markers`): it is to be committed here as well.
    """

    topic: str
    partition: int
    start: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_written_ms: int
    committed: bool = False


def longest_life_ms(wire: Wire) -> int:
    """How old a transaction can become that has a coordinator, with Kafka's own padding."""
    return int(wire.cluster.broker_config({_MAX_TIMEOUT})[_MAX_TIMEOUT]) + _PADDING_MS


def find_hanging(
    wire: Wire, topics: Collection[str], *, older_than_ms: int, deadline_s: float = 60.0
) -> tuple[HangingTransaction, ...]:
    """The hanging transactions of ``topics``, by topic, partition and offset.

    Args:
        wire: the connections.
        topics: all partitions of these are looked at.
        older_than_ms: what was written to more recently is left out; see the module.
        deadline_s: how long brokers may be away.

    Raises:
        TopicError: a topic does not exist, or may not be read.
        KafkaUnavailableError: some broker did not answer; a part is never returned as all.
    """
    deadline = Deadline(deadline_s)
    seen = open_in_partitions(wire, _partitions(wire, topics), deadline)
    latest_ms = time.time_ns() // 1_000_000 - older_than_ms
    old = {each for each in seen if each.last_written_ms <= latest_ms}
    if not old:
        return ()
    held = held_by_coordinators(
        wire, {each.producer_id for each in old}, deadline_s=deadline.remaining
    )
    unknown = {e for e in old if (e.producer_id, e.topic, e.partition) not in held}
    where = {(each.topic, each.partition) for each in unknown}
    still = open_in_partitions(wire, where, deadline)
    hanging = unknown & still
    if not hanging:
        return ()
    committed = committed_by_coordinators(
        wire, {each.producer_id for each in hanging}, deadline_s=deadline.remaining
    )
    return tuple(
        replace(each, committed=(each.producer_id, each.producer_epoch) in committed)
        for each in sorted(hanging)
    )


def end_hanging(
    wire: Wire, transaction: HangingTransaction, *, commit: bool, deadline_s: float = 60.0
) -> None:
    """Write the marker into the partition; harmless where another process was quicker.

    Args:
        wire: the connections.
        transaction: one that :func:`find_hanging` or :func:`open_in_partitions` has found.
        commit: only for what was committed for good: a decision names it, and its coordinator has
            said so.
        deadline_s: how long its leader may be away.

    Raises:
        KafkaError: not allowed (the ACL is named), or an answer that nobody expects.
        KafkaUnavailableError: the leader did not answer; ask again.
    """
    deadline = Deadline(deadline_s)
    what = f"{transaction.topic}-{transaction.partition} from offset {transaction.start}"
    refresh = False
    while True:
        code = _write_marker(wire, transaction, commit=commit, refresh=refresh)
        if code == faults.NONE:
            return
        if code is not None and not faults.is_retriable(code):
            raise faults.refusal(
                code,
                f"while ending the hanging transaction in {what}",
                acl="Alter on Cluster 'kafka-cluster'",
                otherwise=TransactionError,
            )
        if not deadline.pause():
            raise KafkaUnavailableError(
                f"The hanging transaction in {what} could not be ended within {deadline}: its "
                "leader does not answer. Ask again: that changes nothing twice."
            )
        refresh = True


def _write_marker(
    wire: Wire, transaction: HangingTransaction, *, commit: bool, refresh: bool
) -> int | None:
    """The leader's code; None where nobody answered."""
    leader = wire.cluster.leaders(transaction.topic, refresh=refresh).get(transaction.partition)
    if leader is None:
        return None
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    topic = marker.WritableTxnMarkerTopic
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                transaction_result=commit,
                topics=[topic(name=transaction.topic, partition_indexes=[transaction.partition])],
                # as the broker's own tool: no coordinator has written here yet
                coordinator_epoch=max(transaction.coordinator_epoch, 0),
            )
        ]
    )
    try:
        answer = wire.submit(request, node_id=leader).result()
    except KafkaUnavailableError:
        return None
    return int(answer.markers[0].topics[0].partitions[0].error_code)


def _partitions(wire: Wire, topics: Collection[str]) -> list[tuple[str, int]]:
    return [(topic, partition) for topic in topics for partition in wire.cluster.leaders(topic)]


def open_in_partitions(
    wire: Wire, partitions: Collection[tuple[str, int]], deadline: Deadline
) -> set[HangingTransaction]:
    """What the leaders have open, whether or not anybody knows of it.

    Raises:
        KafkaUnavailableError: a leader did not answer in time.
    """
    found: set[HangingTransaction] = set()
    left = sorted(partitions)
    refresh = False
    while left:
        again: list[tuple[str, int]] = []
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


def _describe(
    wire: Wire, partitions: list[tuple[str, int]], *, refresh: bool
) -> Iterator[tuple[tuple[str, int], Any]]:
    """The answer of each partition's leader, all asked together; None: ask again."""
    leaders = {t: wire.cluster.leaders(t, refresh=refresh) for t in {t for t, _ in partitions}}
    futures: list[tuple[tuple[str, int], Future[Any] | None]] = []
    for topic, partition in partitions:
        leader = leaders[topic].get(partition)
        asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[partition])
        request = DescribeProducersRequest(topics=[asked])
        future = None if leader is None else wire.submit(request, node_id=leader)
        futures.append(((topic, partition), future))
    for (topic, partition), future in futures:
        try:
            answer = None if future is None else future.result().topics[0].partitions[0]
        except KafkaUnavailableError:
            answer = None
        doing = f"while describing the producers of {topic}-{partition}"
        acl = f"Read on Topic {topic!r}"
        said = answer is not None and faults.answered(answer.error_code, doing, acl=acl)
        yield (topic, partition), answer if said else None


def _open_of(where: tuple[str, int], answer: Any) -> set[HangingTransaction]:
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
