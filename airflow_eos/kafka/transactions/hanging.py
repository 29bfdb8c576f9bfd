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
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_eos.errors import KafkaError, KafkaUnavailableError, Remedy, TransactionError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.deadline import Deadline
from airflow_eos.kafka.client.messages import WriteTxnMarkersRequest
from airflow_eos.kafka.client.positions import partitions_of
from airflow_eos.kafka.transactions.in_partitions import HangingTransaction, open_in_partitions
from airflow_eos.kafka.transactions.listing import (
    committed_by_coordinators,
    held_by_coordinators,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_eos.kafka.client.wire import Wire

_MAX_TIMEOUT = "transaction.max.timeout.ms"
_PADDING_MS = 5 * 60 * 1000  # org.apache.kafka.tools.TransactionsCommand


def longest_life_ms(wire: Wire) -> int:
    """How old a transaction can become that has a coordinator, with Kafka's own padding.

    Raises:
        KafkaError: the broker does not tell.
    """
    told = wire.cluster.broker_config({_MAX_TIMEOUT})
    if _MAX_TIMEOUT not in told:
        raise KafkaError(
            f"The broker does not tell its {_MAX_TIMEOUT}, so how old a transaction can become is "
            "not known.",
            Remedy(change="give the age in seconds with --older-than"),
        )
    return int(told[_MAX_TIMEOUT]) + _PADDING_MS


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
    seen = open_in_partitions(wire, partitions_of(wire, topics), deadline)
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
