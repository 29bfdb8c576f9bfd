"""Hanging transactions (KIP-664): open in a partition, and no coordinator knows of them.

No client can commit or abort such a transaction any more, and no timeout ends it: its coordinator
would do that, and has forgotten the transaction or never knew it. It holds the last stable offset
of its partition back for ever, for every ``read_committed`` reader. The only way is to write the
marker into the partition itself, as ``kafka-transactions.sh abort`` does: the commit marker where
its coordinator still knows that it has committed the transaction, else the abort marker. A promise
that is aborted so is replayed, as after a timeout. A coordinator tells of a producer's newest
transaction only: of another program's, a person has to say which marker is right.

The order of the requests is the proof. A coordinator adds a partition to a transaction *before* the
partition takes the first row, and forgets it *after* the marker is there. So a transaction that is
open in the partition, then unknown to every coordinator, then still open from the same offset, is
hanging. Coordinators omit transactions that the principal may not describe, and those in a
partition of their log without a leader: both cases are refused
(:func:`.listing.require_all_told`). Brokers before 3.6 do not verify that a partition was added;
hence the age as well, as in Kafka's own tool: a transaction older than the longest timeout would
have been ended. The age alone is no proof: it is the newest row's, by its writer's timestamp,
and a row dated as far ahead of the cluster's clock has none. A writer that lives is known by what
grows: one whose sequence has grown between the two looks is left out.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from airflow_eos.core.checkpoint.topics import TopicPartition
from airflow_eos.core.log import Log
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
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.errors import SHORTLY_S, Deadline
from airflow_eos.kafka.client.messages import WriteTxnMarkersRequest
from airflow_eos.kafka.client.offsets import (
    LATEST,
    cluster_clock_ms,
    log_ends,
    partitions_of,
    positions,
)
from airflow_eos.kafka.transactions.identity import PreparedTransaction, TransactionIdentity
from airflow_eos.kafka.transactions.listing import (
    HangingTransaction,
    committed_by_coordinators,
    held_by_coordinators,
    known_as_aborted,
    not_ended_yet,
    open_in_partitions,
    require_all_told,
)
from airflow_eos.kafka.transactions.outcomes import GRACE_S, made_again, replaced


def longest_life_ms(wire: ConnectionPool) -> int:
    """Return the greatest possible age of a transaction with a coordinator (Kafka's padding added).

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
    wire: ConnectionPool, topics: Collection[str], *, older_than_ms: int
) -> tuple[HangingTransaction, ...]:
    """List the hanging transactions of ``topics``, by topic, partition and offset.

    Args:
        topics: the topics, of which all partitions are searched.
        older_than_ms: leave out transactions whose newest row is younger; the module says why.

    Raises:
        TopicError: a topic does not exist, or may not be read.
        TransactionError: coordinators may hide transactions from these credentials.
        KafkaUnavailableError: some broker did not answer; no partial list is returned.
    """
    deadline = Deadline(60.0)
    seen = open_in_partitions(wire, partitions_of(wire, topics), deadline)
    # The cluster's clock, if told: a local clock that is fast would make transactions look older.
    now_ms = cluster_clock_ms(wire) or time.time_ns() // 1_000_000
    old = {each for each in seen if abs(now_ms - each.last_written_ms) >= older_than_ms}
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
    committed = committed_by_coordinators(wire, hanging, deadline_s=deadline.remaining)
    return tuple(replace(each, committed=committed[each]) for each in sorted(hanging))


def end_hanging(
    wire: ConnectionPool, transaction: HangingTransaction, *, commit: bool, deadline_s: float = 60.0
) -> None:
    """Write a transaction's marker into its partition; harmless where another process was quicker.

    Args:
        transaction: one that :func:`find_hanging` or :func:`open_in_partitions` has found.
        commit: only for a transaction that was committed for good: a decision names it, and its
            coordinator has said so.
        deadline_s: how long the partition's leader may be away.

    Raises:
        KafkaError: not allowed (the ACL is named), the brokers lack WriteTxnMarkers, or an
            unexpected error code.
        KafkaUnavailableError: the leader did not answer; call again.
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
    """Write the marker and return the leader's error code; None: no answer for this partition."""
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
                # 0 as in Kafka's own tool where no coordinator has written a marker yet
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
# partition write a marker. Kafka 4.0 to 4.3 take a partition that has no leader at that moment for
# a deleted one, and leave its marker out (KAFKA-20734:
# ``KRaftMetadataCache.getPartitionLeaderEndpoint``). When its replicas are back, its last stable
# offset stays where it is: committed rows are never seen, and aborted ones get the marker of the
# same producer's next transaction there. That happens when all replicas of a partition are away at
# once, as in a power cut.
#
# So a process that ends transactions checks that each has ended in every partition, and writes
# missing markers. The order of the requests is as for hanging ones: open in the partition, its
# coordinator finished with it, then still open.
#
# No process checks a transaction that its timeout ends, or whose ender dies before the check. So
# before a commit a process checks that its transaction is the only open one of its producer.


log = Log(__name__)

OpenPartitions = Mapping[TransactionIdentity, Collection[TopicPartition]]
"""The partitions that each transaction has written to."""


def require_committed_everywhere(
    wire: ConnectionPool, committed: Sequence[PreparedTransaction]
) -> set[TransactionIdentity]:
    """Check that readers can reach committed transactions' rows, and write missing markers.

    One request where no marker is missing, and one for each topic. Other producers' transactions
    that hold readers up as well are left alone.

    Returns:
        The transactions whose rows are not where they were written: the log ends before them, or
        has another producer's in their place, since the topic was made again, or every replica
        that had them was lost. EndTxn does not say so.

    Raises:
        KafkaError: a marker is missing, and we may not write it (the ACL is named).
        KafkaUnavailableError: some broker did not answer; call again.
    """
    stable = _last_stable(wire, {at.tp for each in committed for at in each.written})
    if behind := _behind(committed, stable):
        require_ended_everywhere(wire, behind, commit=True)
        stable = _last_stable(wire, {tp for partitions in behind.values() for tp in partitions})
        behind = _behind(committed, stable)  # no marker holds them up any more
    lost = set(made_again(wire, [each for each in committed if each.identity in behind]))
    lost |= _cut_off(wire, committed, behind, Deadline(60.0))
    return lost | replaced(wire, committed)


def _behind(
    committed: Sequence[PreparedTransaction], stable: Mapping[TopicPartition, int]
) -> dict[TransactionIdentity, set[TopicPartition]]:
    """Return the partitions in which readers do not get past a transaction's rows."""
    behind: dict[TransactionIdentity, set[TopicPartition]] = defaultdict(set)
    for each in committed:
        for at in each.written:
            if stable.get(at.tp, at.last + 1) <= at.last:
                behind[each.identity].add(at.tp)
    return behind


def _cut_off(
    wire: ConnectionPool,
    committed: Sequence[PreparedTransaction],
    behind: Mapping[TransactionIdentity, Collection[TopicPartition]],
    deadline: Deadline,
) -> set[TransactionIdentity]:
    """Return the transactions before whose last row the log of a partition in ``behind`` ends."""
    held = [
        (each.identity, at)
        for each in committed
        for at in each.written
        if at.tp in behind.get(each.identity, ())
    ]
    lasts: dict[TopicPartition, int] = {}
    for _, at in held:
        lasts[at.tp] = max(at.last, lasts.get(at.tp, 0))
    ends = {tp: _end_of_log(wire, tp, last, deadline) for tp, last in lasts.items()}
    return {identity for identity, at in held if ends[at.tp] <= at.last}


def _end_of_log(wire: ConnectionPool, tp: TopicPartition, last: int, deadline: Deadline) -> int:
    """Return where the log ends; for a while nobody believes that it ends before the row ``last``.

    A former leader may have answered.
    """
    grace, again = Deadline(GRACE_S), False
    while True:
        leader = (wire.cluster.find_leaders(tp[0], refresh=again) or {}).get(tp[1])
        again = True
        found = None if leader is None else log_ends(wire, *tp, leader=leader)
        if found is not None and (found.next > last or grace.expired):
            return found.next
        if not deadline.pause():
            raise KafkaUnavailableError(
                f"The leader of partition {tp[1]} of topic {tp[0]!r} does not say where its "
                f"log ends within {deadline}. Check that all brokers run, then ask again."
            )


def require_ended_everywhere(
    wire: ConnectionPool, partitions: OpenPartitions, *, commit: bool, deadline_s: float = 60.0
) -> None:
    """Check that transactions have ended in every partition, and write the missing markers.

    Args:
        partitions: the partitions of transactions for which EndTxn has answered with success.
        commit: whether they end with a commit; else with an abort.
        deadline_s: how long coordinators may take to write markers, and leaders be away.

    Raises:
        KafkaError, KafkaUnavailableError: as :func:`require_committed_everywhere`.
    """
    deadline = Deadline(deadline_s, first_pause_s=SHORTLY_S)
    while unmarked := _unmarked(wire, partitions, deadline):
        ours = set(unmarked.values())
        if not (left := not_ended_yet(wire, ours, deadline_s=deadline.remaining)):
            for each, identity in _unmarked(wire, partitions, deadline).items():
                if each in unmarked:
                    _write(wire, each, identity, commit=commit, deadline=deadline)
            return
        if not deadline.pause():
            raise KafkaUnavailableError(
                f"The coordinator of {min(left)} has ended its transaction and has not written "
                f"all markers within {deadline}: readers are held up there. Check that all brokers "
                "run, then ask again: that changes nothing twice."
            )


def end_what_a_timeout_left(
    wire: ConnectionPool, transactions: Sequence[PreparedTransaction], *, deadline_s: float = 60.0
) -> None:
    """Write the abort markers that are missing of transactions whose coordinator has aborted them.

    A timeout ends a transaction while a partition of it is away, and its marker is left out there:
    readers stand still, and the log calls it open for good.

    Raises:
        KafkaError, KafkaUnavailableError: as :func:`require_committed_everywhere`.
    """
    if not transactions:
        return
    deadline = Deadline(deadline_s)
    written = {each.identity: {at.tp for at in each.written} for each in transactions}
    aborted = known_as_aborted(wire, written, deadline_s=deadline.remaining)
    require_ended_everywhere(
        wire,
        {each: written[each] for each in aborted},
        commit=False,
        deadline_s=deadline.remaining,
    )


def require_nothing_older(wire: ConnectionPool, prepared: Sequence[PreparedTransaction]) -> None:
    """Refuse to commit where an older transaction of the same producer is open in a partition.

    One request if no older one is open: then the last stable offset is at the first of our rows.

    Raises:
        DeliveryError: with the partition; aborting our transaction aborts the older one as well.
        TopicError: a topic does not exist any more, or may not be read.
        KafkaUnavailableError: some broker did not answer.
    """
    began: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
    for each in prepared:
        for at in each.written:
            began[at.topic, at.partition][each.producer_id] = at.first
    stable = positions(wire, set(began), LATEST)
    behind = {tp for tp, firsts in began.items() if stable[tp] < min(firsts.values())}
    for found in sorted(open_in_partitions(wire, behind, Deadline(60.0))):
        first = began[found.topic, found.partition].get(found.producer_id)
        if first is not None and found.start < first:
            raise DeliveryError(
                f"Partition {found.partition} of topic {found.topic!r} holds rows, from offset "
                f"{found.start}, of a transaction of producer {found.producer_id} that was ended "
                "without its marker (KAFKA-20734: its replicas were all away): they would be "
                "delivered with this batch. Nothing was decided; both are aborted, and the batch "
                "runs again: start the query again."
            )


def _last_stable(
    wire: ConnectionPool, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the last stable offset of each partition, without topics that are gone."""
    found: dict[TopicPartition, int] = {}
    for topic in {topic for topic, _ in partitions}:
        with suppress(TopicError):
            found |= positions(wire, {each for each in partitions if each[0] == topic}, LATEST)
    return found


def _unmarked(
    wire: ConnectionPool, partitions: OpenPartitions, deadline: Deadline
) -> dict[HangingTransaction, TransactionIdentity]:
    """Return the transactions still open in partitions, without later ones of their producers."""
    whose = {(each.producer_id, each.producer_epoch): each for each in partitions}
    wanted = {tp for each in partitions.values() for tp in each}
    still_open = open_in_partitions(wire, wanted, deadline)
    found = {each: whose.get((each.producer_id, each.producer_epoch)) for each in still_open}
    return {
        each: identity
        for each, identity in found.items()
        if identity is not None and (each.topic, each.partition) in partitions[identity]
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
