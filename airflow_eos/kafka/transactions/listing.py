"""Which transactions are open now, under one prefix, over all coordinators (KIP-664)."""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow_eos.errors import KafkaError, KafkaUnavailableError, Remedy, TransactionError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.errors import ASK_AGAIN, Deadline, next_step, wait
from airflow_eos.kafka.client.messages import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from airflow_eos.kafka.client.offsets import LATEST, Place, by_topic, positions
from airflow_eos.kafka.client.reading import OffsetSpan, read_span
from airflow_eos.kafka.transactions.identity import (
    AIRFLOW_EOS,
    OpenTransaction,
    belongs_to_prefix,
    owner_of,
    transactional_id_of,
    whose,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.transactions.identity import TransactionIdentity

FIRST_ROUND_S = 2.0
"""How long to wait for all brokers at first; twice as long each time."""
ONGOING, COMMITTED = "Ongoing", "CompleteCommit"
"""Of ``org.apache.kafka.clients.admin.TransactionState``."""
ENDING = frozenset({"PrepareCommit", "PrepareAbort"})
ENDED = frozenset({COMMITTED, "CompleteAbort"})
_THROUGH = ENDED | {"Empty", "Dead"}
"""In each other state, and in one that a later broker may have, a coordinator is not through."""
_IDS_PER_DESCRIBE = 500


def not_ended_yet(
    wire: ConnectionPool, identities: Collection[TransactionIdentity], *, deadline_s: float = 60.0
) -> frozenset[str]:
    """The ids of those whose coordinator is still writing markers, or has yet to decide.

    Raises:
        TransactionError: not allowed to describe an id.
        KafkaUnavailableError: as :func:`list_open`.
    """
    ids = {each.transactional_id for each in identities}
    return frozenset(
        state.transactional_id
        for state in described(wire, ids, Deadline(deadline_s))
        if state.transaction_state not in _THROUGH
        and (state.transaction_state != ONGOING or open_transaction(state).identity in identities)
    )


def open_places(
    wire: ConnectionPool, identities: Collection[TransactionIdentity], *, deadline_s: float = 60.0
) -> dict[TransactionIdentity, tuple[tuple[str, int], ...]]:
    """Where those write that are open: topic and partition.

    Raises:
        TransactionError, KafkaUnavailableError: as :func:`not_ended_yet`.
    """
    ids = {each.transactional_id for each in identities}
    found = described(wire, ids, Deadline(deadline_s))
    opened = [open_transaction(s) for s in found if s.transaction_state == ONGOING]
    return {each.identity: each.partitions for each in opened if each.identity in identities}


def described(wire: ConnectionPool, wanted: Collection[str], deadline: Deadline) -> list[Any]:
    """What the coordinators say of each; what they have forgotten meanwhile is left out."""
    ids = list(wanted)
    found: list[Any] = []
    patience_s = FIRST_ROUND_S
    while ids:
        requests = [
            (DescribeTransactionsRequest(transactional_ids=chunk), node)
            for node, chunk in _by_coordinator(wire, ids, deadline)
        ]
        again: list[str] = []
        try:
            answers = wire.request_many(requests, timeout_s=min(patience_s, deadline.remaining))
        except KafkaUnavailableError as error:
            wire.cluster.forget_coordinators(ids)
            pause(deadline, str(error))
            patience_s *= 2
            continue
        states = [state for answer in answers for state in answer.transaction_states]
        # Of what was asked for and is in no answer, nothing was told: it is not forgotten.
        again += set(ids).difference(state.transactional_id for state in states)
        for state in states:
            if next_step(state.error_code) in ASK_AGAIN:
                again.append(state.transactional_id)
            elif state.error_code == faults.NONE:
                found.append(state)
            elif state.error_code != faults.TRANSACTIONAL_ID_NOT_FOUND:
                raise refused(state.error_code, "describing", state.transactional_id)
        ids = again
        if ids:
            wire.cluster.forget_coordinators(ids)
            pause(
                deadline, f"the coordinators of {len(ids)} ids are moving, or say nothing of them"
            )
    return found


def _by_coordinator(
    wire: ConnectionPool, ids: list[str], deadline: Deadline
) -> list[tuple[int, list[str]]]:
    by_node: dict[int, list[str]] = defaultdict(list)
    for i, node in wire.cluster.coordinators(ids, timeout_s=deadline.remaining).items():
        by_node[node].append(i)
    return [
        (node, mine[i : i + _IDS_PER_DESCRIBE])
        for node, mine in by_node.items()
        for i in range(0, len(mine), _IDS_PER_DESCRIBE)
    ]


def open_transaction(state: Any) -> OpenTransaction:
    """One that is said to be ongoing."""
    return OpenTransaction(
        transactional_id=state.transactional_id,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        started_at_ms=state.transaction_start_time_ms,
        timeout_ms=state.transaction_timeout_ms,
        partitions=tuple(sorted((t.topic, p) for t in state.topics for p in t.partitions)),
    )


def refused(code: int, doing: str, transactional_id: str) -> KafkaError:
    """The error, with the ACL that is missing where one is."""
    return faults.refusal(
        code,
        f"while {doing} transactions ({transactional_id!r})",
        acl=f"Describe on TransactionalId {transactional_id!r}",
        otherwise=TransactionError,
    )


def pause(deadline: Deadline, why: str) -> None:
    """Wait before asking again (KafkaUnavailableError: the time is up)."""
    if not deadline.pause():
        raise KafkaUnavailableError(
            f"The open transactions could not be listed within {deadline}: {why}."
        )


# --- listing --------------------------------------------------------------------------------------


_TAKEOVER_S = 1.0


def list_open(
    wire: ConnectionPool,
    prefix: str,
    *,
    besides: Collection[TransactionIdentity] = (),
    deadline_s: float = 60.0,
) -> tuple[OpenTransaction, ...]:
    """The transactions ``<prefix>-eos-<task>-<attempt>`` that are open now, sorted by id.

    Asks every broker, filtered there where it can (KIP-1152, Kafka 4.1). A transaction that ends
    between listing and describing is left out.

    Args:
        wire: the connections.
        prefix: the part of the ids that they share.
        besides: known to be open and left out, which saves describing them. Listing tells no
            epoch, so a later transaction of one of these under the same id is left out, too.
        deadline_s: how long brokers may be away.

    Raises:
        TransactionError: not allowed to describe the ids. Kafka itself would leave them out
            silently, which would look like "nothing open".
        KafkaUnavailableError: some broker did not answer; a part is never returned as all.
    """
    deadline = Deadline(deadline_s)
    wire.cluster.coordinators(
        [transactional_id_of(prefix, 0, 0)], timeout_s=deadline_s
    )  # refuses where the ACL is missing
    if not besides:  # a batch lists again with the next one; who has only this needs all
        wire.cluster.require_coordinators(timeout_s=deadline.remaining)
    found = _listed(wire, _ongoing(wire, f"{re.escape(prefix)}-eos-[0-9]+-[0-9]+"), deadline)
    found -= {(known.transactional_id, known.producer_id) for known in besides}
    ids = {i for i, _ in found if belongs_to_prefix(i, prefix)}
    return _opened(wire, ids, deadline)


def list_lookalikes(
    wire: ConnectionPool, prefix: str, *, deadline_s: float = 60.0
) -> tuple[tuple[OpenTransaction, str], ...]:
    """What other programs have open under the prefix, and whose it is by the form of its id.

    Raises:
        TransactionError, KafkaUnavailableError: as :func:`list_open`.
    """
    deadline = Deadline(deadline_s)
    wire.cluster.require_coordinators(timeout_s=deadline.remaining)
    found = _listed(wire, _ongoing(wire, f"{re.escape(prefix)}.*"), deadline)
    ids = {i for i, _ in found if whose(i, prefix)}
    return tuple(
        (each, whose(each.transactional_id, prefix)) for each in _opened(wire, ids, deadline)
    )


def _opened(wire: ConnectionPool, ids: set[str], deadline: Deadline) -> tuple[OpenTransaction, ...]:
    opened = (s for s in described(wire, ids, deadline) if s.transaction_state == ONGOING)
    return tuple(sorted(map(open_transaction, opened), key=lambda t: t.identity))


def held_by_coordinators(
    wire: ConnectionPool, producer_ids: Collection[int], *, deadline_s: float = 60.0
) -> frozenset[tuple[int, str, int]]:
    """(producer id, topic, partition) of all in a transaction that its coordinator has not ended.

    Of ids that the principal may not describe, nothing is told: see :func:`require_all_told`.

    Raises:
        KafkaUnavailableError: as :func:`list_open`.
    """
    return frozenset(
        (state.producer_id, held.topic, partition)
        for state in of_producers(wire, producer_ids, Deadline(deadline_s))
        for held in state.topics
        for partition in held.partitions
    )


def require_all_told(wire: ConnectionPool, *, deadline_s: float = 60.0) -> None:
    """Refuse where the coordinators may leave some out, so that absent would be read as "none".

    They name no id that the principal may not describe, and no error says so; but one who may
    describe an id that nobody has may describe each.

    Raises:
        TransactionError: not allowed to describe all ids.
        TopicError: not allowed to see whether all coordinators are there.
        KafkaUnavailableError: some are away.
    """
    nobodys = f"airflow-eos-{uuid.uuid4().hex}"
    try:
        wire.cluster.coordinators([nobodys], timeout_s=deadline_s)
    except TransactionError as error:
        raise TransactionError(
            "Whether a transaction has a coordinator is not known: coordinators leave out those "
            "that these credentials may not describe, and they may not describe all.",
            Remedy(change="grant Describe on TransactionalId '*'"),
        ) from error
    wire.cluster.forget_coordinators([nobodys])
    wire.cluster.require_coordinators(must_be_told=True, timeout_s=deadline_s)


def committed_by_coordinators(
    wire: ConnectionPool, producer_ids: Collection[int], *, deadline_s: float = 60.0
) -> dict[tuple[int, int], Literal[True] | None]:
    """(producer id, epoch) of each newest transaction of an id, where that was committed.

    None where rows of them may be of one before it: ours take an epoch for each transaction, and
    librdkafka's, and Java's before 4.0, keep one for all of them, whatever became of each.

    Raises:
        KafkaUnavailableError: as :func:`list_open`.
    """
    return {
        (state.producer_id, state.producer_epoch - raised): True
        if owner_of(state.transactional_id) == AIRFLOW_EOS
        else None
        for state in of_producers(wire, producer_ids, Deadline(deadline_s))
        if state.transaction_state == COMMITTED
        for raised in raised_by_a_commit(wire)
    }


def raised_by_a_commit(wire: ConnectionPool) -> tuple[int, ...]:
    """By how much the epoch of a committed transaction may be above that of its rows.

    With transaction version 2 its end raises it (KIP-890), where a client asks for that: those
    before Kafka 4.0 do not.
    """
    return (0, 1) if wire.cluster.transaction_version >= 2 else (0,)


def of_producers(
    wire: ConnectionPool, producer_ids: Collection[int], deadline: Deadline
) -> list[Any]:
    """What the coordinators say of the ids that these producers have."""
    mine = ListTransactionsRequest(state_filters=[], producer_id_filters=sorted(producer_ids))
    return described(wire, {i for i, _ in _listed(wire, mine, deadline)}, deadline)


def _listed(wire: ConnectionPool, request: Any, deadline: Deadline) -> set[tuple[str, int]]:
    """(transactional id, producer id) of each that any broker names."""
    found: set[tuple[str, int]] = set()
    patience_s = FIRST_ROUND_S
    settled = True
    while not _ask_all(wire, request, found, min(patience_s, deadline.remaining), deadline):
        patience_s *= 2
        settled = False
    if not settled:
        # Whoever takes over may not have known it yet when it answered: hear all once more.
        wait(_TAKEOVER_S)
        while not _ask_all(wire, request, found, min(patience_s, deadline.remaining), deadline):
            patience_s *= 2
    return found


def _ask_all(
    wire: ConnectionPool,
    request: Any,
    found: set[tuple[str, int]],
    patience_s: float,
    deadline: Deadline,
) -> bool:
    """Ask every broker alive; False where one did not tell, and then all are to be asked again.

    Adds the (transactional id, producer id) of each to ``found``.

    What a broker coordinated that goes away is taken over by the others, also by those that have
    answered already. And until the cluster notices, it is still named among those alive.
    """
    nodes = wire.cluster.brokers()
    requests = [(request, node) for node in nodes]
    try:
        answers = wire.request_many(requests, timeout_s=patience_s)
    except KafkaUnavailableError as error:
        pause(deadline, str(error))
        return False
    loading = []
    for node, answer in zip(nodes, answers, strict=True):
        found.update((t.transactional_id, t.producer_id) for t in answer.transaction_states)
        if next_step(answer.error_code) in ASK_AGAIN:
            loading.append(node)  # its part of __transaction_state is not read yet
        elif answer.error_code != faults.NONE:
            raise refused(answer.error_code, "listing", "*")
        if answer.unknown_state_filters:  # then nothing is listed, whatever is open
            raise TransactionError(
                f"Broker {node} lists no transactions of the state "
                f"{', '.join(answer.unknown_state_filters)}, which it does not know: what is open "
                "there is not known.",
                Remedy(change="use a cluster whose brokers list them", start=True),
            )
    if loading:
        pause(deadline, f"brokers {loading} are loading their transactions")
    return not loading


def _ongoing(wire: ConnectionPool, pattern: str) -> Any:
    filters: dict[str, Any] = {}
    if wire.highest_version(ListTransactionsRequest) >= 2:
        # RE2 on the broker: what re.escape puts a backslash before may have one there, too
        filters["transactional_id_pattern"] = pattern
    return ListTransactionsRequest(state_filters=[ONGOING], producer_id_filters=[], **filters)


# --- transactions in partitions -------------------------------------------------------------------
# What the leaders of partitions say: which transactions are open there, known or not (KIP-664).


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
            ``markers.py``): it is to be committed here as well. None: it, or one after it.
    """

    topic: str
    partition: int
    start: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_written_ms: int
    committed: bool | None = False


def open_in_partitions(
    wire: ConnectionPool, partitions: Collection[Place], deadline: Deadline
) -> set[HangingTransaction]:
    """What the leaders have open, whether or not anybody knows of it.

    Raises:
        KafkaUnavailableError: a leader did not answer in time.
    """
    if partitions and not wire.cluster.capabilities().speak(DescribeProducersRequest):
        return {
            each for place in sorted(partitions) for each in _open_by_log(wire, place, deadline)
        }
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


def _open_by_log(
    wire: ConnectionPool, place: Place, deadline: Deadline
) -> list[HangingTransaction]:
    """The same, read in the log, for brokers without DescribeProducers.

    None that is open begins before the last stable offset. So what has rows from there on, and no
    marker behind them, is open.
    """
    span = OffsetSpan(
        *place,
        first=positions(wire, [place], LATEST)[place],
        until=positions(wire, [place], LATEST, committed_only=False)[place],
    )
    found: dict[int, HangingTransaction] = {}
    for batches in read_span(
        wire, span, committed_only=False, markers=True, stalled_s=deadline.remaining
    ):
        for batch in batches:
            if batch.is_control:
                found.pop(batch.producer_id, None)
            elif batch.is_transactional:
                known = found.get(batch.producer_id)
                found[batch.producer_id] = HangingTransaction(
                    *place,
                    start=batch.base_offset if known is None else known.start,
                    producer_id=batch.producer_id,
                    producer_epoch=batch.producer_epoch,
                    coordinator_epoch=-1,
                    last_written_ms=batch.max_timestamp_ms,
                )
        if deadline.expired:
            raise KafkaUnavailableError(
                f"Which transactions are open in {span} is not known: the brokers have no "
                f"DescribeProducers, and its log from offset {span.first} to {span.until} could "
                f"not be read within {deadline}. Ask again."
            )
    return list(found.values())


def _describe(
    wire: ConnectionPool, partitions: list[Place], *, refresh: bool
) -> Iterator[tuple[Place, Any]]:
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
    asked = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(
        topics=[asked(name=t, partition_indexes=found) for t, found in by_topic(places).items()]
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
