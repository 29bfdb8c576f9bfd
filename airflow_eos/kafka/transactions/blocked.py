"""Who holds the readers of a topic up: the transaction at the last stable offset of each partition.

A ``read_committed`` reader gets no further than the first row of the oldest transaction that is
open in a partition, whoever wrote it. What is held is all behind that offset, of every producer.
Everything here is a look: it ends nothing, and its answers are of one moment.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from airflow_eos.errors import KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.consumer_groups import GroupCoordinator
from airflow_eos.kafka.client.errors import Deadline
from airflow_eos.kafka.client.messages import (
    DescribeTransactionsRequest,
    ListGroupsRequest,
    ListTransactionsRequest,
)
from airflow_eos.kafka.client.offsets import (
    LATEST,
    Place,
    cluster_clock_ms,
    partitions_of,
    positions,
)
from airflow_eos.kafka.transactions.identity import owner_of
from airflow_eos.kafka.transactions.listing import of_producers, open_in_partitions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.transactions.listing import HangingTransaction

UNKNOWN = "not known"
_ENDED = {"CompleteCommit", "CompleteAbort"}


class GroupBehind(msgspec.Struct, frozen=True):
    """A consumer group, in one partition.

    Attributes:
        group: its id.
        committed: the offset that it reads next.
        waiting: rows and markers that it would get if nothing were open. None where it is already
            past the last stable offset: it reads uncommitted rows as well, and nothing holds it.
    """

    group: str
    committed: int
    waiting: int | None


class BlockedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition, and what its readers wait for.

    Attributes:
        topic: which.
        partition: which.
        stable: the last stable offset, where readers stand still.
        end: the end that they would get to.
        producer_id: whose transaction it is.
        producer_epoch: of that producer.
        transactional_id: None where no coordinator tells it.
        owner: by the form of that id; empty where it has none of a program that we know.
        state: as its coordinator says it; ``hanging``: it is older than a transaction can become,
            and no coordinator tells of it; ``marker missing``: its coordinator is through with it;
            ``not known``: nobody says, or these credentials may not describe the id.
        age_ms: since it began, as its coordinator says, else since its newest row.
        timeout_ms: its coordinator ends it at this age; None where nobody tells.
        behind_it: how many more transactions are open in the partition.
        groups: of which the offsets may be read.
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
        """Until its coordinator ends it by itself; None where nobody will, or that is not known."""
        if self.state != "Ongoing" or self.timeout_ms is None:
            return None
        return max(0, self.timeout_ms - self.age_ms)


class Blocked(msgspec.Struct, frozen=True):
    """What was found, and whose answer is missing.

    Attributes:
        partitions: held up, by topic and partition.
        unread: consumer groups whose offsets these credentials may not read.
        untold: what no broker answers, for people.
    """

    partitions: tuple[BlockedPartition, ...]
    unread: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()


def find_blocked(
    wire: ConnectionPool,
    topics: Collection[str],
    *,
    older_than_ms: int = 0,
    groups: bool = True,
    deadline_s: float = 60.0,
) -> Blocked:
    """The partitions of ``topics`` whose readers are held up just now, and by whom.

    Args:
        wire: the connections.
        topics: all partitions of these are looked at.
        older_than_ms: younger transactions are left out; one of a batch in flight is no trouble.
        groups: also how far each consumer group is.
        deadline_s: how long brokers may be away.

    Raises:
        TopicError: a topic does not exist, or may not be read.
        KafkaUnavailableError: some broker did not answer; a part is never returned as all.
    """
    deadline = Deadline(deadline_s)
    places = partitions_of(wire, topics)
    stable = positions(wire, places, LATEST)
    ends = positions(wire, places, LATEST, committed_only=False)
    opened: dict[Place, list[HangingTransaction]] = defaultdict(list)
    held = {place for place in places if stable[place] < ends[place]}
    for each in sorted(open_in_partitions(wire, held, deadline)):
        opened[each.topic, each.partition].append(each)
    if not opened:  # what was open a moment ago has ended
        return Blocked(())
    first = {place: min(found, key=lambda t: t.start) for place, found in opened.items()}
    states, untold = _states(wire, {each.producer_id for each in first.values()}, deadline)
    doubtful = {place for place, e in first.items() if not _writes(states.get(e.producer_id), e)}
    still = open_in_partitions(wire, doubtful, deadline)  # it may have ended between the questions
    first = {place: e for place, e in first.items() if place not in doubtful or e in still}
    now_ms = cluster_clock_ms(wire) or time.time_ns() // 1_000_000
    committed, unread = _committed(wire, deadline) if groups else ({}, ())
    found = [
        BlockedPartition(
            topic=place[0],
            partition=place[1],
            stable=each.start,
            end=ends[place],
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            behind_it=len(opened[place]) - 1,
            groups=_behind(committed, place, each.start, ends[place]),
            **_told(wire, each, states.get(each.producer_id), now_ms),
        )
        for place, each in sorted(first.items())
    ]
    return Blocked(tuple(e for e in found if e.age_ms >= older_than_ms), unread, untold)


def _states(
    wire: ConnectionPool, producers: set[int], deadline: Deadline
) -> tuple[dict[int, Any], tuple[str, ...]]:
    """Producer → what its coordinator says, and what nobody can say."""
    brokers = wire.cluster.capabilities()
    needed = (ListTransactionsRequest, DescribeTransactionsRequest)
    try:
        brokers.require(*needed)
    except KafkaError as error:
        return {}, (str(error),)
    return {state.producer_id: state for state in of_producers(wire, producers, deadline)}, ()


def _writes(state: Any, each: HangingTransaction) -> bool:
    """Whether its coordinator says that it is not through with it in its partition."""
    topics = state.topics if state is not None else ()
    return (each.topic, each.partition) in {(t.topic, p) for t in topics for p in t.partitions}


def _told(
    wire: ConnectionPool, each: HangingTransaction, state: Any, now_ms: int
) -> dict[str, Any]:
    """What is known of one transaction beside its place."""
    age_ms = max(0, now_ms - each.last_written_ms)
    longest_ms = wire.cluster.capabilities().longest_life_ms
    said = "hanging" if longest_ms is not None and age_ms > longest_ms else UNKNOWN
    if state is None:
        nobody = {"transactional_id": None, "owner": "", "timeout_ms": None}
        return {**nobody, "state": said, "age_ms": age_ms}
    if _writes(state, each):
        said = str(state.transaction_state)
        age_ms = max(0, now_ms - state.transaction_start_time_ms)
    elif state.transaction_state in _ENDED:
        said = "marker missing"
    return {
        "transactional_id": state.transactional_id,
        "owner": owner_of(state.transactional_id),
        "state": said,
        "age_ms": age_ms,
        "timeout_ms": int(state.transaction_timeout_ms),
    }


def _behind(
    committed: Mapping[str, Mapping[Place, int]], place: Place, stable: int, end: int
) -> tuple[GroupBehind, ...]:
    return tuple(
        GroupBehind(group, offsets[place], end - stable if offsets[place] <= stable else None)
        for group, offsets in sorted(committed.items())
        if place in offsets
    )


def _committed(
    wire: ConnectionPool, deadline: Deadline
) -> tuple[dict[str, dict[Place, int]], tuple[str, ...]]:
    """Group → where it is in each partition; and the groups that may not be asked."""
    found: dict[str, dict[Place, int]] = {}
    unread = []
    for group in _groups(wire, deadline):
        try:
            read = GroupCoordinator(wire, group).read(deadline_s=deadline.remaining)
        except KafkaUnavailableError:
            raise
        except KafkaError:
            unread.append(group)
        else:
            found[group] = {place: each.offset for place, each in read.items()}
    return found, tuple(unread)


def _groups(wire: ConnectionPool, deadline: Deadline) -> list[str]:
    """Every consumer group that these credentials may describe."""
    while True:
        nodes = wire.cluster.brokers()
        asked = [(ListGroupsRequest(states_filter=[], types_filter=[]), node) for node in nodes]
        answers = wire.request_many(asked, timeout_s=deadline.remaining)
        codes = {answer.error_code for answer in answers} - {faults.NONE}
        if not codes:
            kinds = ("", "consumer")  # not Connect's workers, nor a registry's
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


Next = Literal["recover", "hanging", "wait", "ask"]


def next_step(each: BlockedPartition) -> Next:
    """What a person does about it: the one command that fits, or to wait, or to ask its owner."""
    if each.state in {"hanging", "marker missing"}:
        return "hanging"
    if each.owner == "airflow-eos":
        return "recover"
    return "wait" if each.ends_in_ms is not None else "ask"
