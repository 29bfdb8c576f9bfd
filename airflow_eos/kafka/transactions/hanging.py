"""Hanging transactions (KIP-664): open in a partition, and no coordinator knows of them.

Nobody can commit or abort such a transaction any more, its timeout included: that is a task of the
coordinator, which has forgotten it or never knew. It holds the last stable offset of its partition
back for ever, for every ``read_committed`` reader. What is left is to write the marker into the
partition itself, as ``kafka-transactions.sh abort`` does: the commit marker where its coordinator
still knows that it has committed it, else the abort marker. A promise that is aborted so is
replayed, as after a timeout. Where it may have committed another one of the same producer and
epoch, a person says which marker it is.

The order of the questions is the proof. A coordinator adds a partition to a transaction *before*
the partition takes the first row, and forgets it *after* the marker is there. So what is open in
the partition, then unknown to every coordinator, then still open from the same offset, is hanging.
Coordinators do not list what the asking principal may not describe, nor what is coordinated by a
partition of their log without a leader: neither may be (:func:`.listing.require_all_told`). And
brokers before 3.6 do not verify that a partition was added; hence the age as well, as Kafka's own
tool has it: what is older than the longest timeout would have been ended. The age alone is no
proof: it is that of the newest row, by the time that its writer gave it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
from msgspec import structs

from airflow_eos.errors import (
    DeliveryError,
    KafkaError,
    KafkaUnavailableError,
    Remedy,
    TopicError,
    TransactionError,
)
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.cluster import MAX_TIMEOUT
from airflow_eos.kafka.client.errors import SHORTLY_S, Deadline
from airflow_eos.kafka.client.messages import WriteTxnMarkersRequest
from airflow_eos.kafka.client.offsets import (
    LATEST,
    Place,
    cluster_clock_ms,
    partitions_of,
    positions,
)
from airflow_eos.kafka.transactions.identity import TransactionIdentity
from airflow_eos.kafka.transactions.listing import (
    HangingTransaction,
    committed_by_coordinators,
    held_by_coordinators,
    not_ended_yet,
    open_in_partitions,
    require_all_told,
)
from airflow_eos.kafka.transactions.outcomes import outcomes, replaced
from airflow_eos.protocol.decision import Outcome

if TYPE_CHECKING:
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.transactions.identity import PreparedTransaction


def longest_life_ms(wire: ConnectionPool) -> int:
    """How old a transaction can become that has a coordinator, with Kafka's own padding.

    Raises:
        KafkaError: the broker does not tell.
    """
    longest_ms = wire.cluster.capabilities().longest_life_ms
    if longest_ms is None:
        raise KafkaError(
            f"The broker does not tell its {MAX_TIMEOUT}, so how old a transaction can become is "
            "not known.",
            Remedy(change="give the age in seconds with --older-than"),
        )
    return longest_ms


def find_hanging(
    wire: ConnectionPool, topics: Collection[str], *, older_than_ms: int, deadline_s: float = 60.0
) -> tuple[HangingTransaction, ...]:
    """The hanging transactions of ``topics``, by topic, partition and offset.

    Args:
        wire: the connections.
        topics: all partitions of these are looked at.
        older_than_ms: what was written to more recently is left out; see the module.
        deadline_s: how long brokers may be away.

    Raises:
        TopicError: a topic does not exist, or may not be read.
        TransactionError: what coordinators know may be hidden from these credentials.
        KafkaUnavailableError: some broker did not answer; a part is never returned as all.
    """
    deadline = Deadline(deadline_s)
    seen = open_in_partitions(wire, partitions_of(wire, topics), deadline)
    # The cluster's clock, where it tells it: a reader's that goes ahead would age what is young.
    latest_ms = (cluster_clock_ms(wire) or time.time_ns() // 1_000_000) - older_than_ms
    old = {each for each in seen if each.last_written_ms <= latest_ms}
    if not old:
        return ()
    held = held_by_coordinators(
        wire, {each.producer_id for each in old}, deadline_s=deadline.remaining
    )
    require_all_told(wire, deadline_s=deadline.remaining)
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
        replace(each, committed=committed.get((each.producer_id, each.producer_epoch), False))
        for each in sorted(hanging)
    )


def end_hanging(
    wire: ConnectionPool, transaction: HangingTransaction, *, commit: bool, deadline_s: float = 60.0
) -> None:
    """Write the marker into the partition; harmless where another process was quicker.

    Args:
        wire: the connections.
        transaction: one that :func:`find_hanging` or :func:`open_in_partitions` has found.
        commit: only for what was committed for good: a decision names it, and its coordinator has
            said so.
        deadline_s: how long its leader may be away.

    Raises:
        KafkaError: not allowed (the ACL is named), no such message on these brokers, or an answer
            that nobody expects.
        KafkaUnavailableError: the leader did not answer; ask again.
    """
    wire.cluster.capabilities().require(WriteTxnMarkersRequest)
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
    wire: ConnectionPool, transaction: HangingTransaction, *, commit: bool, refresh: bool
) -> int | None:
    """The leader's code; None where nobody answered, or not for this partition."""
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
    asked = transaction.topic, transaction.partition
    told = (
        (topic.name, each)
        for marker in answer.markers
        for topic in marker.topics
        for each in topic.partitions
    )
    codes = (int(e.error_code) for name, e in told if (name, e.partition_index) == asked)
    return next(codes, None)


# --- markers --------------------------------------------------------------------------------------
# Markers that brokers have left out: a transaction has ended, and no reader gets past it.
#
# A coordinator answers EndTxn when its decision is durable, and then has the leader of each
# partition write a marker. A partition that has no leader at that moment Kafka 4.0 to 4.3 takes for
# one that was deleted, and leaves it out (KAFKA-20734:
# ``KRaftMetadataCache.getPartitionLeaderEndpoint``). When its replicas are back, its last stable
# offset stays where it is: committed rows are never seen, and aborted ones are given the marker of
# whatever the same producer writes there next. It takes all replicas of a partition to be away at
# once, as in a power cut.
#
# So whoever ends a transaction looks whether it has ended in every partition, and writes what is
# missing. The order of the questions is that of :mod:`.hanging`: open in the partition, its
# coordinator through with it, then still open.
#
# Nobody looks after a transaction that its timeout ends, or whose ender dies before the look. So
# whoever is about to commit looks whether its own transaction is the only one of its producer.


log = structlog.get_logger(__name__)

Places = Mapping[TransactionIdentity, Collection[Place]]
"""Where each transaction has written."""


def require_committed_everywhere(
    wire: ConnectionPool, committed: Sequence[PreparedTransaction], *, deadline_s: float = 60.0
) -> set[TransactionIdentity]:
    """See to it that readers can get to the rows of transactions that are committed.

    One request where the markers are there, and one for each topic. Others' transactions, which
    hold readers up as well, are left alone.

    Returns:
        Those whose rows are not where they were written: the log ends before them, or has another's
        in their place, since its topic was made again, or every replica that had them was lost.
        EndTxn does not say so.

    Raises:
        KafkaError: a marker is missing, and we may not write it (the ACL is named).
        KafkaUnavailableError: some broker did not answer; ask again.
    """
    begins = _begins(committed)
    stable = _last_stable(wire, begins)
    behind: dict[TransactionIdentity, set[Place]] = defaultdict(set)
    short: list[PreparedTransaction] = []
    for each in committed:
        for at in each.written:
            place = (at.topic, at.partition)
            if stable.get(place, at.last + 1) <= at.last:
                behind[each.identity].add(place)
                # Before the first of ours nothing of ours holds it up: another's, or the log ends.
                if stable[place] < max(begins[place], 1):
                    short.append(structs.replace(each, written=(at,)))
    if behind:
        require_ended_everywhere(wire, behind, commit=True, deadline_s=deadline_s)
    looked = outcomes(wire, short, deadline_s=deadline_s)
    cut_off = {identity for identity, outcome in looked.items() if outcome is Outcome.UNKNOWN}
    return cut_off | replaced(wire, committed, deadline_s=deadline_s)


def require_ended_everywhere(
    wire: ConnectionPool, places: Places, *, commit: bool, deadline_s: float = 60.0
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
    wire: ConnectionPool, prepared: Sequence[PreparedTransaction], *, deadline_s: float = 60.0
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


def _begins(transactions: Sequence[PreparedTransaction]) -> dict[Place, int]:
    """Where the first row of any of them is."""
    found: dict[Place, int] = {}
    for at in (at for each in transactions for at in each.written):
        place = (at.topic, at.partition)
        found[place] = min(at.first, found.get(place, at.first))
    return found


def _last_stable(wire: ConnectionPool, places: Collection[Place]) -> dict[Place, int]:
    """The last stable offsets; nothing of a topic that is gone, and the rows with it."""
    found: dict[Place, int] = {}
    for topic in {topic for topic, _ in places}:
        with suppress(TopicError):
            found |= positions(wire, {each for each in places if each[0] == topic}, LATEST)
    return found


def _unmarked(
    wire: ConnectionPool, places: Places, deadline: Deadline
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
    wire: ConnectionPool,
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
