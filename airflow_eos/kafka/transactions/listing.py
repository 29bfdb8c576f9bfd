"""Listing of open transactions, by prefix over all coordinators or by partitions (KIP-664)."""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from airflow_eos.core.checkpoint.topics import TopicPartition
from airflow_eos.errors import KafkaError, KafkaUnavailableError, Remedy, TransactionError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.errors import ASK_AGAIN, Deadline, next_step, wait
from airflow_eos.kafka.client.messages import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from airflow_eos.kafka.client.offsets import LATEST, by_topic, positions
from airflow_eos.kafka.client.reading import OffsetSpan, read_span
from airflow_eos.kafka.transactions.identity import (
    AIRFLOW_EOS,
    NEVER_MS,
    OpenTransaction,
    TransactionIdentity,
    belongs_to_prefix,
    not_ours,
    owner_of,
    transactional_id_of,
    whose,
)

FIRST_ROUND_S = 2.0
"""How long to wait for all brokers in the first round; twice as long in each further round."""
EMPTY, ONGOING, COMMITTED = "Empty", "Ongoing", "CompleteCommit"
ABORTED = "CompleteAbort"
"""Transaction states of ``org.apache.kafka.clients.admin.TransactionState``."""
ENDING = frozenset({"PrepareCommit", "PrepareAbort"})
ENDED = frozenset({COMMITTED, ABORTED})
_FINAL_STATES = ENDED | {EMPTY, "Dead"}
"""The final states of a transaction; any other state, also a later broker's, is not final."""
_IDS_PER_DESCRIBE = 500


def not_ended_yet(
    wire: ConnectionPool, identities: Collection[TransactionIdentity], *, deadline_s: float = 60.0
) -> frozenset[str]:
    """Return the ids of transactions whose coordinator still writes markers, or has yet to decide.

    Raises:
        TransactionError: not allowed to describe an id.
        KafkaUnavailableError: as :func:`list_open`.
    """
    ids = {each.transactional_id for each in identities}
    return frozenset(
        state.transactional_id
        for state in described(wire, ids, Deadline(deadline_s))
        if state.transaction_state not in _FINAL_STATES
        and (state.transaction_state != ONGOING or open_transaction(state).identity in identities)
    )


def known_as_aborted(
    wire: ConnectionPool, identities: Collection[TransactionIdentity], *, deadline_s: float = 60.0
) -> frozenset[TransactionIdentity]:
    """Return the transactions whose producer's newest one has ended with an abort.

    That may be a later one: an id is taken again only when what became of the former is known.

    Raises:
        TransactionError, KafkaUnavailableError: as :func:`not_ended_yet`.
    """
    ids = {each.transactional_id for each in identities}
    states = described(wire, ids, Deadline(deadline_s))
    aborted = {
        (state.transactional_id, state.producer_id)
        for state in states
        if state.transaction_state == ABORTED
    }
    return frozenset(
        each for each in identities if (each.transactional_id, each.producer_id) in aborted
    )


def open_places(
    wire: ConnectionPool, identities: Collection[TransactionIdentity]
) -> dict[TransactionIdentity, tuple[tuple[str, int], ...]]:
    """Return, for each transaction that is open, the partitions that it writes to.

    Raises:
        TransactionError, KafkaUnavailableError: as :func:`not_ended_yet`.
    """
    ids = {each.transactional_id for each in identities}
    found = described(wire, ids, Deadline(60.0))
    still_open = [open_transaction(s) for s in found if s.transaction_state == ONGOING]
    return {each.identity: each.partitions for each in still_open if each.identity in identities}


def described(wire: ConnectionPool, wanted: Collection[str], deadline: Deadline) -> list[Any]:
    """Return the coordinators' description of each id, without ids that they have forgotten."""
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
        # An id that no response names is asked for again: it does not count as forgotten.
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
    """Translate a coordinator's description of an ongoing transaction."""
    return OpenTransaction(
        transactional_id=state.transactional_id,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        started_at_ms=state.transaction_start_time_ms,
        timeout_ms=state.transaction_timeout_ms,
        partitions=tuple(sorted((t.topic, p) for t in state.topics for p in t.partitions)),
    )


def refused(code: int, doing: str, transactional_id: str) -> KafkaError:
    """Return the error for a refused request, with the missing ACL where one is the reason."""
    return faults.refusal(
        code,
        f"while {doing} transactions ({transactional_id!r})",
        acl=f"Describe on TransactionalId {transactional_id!r}",
        otherwise=TransactionError,
    )


def pause(deadline: Deadline, why: str) -> None:
    """Wait before a retry (KafkaUnavailableError: the deadline would pass meanwhile)."""
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
    except_known: Collection[TransactionIdentity] = (),
    deadline_s: float = 60.0,
) -> tuple[OpenTransaction, ...]:
    """List the open transactions ``<prefix>-eos-<task>-<attempt>``, sorted by id.

    Asks every broker; brokers that can filter do (KIP-1152, Kafka 4.1). A transaction that ends
    between listing and describing is left out.

    Args:
        except_known: known open transactions, left out to save describing them. Listing tells no
            epoch, so a later transaction with the same id and producer id is left out, too.

    Raises:
        TransactionError: not allowed to describe the ids. Kafka itself would leave them out
            silently, which would look like "nothing open".
        KafkaUnavailableError: some broker did not answer; no partial list is returned.
    """
    deadline = Deadline(deadline_s)
    wire.cluster.coordinators(
        [transactional_id_of(prefix, 0, 0)], timeout_s=deadline_s
    )  # refuses where the ACL is missing
    if not except_known:  # a batch lists again with the next one; other callers need all now
        wire.cluster.require_coordinators(timeout_s=deadline.remaining)
    found = _listed(wire, _ongoing(wire, f"{re.escape(prefix)}-eos-[0-9]+-[0-9]+"), deadline)
    found -= {(known.transactional_id, known.producer_id) for known in except_known}
    ids = {i for i, _ in found if belongs_to_prefix(i, prefix)}
    return _open_transactions(wire, ids, deadline)


def untimed(wire: ConnectionPool, prefix: str) -> list[OpenTransaction]:
    """List the open transactions of the prefix that no timer ends; errors as :func:`list_open`."""
    found = list_open(wire, prefix)
    return [each for each in found if each.timeout_ms == NEVER_MS and not not_ours(each, ())]


def list_lookalikes(
    wire: ConnectionPool, prefix: str, *, deadline_s: float = 60.0
) -> tuple[tuple[OpenTransaction, str], ...]:
    """List other programs' open transactions under the prefix, with the program by the id's form.

    Raises:
        TransactionError, KafkaUnavailableError: as :func:`list_open`.
    """
    deadline = Deadline(deadline_s)
    wire.cluster.require_coordinators(timeout_s=deadline.remaining)
    found = _listed(wire, _ongoing(wire, f"{re.escape(prefix)}.*"), deadline)
    ids = {i for i, _ in found if whose(i, prefix)}
    return tuple(
        (each, whose(each.transactional_id, prefix))
        for each in _open_transactions(wire, ids, deadline)
    )


def listed_ids(wire: ConnectionPool, pattern: str, deadline: Deadline) -> set[str]:
    """Return the ids of all transactions in any state, of which those of ``pattern`` are asked for.

    Brokers that cannot filter by the pattern (before Kafka 4.1) list all.

    Raises:
        KafkaUnavailableError: as :func:`list_open`.
    """
    return {i for i, _ in _listed(wire, _in_states(wire, pattern, []), deadline)}


def _open_transactions(
    wire: ConnectionPool, ids: set[str], deadline: Deadline
) -> tuple[OpenTransaction, ...]:
    still_open = (s for s in described(wire, ids, deadline) if s.transaction_state == ONGOING)
    return tuple(sorted(map(open_transaction, still_open), key=lambda t: t.identity))


def held_by_coordinators(
    wire: ConnectionPool, producer_ids: Collection[int], *, deadline_s: float = 60.0
) -> frozenset[tuple[int, str, int]]:
    """Return (producer id, topic, partition) for all partitions that coordinators still hold.

    Ids that the principal may not describe are left out: see :func:`require_all_told`.

    Raises:
        KafkaUnavailableError: as :func:`list_open`.
    """
    return frozenset(
        (state.producer_id, held.topic, partition)
        for state in transactions_of_producers(wire, producer_ids, Deadline(deadline_s))
        for held in state.topics
        for partition in held.partitions
    )


def require_all_told(wire: ConnectionPool, *, deadline_s: float = 60.0) -> None:
    """Refuse where coordinators may leave transactions out, so that absent could not mean "none".

    They omit ids that the principal may not describe, without an error; but a principal that may
    describe an unused random id may describe every id.

    Raises:
        TransactionError: not allowed to describe all ids.
        TopicError: not allowed to see whether all coordinators are there.
        KafkaUnavailableError: some coordinators are away.
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
    wire: ConnectionPool, hanging: Collection[HangingTransaction], *, deadline_s: float = 60.0
) -> dict[HangingTransaction, bool | None]:
    """Return whether each hanging transaction was committed, as its coordinator tells.

    It tells of a producer's newest transaction, and a hanging one may be one before. Ours take an
    epoch for each transaction, and one that is not committed is replayed. Of another program's the
    answer is None (not known), unless its epoch has had no transaction yet.

    Raises:
        KafkaUnavailableError: as :func:`list_open`.
    """
    producers = {each.producer_id for each in hanging}
    told = transactions_of_producers(wire, producers, Deadline(deadline_s))
    newest = {state.producer_id: state for state in told}
    raised = raised_by_a_commit(wire)
    return {
        each: _was_committed(newest.get(each.producer_id), each.producer_epoch, raised)
        for each in hanging
    }


def _was_committed(state: Any, epoch: int, raised: tuple[int, ...]) -> bool | None:
    if state is None:
        return False
    above = state.producer_epoch - epoch
    if owner_of(state.transactional_id) == AIRFLOW_EOS:
        return state.transaction_state == COMMITTED and above in raised
    return False if (state.transaction_state, above) == (EMPTY, 0) else None


def raised_by_a_commit(wire: ConnectionPool) -> tuple[int, ...]:
    """Return by how much a committed transaction's epoch may be above the epoch of its rows.

    With transaction version 2 the end raises the epoch (KIP-890), if the client asks for that:
    clients before Kafka 4.0 do not.
    """
    return (0, 1) if wire.cluster.transaction_version >= 2 else (0,)


def transactions_of_producers(
    wire: ConnectionPool, producer_ids: Collection[int], deadline: Deadline
) -> list[Any]:
    """Return the coordinators' descriptions of the ids that these producers have."""
    mine = ListTransactionsRequest(state_filters=[], producer_id_filters=sorted(producer_ids))
    return described(wire, {i for i, _ in _listed(wire, mine, deadline)}, deadline)


def _listed(wire: ConnectionPool, request: Any, deadline: Deadline) -> set[tuple[str, int]]:
    """Return (transactional id, producer id) of every transaction that a broker lists."""
    found: set[tuple[str, int]] = set()
    patience_s = FIRST_ROUND_S
    settled = True
    while not _ask_all(wire, request, found, min(patience_s, deadline.remaining), deadline):
        patience_s *= 2
        settled = False
    if not settled:
        # A broker that takes over may have answered before it did: ask all once more.
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
    """Ask all live brokers once; False where one did not tell: then all have to be asked again.

    Adds (transactional id, producer id) of each listed transaction to ``found``.

    When a broker goes away, others take over its transactions, also brokers that have answered
    already. Until the cluster notices, the broker is still named as alive.
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
        if answer.unknown_state_filters:  # then the broker lists nothing, whatever is open
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
    return _in_states(wire, pattern, [ONGOING])


def _in_states(wire: ConnectionPool, pattern: str, states: list[str]) -> Any:
    filters: dict[str, Any] = {}
    if wire.highest_version(ListTransactionsRequest) >= 2:
        # brokers use RE2, which accepts all escapes of re.escape
        filters["transactional_id_pattern"] = pattern
    return ListTransactionsRequest(state_filters=states, producer_id_filters=[], **filters)


# --- transactions in partitions -------------------------------------------------------------------
# Open transactions by the partitions' leaders, whether or not a coordinator knows them (KIP-664).


@dataclass(frozen=True, slots=True, order=True)
class HangingTransaction:
    """A transaction that is open in one partition, with all that its marker needs.

    Attributes:
        start: offset of its first row, which the last stable offset cannot pass.
        producer_epoch: the producer's newest epoch that the partition has seen.
        coordinator_epoch: the coordinator epoch of the marker before; -1 where there was none.
        last_written_ms: timestamp of its newest row, milliseconds since the epoch. Its writer
            chooses it, so it is no sign of life.
        committed: its coordinator has committed it, and its marker was left out (see "markers" in
            ``hanging.py``): it is to be committed in this partition as well. None: not known.
        last_sequence: sequence number of its newest row, or that row's offset where brokers have
            no DescribeProducers: what grows while its writer lives.
    """

    topic: str
    partition: int
    start: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_written_ms: int
    committed: bool | None = False
    last_sequence: int = -1


def open_in_partitions(
    wire: ConnectionPool, partitions: Collection[TopicPartition], deadline: Deadline
) -> set[HangingTransaction]:
    """Return the transactions open on the partitions' leaders, known to a coordinator or not.

    Raises:
        KafkaUnavailableError: a leader did not answer in time.
    """
    if partitions and not wire.cluster.capabilities().speak(DescribeProducersRequest):
        return {each for tp in sorted(partitions) for each in _open_by_log(wire, tp, deadline)}
    found: set[HangingTransaction] = set()
    left = sorted(partitions)
    refresh = False
    while left:
        again: list[TopicPartition] = []
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
    wire: ConnectionPool, tp: TopicPartition, deadline: Deadline
) -> list[HangingTransaction]:
    """Return a partition's open transactions by its log, for brokers without DescribeProducers.

    No open transaction begins before the last stable offset. So one that has rows from there on,
    and no marker behind them, is open.
    """
    span = OffsetSpan(
        *tp,
        first=positions(wire, [tp], LATEST)[tp],
        until=positions(wire, [tp], LATEST, committed_only=False)[tp],
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
                    *tp,
                    start=batch.base_offset if known is None else known.start,
                    producer_id=batch.producer_id,
                    producer_epoch=batch.producer_epoch,
                    coordinator_epoch=-1,
                    last_written_ms=batch.max_timestamp_ms,
                    last_sequence=batch.last_offset,
                )
        if deadline.expired:
            raise KafkaUnavailableError(
                f"Which transactions are open in {span} is not known: the brokers have no "
                f"DescribeProducers, and its log from offset {span.first} to {span.until} could "
                f"not be read within {deadline}. Ask again."
            )
    return list(found.values())


def _describe(
    wire: ConnectionPool, partitions: list[TopicPartition], *, refresh: bool
) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield each partition with its leader's answer, or None: ask again. One request per leader."""
    leaders = {t: wire.cluster.leaders(t, refresh=refresh) for t in {t for t, _ in partitions}}
    shares: defaultdict[int | None, list[TopicPartition]] = defaultdict(list)
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


def _producers_of(partitions: list[TopicPartition]) -> DescribeProducersRequest:
    asked = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(
        topics=[asked(name=t, partition_indexes=found) for t, found in by_topic(partitions).items()]
    )


def _open_of(where: TopicPartition, answer: Any) -> set[HangingTransaction]:
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
            last_sequence=producer.last_sequence,
        )
        for producer in answer.active_producers
        if producer.current_txn_start_offset >= 0
    }
