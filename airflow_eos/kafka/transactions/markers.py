"""Markers that brokers have left out: a transaction has ended, and no reader gets past it.

A coordinator answers EndTxn when its decision is durable, and then has the leader of each partition
write a marker. A partition that has no leader at that moment Kafka 4.0 to 4.3 takes for one that
was deleted, and leaves it out (KAFKA-20734: ``KRaftMetadataCache.getPartitionLeaderEndpoint``).
When its replicas are back, its last stable offset stays where it is: committed rows are never seen,
and aborted ones are given the marker of whatever the same producer writes there next. It takes all
replicas of a partition to be away at once, as in a power cut.

So whoever ends a transaction looks whether it has ended in every partition, and writes what is
missing. The order of the questions is that of :mod:`.hanging`: open in the partition, its
coordinator through with it, then still open.

Nobody looks after a transaction that its timeout ends, or whose ender dies before the look. So
whoever is about to commit looks whether its own transaction is the only one of its producer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from airflow_eos.errors import DeliveryError, KafkaUnavailableError, TopicError
from airflow_eos.kafka.client.deadline import SHORTLY_S, Deadline
from airflow_eos.kafka.client.positions import LATEST, Place, positions
from airflow_eos.kafka.transactions.describing import not_ended_yet
from airflow_eos.kafka.transactions.hanging import end_hanging
from airflow_eos.kafka.transactions.identity import TransactionIdentity
from airflow_eos.kafka.transactions.in_partitions import open_in_partitions

if TYPE_CHECKING:
    from airflow_eos.kafka.client.wire import Wire
    from airflow_eos.kafka.transactions.identity import OffsetRange, PreparedTransaction
    from airflow_eos.kafka.transactions.in_partitions import HangingTransaction

log = structlog.get_logger(__name__)

Places = Mapping[TransactionIdentity, Collection[Place]]
"""Where each transaction has written."""


def require_committed_everywhere(
    wire: Wire, committed: Sequence[PreparedTransaction], *, deadline_s: float = 60.0
) -> None:
    """See to it that readers can get to the rows of transactions that are committed.

    One request where the markers are there. Others' transactions, which hold readers up as well,
    are left alone.

    Raises:
        KafkaError: a marker is missing, and we may not write it (the ACL is named).
        KafkaUnavailableError: some broker did not answer; ask again.
    """
    behind = _behind(wire, [(each, t.identity) for t in committed for each in t.written])
    if behind:
        require_ended_everywhere(wire, behind, commit=True, deadline_s=deadline_s)


def require_ended_everywhere(
    wire: Wire, places: Places, *, commit: bool, deadline_s: float = 60.0
) -> None:
    """See to it that transactions have ended in every partition, as by their coordinators.

    Args:
        wire: the connections.
        places: only transactions of which EndTxn has said that they end this way.
        commit: which way.
        deadline_s: how long coordinators may take to write, and leaders be away.

    Raises:
        KafkaError, KafkaUnavailableError: as above.
    """
    deadline = Deadline(deadline_s, first_pause_s=SHORTLY_S)
    while unmarked := _unmarked(wire, places, deadline):
        ours = set(unmarked.values())
        if not (left := not_ended_yet(wire, ours, deadline_s=deadline.remaining)):
            for each, identity in _unmarked(wire, places, deadline).items():
                if each in unmarked:
                    _write(wire, each, identity, commit=commit, deadline=deadline)
            return
        if not deadline.pause():
            raise KafkaUnavailableError(
                f"The coordinator of {min(left)} has ended its transaction and has not written "
                f"all markers within {deadline}: readers are held up there. Check that all brokers "
                "run, then ask again: that changes nothing twice."
            )


def require_nothing_older(
    wire: Wire, prepared: Sequence[PreparedTransaction], *, deadline_s: float = 60.0
) -> None:
    """Refuse to commit where an older transaction of the same producer is open in a partition.

    One request where nobody's is: then the last stable offset is where the first of ours begins.

    Raises:
        DeliveryError: with the place; to abort ours aborts the older one as well.
        TopicError: a topic does not exist any more, or may not be read.
        KafkaUnavailableError: some broker did not answer.
    """
    began: dict[Place, dict[int, int]] = defaultdict(dict)
    for each in prepared:
        for at in each.written:
            began[at.topic, at.partition][each.producer_id] = at.first
    stable = positions(wire, set(began), LATEST)
    behind = {place for place, firsts in began.items() if stable[place] < min(firsts.values())}
    for found in sorted(open_in_partitions(wire, behind, Deadline(deadline_s))):
        first = began[found.topic, found.partition].get(found.producer_id)
        if first is not None and found.start < first:
            raise DeliveryError(
                f"Partition {found.partition} of topic {found.topic!r} holds rows, from offset "
                f"{found.start}, of a transaction of producer {found.producer_id} that was ended "
                "without its marker (KAFKA-20734: its replicas were all away): they would be "
                "delivered with this batch. Nothing was decided; both are aborted, and the batch "
                "runs again: start the query again."
            )


def _behind(wire: Wire, written: Sequence[tuple[OffsetRange, TransactionIdentity]]) -> Places:
    """Where the last stable offset is not past the rows."""
    found: dict[TransactionIdentity, set[Place]] = defaultdict(set)
    for topic in {each.topic for each, _ in written}:
        here = [(each, identity) for each, identity in written if each.topic == topic]
        try:
            ends = positions(wire, {(topic, each.partition) for each, _ in here}, LATEST)
        except TopicError:
            continue  # it is gone, and the rows with it
        for each, identity in here:
            if ends[topic, each.partition] <= each.last:
                found[identity].add((topic, each.partition))
    return found


def _unmarked(
    wire: Wire, places: Places, deadline: Deadline
) -> dict[HangingTransaction, TransactionIdentity]:
    """What is open in the partitions, by itself and not by a later transaction of its producer."""
    whose = {(each.producer_id, each.producer_epoch): each for each in places}
    wanted = {place for each in places.values() for place in each}
    opened = open_in_partitions(wire, wanted, deadline)
    found = {each: whose.get((each.producer_id, each.producer_epoch)) for each in opened}
    return {
        each: identity
        for each, identity in found.items()
        if identity is not None and (each.topic, each.partition) in places[identity]
    }


def _write(
    wire: Wire,
    each: HangingTransaction,
    identity: TransactionIdentity,
    *,
    commit: bool,
    deadline: Deadline,
) -> None:
    log.warning(
        "marker_was_left_out",
        transaction=str(identity),
        topic=each.topic,
        partition=each.partition,
        commit=commit,
        see="KAFKA-20734",
    )
    end_hanging(wire, each, commit=commit, deadline_s=deadline.remaining)
