"""Diagnosis of blocked readers: the transaction at the last stable offset of each partition.

A ``read_committed`` reader gets no further than the first row of the oldest transaction that is
open in a partition, whoever wrote it. All rows behind that offset are held back, of every producer.
This module only reads: it ends no transaction, and its answers are of one moment.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from airflow_eos.core.checkpoint.topics import TopicPartition
from airflow_eos.errors import KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.consumer_groups import GroupCoordinator
from airflow_eos.kafka.client.errors import Deadline
from airflow_eos.kafka.client.messages import (
    DescribeTransactionsRequest,
    ListGroupsRequest,
    ListTransactionsRequest,
)
from airflow_eos.kafka.client.offsets import LATEST, cluster_clock_ms, partitions_of, positions
from airflow_eos.kafka.client.reading import OffsetSpan, read_span
from airflow_eos.kafka.transactions.identity import AIRFLOW_EOS, NEVER_MS, owner_of
from airflow_eos.kafka.transactions.listing import (
    ENDED,
    ENDING,
    HangingTransaction,
    open_in_partitions,
    require_all_told,
    transactions_of_producers,
)

UNKNOWN = "not known"
MARKER_MISSING = "marker missing"
_ALL_TOLD_S, _ROW_S = 10.0, 10.0
"""How long each optional request may take, without which less is known."""
_Groups = tuple[dict[str, dict[TopicPartition, int]], tuple[str, ...], tuple[str, ...]]
_NO_GROUPS: _Groups = ({}, (), ())


class GroupBehind(msgspec.Struct, frozen=True):
    """A consumer group that reads a blocked partition.

    Attributes:
        committed: the offset that the group reads next.
        waiting: number of rows and markers that the group would get if no transaction were open.
            None where it is past the last stable offset: it reads uncommitted rows, not held up.
    """

    group: str
    committed: int
    waiting: int | None


class BlockedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition, and the open transaction that its readers wait for.

    Attributes:
        stable: the last stable offset, where readers stand still.
        end: the end that readers would get to.
        transactional_id: the transaction's id; None where no coordinator tells it.
        owner: the program, by the form of that id; empty where the form is not a known program's.
        state: the coordinator's state of the transaction; or ``hanging``: it is older than a
            transaction can become, and no coordinator has it; ``marker missing``: its coordinator
            has ended it; ``not known``: no coordinator tells, or may tell these credentials.
        age_ms: time since its begin, by its coordinator, else since its first row's timestamp.
        timeout_ms: the age at which its coordinator ends it; None where no coordinator tells it;
            ``NEVER_MS`` where it never does.
        behind_it: the number of further transactions that are open in the partition.
    """

    topic: str
    partition: int
    stable: int
    end: int
    producer_id: int
    producer_epoch: int
    transactional_id: str | None
    owner: str
    state: str
    age_ms: int
    timeout_ms: int | None
    behind_it: int
    groups: tuple[GroupBehind, ...]

    @property
    def ends_in_ms(self) -> int | None:
        """Time until its coordinator ends the transaction; None if it will not, or is not known."""
        if self.state != "Ongoing" or self.timeout_ms is None or self.is_untimed:
            return None
        return max(0, self.timeout_ms - self.age_ms)

    @property
    def is_untimed(self) -> bool:
        """Whether no timer ends the transaction (KIP-939): readers wait until somebody does."""
        return self.state == "Ongoing" and self.timeout_ms == NEVER_MS

    @property
    def standing(self) -> str:
        """The state, for people."""
        return f"{self.state}, and no timer ends it" if self.is_untimed else self.state


class Blocked(msgspec.Struct, frozen=True):
    """The blocked partitions that were found, and the answers that are missing.

    Attributes:
        partitions: the blocked partitions, by topic and partition; first those whose transaction
            no timer ends.
        unread: consumer groups whose offsets may not be read, or are not told in time.
        untold: facts that no broker tells, for people.
        unnamed: blocked partitions whose leader does not name the transaction, for people.
    """

    partitions: tuple[BlockedPartition, ...]
    unread: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()


def find_blocked(
    wire: ConnectionPool,
    topics: Collection[str],
    *,
    older_than_ms: int = 0,
    groups: bool = True,
    deadline_s: float = 60.0,
) -> Blocked:
    """List the partitions of ``topics`` whose readers are blocked now, with their transactions.

    Args:
        topics: the topics, of which all partitions are searched.
        older_than_ms: leave out younger transactions: one of a batch in flight is normal.
        groups: also return each consumer group's position.

    Raises:
        TopicError: a topic does not exist, or may not be read.
        KafkaUnavailableError: some leader did not answer; no partial list is returned.
    """
    deadline = Deadline(deadline_s)
    partitions = partitions_of(wire, topics)
    stable = positions(wire, partitions, LATEST)
    ends = positions(wire, partitions, LATEST, committed_only=False)
    still_open: dict[TopicPartition, list[HangingTransaction]] = defaultdict(list)
    held = {tp for tp in partitions if stable[tp] < ends[tp]}
    for each in sorted(open_in_partitions(wire, held, deadline)):
        still_open[each.topic, each.partition].append(each)
    unnamed = _unnamed(wire, {tp: stable[tp] for tp in held - still_open.keys()})
    if not still_open:  # all transactions have ended meanwhile
        return Blocked((), unnamed=unnamed)
    first = {tp: min(found, key=lambda t: t.start) for tp, found in still_open.items()}
    states, untold = _states(wire, {each.producer_id for each in first.values()}, deadline)
    doubtful = {tp for tp, e in first.items() if not _writes(states.get(e.producer_id), e)}
    # A transaction may have ended, or written more rows, between the requests.
    still = {_which(each) for each in open_in_partitions(wire, doubtful, deadline)}
    first = {tp: e for tp, e in first.items() if tp not in doubtful or _which(e) in still}
    now_ms = cluster_clock_ms(wire) or time.time_ns() // 1_000_000
    committed, unread, unlisted = _committed(wire, deadline) if groups else _NO_GROUPS
    found = [
        BlockedPartition(
            topic=tp[0],
            partition=tp[1],
            stable=each.start,
            end=ends[tp],
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            behind_it=len(still_open[tp]) - 1,
            groups=_behind(committed, tp, each.start, ends[tp]),
            **_told(wire, each, states.get(each.producer_id), now_ms, all_told=not untold),
        )
        for tp, each in sorted(first.items())
    ]
    older = [each for each in found if each.age_ms >= older_than_ms]
    first_of_all = tuple(sorted(older, key=lambda each: not each.is_untimed))
    return Blocked(first_of_all, unread, (*untold, *unlisted), unnamed)


def _which(each: HangingTransaction) -> tuple[TopicPartition, int, int, int]:
    """Return the fields of a transaction that do not change while it writes more rows."""
    return (each.topic, each.partition), each.start, each.producer_id, each.producer_epoch


def _unnamed(wire: ConnectionPool, stood: Mapping[TopicPartition, int]) -> tuple[str, ...]:
    """Describe the partitions that are still blocked though their leaders name no transaction."""
    now = positions(wire, stood.keys(), LATEST)
    return tuple(
        f"what readers of {topic}-{partition} wait for: they stand at offset {at}, before its end, "
        "and its leader names no open transaction"
        for (topic, partition), at in sorted(stood.items())
        if now[topic, partition] == at
    )


def _states(
    wire: ConnectionPool, producers: set[int], deadline: Deadline
) -> tuple[dict[int, Any], tuple[str, ...]]:
    """Return each producer's state by its coordinator, and why other states may be missing."""
    needed = (ListTransactionsRequest, DescribeTransactionsRequest)
    states: dict[int, Any] = {}
    try:
        wire.cluster.capabilities().require(*needed)
        told = transactions_of_producers(wire, producers, Deadline(deadline.remaining / 2))
        states |= {state.producer_id: state for state in told}
        if producers - states.keys():
            require_all_told(wire, deadline_s=min(_ALL_TOLD_S, deadline.remaining))
    except KafkaError as error:  # the leaders have named the transactions already
        return states, (str(error),)
    return states, ()


def _writes(state: Any, each: HangingTransaction) -> bool:
    """Whether the coordinator still has the partition in the transaction: it has to end there."""
    topics = state.topics if state is not None else ()
    return (each.topic, each.partition) in {(t.topic, p) for t in topics for p in t.partitions}


def _began_ms(wire: ConnectionPool, each: HangingTransaction) -> int:
    """Return the timestamp of the transaction's first row, or of its newest if unreadable."""
    span = OffsetSpan(each.topic, each.partition, each.start, each.start + 1)
    try:
        for batches in read_span(wire, span, committed_only=False, fetch_bytes=1, stalled_s=_ROW_S):
            return min(batches[0].base_timestamp_ms, each.last_written_ms)
    except KafkaError:  # past retention, or not to be read
        pass
    return each.last_written_ms


def _told(
    wire: ConnectionPool, each: HangingTransaction, state: Any, now_ms: int, *, all_told: bool
) -> dict[str, Any]:
    """Return a blocking transaction's state, age, id, owner and timeout, as far as known."""
    longest_ms = wire.cluster.capabilities().longest_life_ms
    old = longest_ms is not None and abs(now_ms - each.last_written_ms) > longest_ms
    if _writes(state, each):
        said, began_ms = str(state.transaction_state), state.transaction_start_time_ms
    else:
        said, began_ms = "hanging" if old and all_told else UNKNOWN, _began_ms(wire, each)
        if state is not None and state.transaction_state in ENDED:
            said = MARKER_MISSING
    told = {"state": said, "age_ms": max(0, now_ms - began_ms)}
    if state is None:
        return {**told, "transactional_id": None, "owner": "", "timeout_ms": None}
    return {
        **told,
        "transactional_id": state.transactional_id,
        "owner": owner_of(state.transactional_id),
        "timeout_ms": int(state.transaction_timeout_ms),
    }


def _behind(
    committed: Mapping[str, Mapping[TopicPartition, int]], tp: TopicPartition, stable: int, end: int
) -> tuple[GroupBehind, ...]:
    return tuple(
        GroupBehind(group, offsets[tp], end - stable if offsets[tp] <= stable else None)
        for group, offsets in sorted(committed.items())
        if tp in offsets
    )


def _committed(wire: ConnectionPool, deadline: Deadline) -> _Groups:
    """Return each group's committed offsets, the groups that cannot be read, and what is hidden."""
    found: dict[str, dict[TopicPartition, int]] = {}
    unread = []
    try:
        groups = _groups(wire, Deadline(deadline.remaining / 2))
    except KafkaError as error:
        return {}, (), (f"how far consumer groups are: {error}",)
    for group in groups:
        within_s = min(_ALL_TOLD_S, deadline.remaining)
        try:
            read = GroupCoordinator(wire, group).read(deadline_s=within_s)
        except KafkaError:
            unread.append(group)
        else:
            found[group] = {tp: each.offset for tp, each in read.items()}
    return found, tuple(unread), _unlisted(wire, deadline)


def _unlisted(wire: ConnectionPool, deadline: Deadline) -> tuple[str, ...]:
    """Describe, for people, that groups which the principal may not describe are not listed."""
    nobodys = GroupCoordinator(wire, f"airflow-eos-{uuid.uuid4().hex}")
    try:
        nobodys.read(deadline_s=min(_ALL_TOLD_S, deadline.remaining))
    except KafkaError:
        hidden = (
            "whether other consumer groups wait: those that these credentials may not describe "
            "are not listed (Describe on Group '*')"
        )
        return (hidden,)
    return ()


def _groups(wire: ConnectionPool, deadline: Deadline) -> list[str]:
    """List every consumer group that these credentials may describe."""
    while True:
        nodes = wire.cluster.brokers()
        asked = [(ListGroupsRequest(states_filter=[], types_filter=[]), node) for node in nodes]
        answers = wire.request_many(asked, timeout_s=deadline.remaining)
        codes = {answer.error_code for answer in answers} - {faults.NONE}
        if not codes:
            kinds = ("", "consumer")  # not groups of Connect's workers or a schema registry
            listed = [each for answer in answers for each in answer.groups]
            return sorted({each.group_id for each in listed if each.protocol_type in kinds})
        refused = [code for code in codes if not faults.is_retriable(code)]
        if refused:
            raise faults.refusal(
                refused[0], "while listing consumer groups", acl="Describe on the groups"
            )
        if not deadline.pause():
            raise KafkaUnavailableError(
                f"The consumer groups could not be listed within {deadline}: "
                f"{faults.error_name(min(codes))}. Ask again."
            )


Next = Literal["recover", "hanging", "wait", "ending", "ask"]


def next_step(each: BlockedPartition) -> Next:
    """Return what a person does about a blocked partition: a command, wait, or ask the owner."""
    if each.state in ENDING:  # markers are written once each partition has a leader
        return "ending"
    if each.state in {"hanging", MARKER_MISSING}:
        return "hanging"
    if each.owner == AIRFLOW_EOS:
        return "recover"
    return "wait" if each.ends_in_ms is not None else "ask"
