"""Which transactions are open now, under one prefix, over all coordinators (KIP-664)."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import KafkaError, KafkaUnavailableError, TransactionError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.deadline import Deadline, wait
from airflow_eos.kafka.client.messages import DescribeTransactionsRequest, ListTransactionsRequest
from airflow_eos.kafka.client.next_step import ASK_AGAIN, next_step
from airflow_eos.kafka.transactions.identity import (
    OpenTransaction,
    belongs_to_prefix,
    transactional_id_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_eos.kafka.client.wire import Wire
    from airflow_eos.kafka.transactions.identity import TransactionIdentity

_IDS_PER_DESCRIBE = 500
_FIRST_ROUND_S = 2.0
"""How long to wait for all brokers at first; twice as long each time."""
_TAKEOVER_S = 1.0
_ONGOING = "Ongoing"  # org.apache.kafka.clients.admin.TransactionState
_COMMITTED = "CompleteCommit"
_ENDING = frozenset({"PrepareCommit", "PrepareAbort"})


def list_open(
    wire: Wire,
    prefix: str,
    *,
    besides: Collection[TransactionIdentity] = (),
    deadline_s: float = 60.0,
) -> tuple[OpenTransaction, ...]:
    """The transactions ``<prefix>-<task>-<attempt>`` that are open now, sorted by id.

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
    found = _listed(wire, _under(wire, prefix), deadline)
    found -= {(known.transactional_id, known.producer_id) for known in besides}
    ids = {i for i, _ in found if belongs_to_prefix(i, prefix)}
    opened = (s for s in _described(wire, ids, deadline) if s.transaction_state == _ONGOING)
    return tuple(sorted(map(_open_transaction, opened), key=lambda t: t.identity))


def held_by_coordinators(
    wire: Wire, producer_ids: Collection[int], *, deadline_s: float = 60.0
) -> frozenset[tuple[int, str, int]]:
    """(producer id, topic, partition) of all in a transaction that its coordinator has not ended.

    Of ids that the principal may not describe, nothing is told.

    Raises:
        KafkaUnavailableError: as :func:`list_open`.
    """
    deadline = Deadline(deadline_s)
    mine = ListTransactionsRequest(state_filters=[], producer_id_filters=sorted(producer_ids))
    ids = {i for i, _ in _listed(wire, mine, deadline)}
    return frozenset(
        (state.producer_id, held.topic, partition)
        for state in _described(wire, ids, deadline)
        for held in state.topics
        for partition in held.partitions
    )


def committed_by_coordinators(
    wire: Wire, producer_ids: Collection[int], *, deadline_s: float = 60.0
) -> frozenset[tuple[int, int]]:
    """(producer id, epoch) of each newest transaction of an id, where that was committed.

    With transaction version 2 every end raises the epoch (KIP-890), and the raised one is told.

    Raises:
        KafkaUnavailableError: as :func:`list_open`.
    """
    deadline = Deadline(deadline_s)
    mine = ListTransactionsRequest(
        state_filters=[_COMMITTED], producer_id_filters=sorted(producer_ids)
    )
    ids = {i for i, _ in _listed(wire, mine, deadline)}
    raised = 1 if wire.cluster.transaction_version >= 2 else 0
    return frozenset(
        (state.producer_id, state.producer_epoch - raised)
        for state in _described(wire, ids, deadline)
        if state.transaction_state == _COMMITTED
    )


def being_ended(wire: Wire, ids: Collection[str], *, deadline_s: float = 60.0) -> frozenset[str]:
    """Those whose coordinator has decided the end and is writing the markers.

    Raises:
        TransactionError: not allowed to describe an id.
        KafkaUnavailableError: as :func:`list_open`.
    """
    described = _described(wire, ids, Deadline(deadline_s))
    return frozenset(s.transactional_id for s in described if s.transaction_state in _ENDING)


def open_places(
    wire: Wire, identities: Collection[TransactionIdentity], *, deadline_s: float = 60.0
) -> dict[TransactionIdentity, tuple[tuple[str, int], ...]]:
    """Where those write that are open: topic and partition.

    Raises:
        TransactionError, KafkaUnavailableError: as :func:`being_ended`.
    """
    ids = {each.transactional_id for each in identities}
    described = _described(wire, ids, Deadline(deadline_s))
    opened = [_open_transaction(s) for s in described if s.transaction_state == _ONGOING]
    return {each.identity: each.partitions for each in opened if each.identity in identities}


def _listed(wire: Wire, request: Any, deadline: Deadline) -> set[tuple[str, int]]:
    """(transactional id, producer id) of each that any broker names."""
    found: set[tuple[str, int]] = set()
    patience_s = _FIRST_ROUND_S
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
    wire: Wire, request: Any, found: set[tuple[str, int]], patience_s: float, deadline: Deadline
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
        _pause(deadline, str(error))
        return False
    loading = []
    for node, answer in zip(nodes, answers, strict=True):
        found.update((t.transactional_id, t.producer_id) for t in answer.transaction_states)
        if next_step(answer.error_code) in ASK_AGAIN:
            loading.append(node)  # its part of __transaction_state is not read yet
        elif answer.error_code != faults.NONE:
            raise _refused(answer.error_code, "listing", "*")
    if loading:
        _pause(deadline, f"brokers {loading} are loading their transactions")
    return not loading


def _under(wire: Wire, prefix: str) -> Any:
    filters: dict[str, Any] = {}
    if wire.highest_version(ListTransactionsRequest) >= 2:
        # RE2 on the broker: what re.escape puts a backslash before may have one there, too
        filters["transactional_id_pattern"] = f"{re.escape(prefix)}-[0-9]+-[0-9]+"
    return ListTransactionsRequest(state_filters=[_ONGOING], producer_id_filters=[], **filters)


def _described(wire: Wire, wanted: Collection[str], deadline: Deadline) -> list[Any]:
    """What the coordinators say of each; what they have forgotten meanwhile is left out."""
    ids = list(wanted)
    described: list[Any] = []
    patience_s = _FIRST_ROUND_S
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
            _pause(deadline, str(error))
            patience_s *= 2
            continue
        for state in (state for answer in answers for state in answer.transaction_states):
            if next_step(state.error_code) in ASK_AGAIN:
                again.append(state.transactional_id)
            elif state.error_code == faults.NONE:
                described.append(state)
            elif state.error_code != faults.TRANSACTIONAL_ID_NOT_FOUND:
                raise _refused(state.error_code, "describing", state.transactional_id)
        ids = again
        if ids:
            wire.cluster.forget_coordinators(ids)
            _pause(deadline, f"the coordinators of {len(ids)} ids are moving")
    return described


def _by_coordinator(wire: Wire, ids: list[str], deadline: Deadline) -> list[tuple[int, list[str]]]:
    by_node: dict[int, list[str]] = defaultdict(list)
    for i, node in wire.cluster.coordinators(ids, timeout_s=deadline.remaining).items():
        by_node[node].append(i)
    return [
        (node, mine[i : i + _IDS_PER_DESCRIBE])
        for node, mine in by_node.items()
        for i in range(0, len(mine), _IDS_PER_DESCRIBE)
    ]


def _open_transaction(state: Any) -> OpenTransaction:
    return OpenTransaction(
        transactional_id=state.transactional_id,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        started_at_ms=state.transaction_start_time_ms,
        timeout_ms=state.transaction_timeout_ms,
        partitions=tuple(sorted((t.topic, p) for t in state.topics for p in t.partitions)),
    )


def _refused(code: int, doing: str, transactional_id: str) -> KafkaError:
    return faults.refusal(
        code,
        f"while {doing} transactions ({transactional_id!r})",
        acl=f"Describe on TransactionalId {transactional_id!r}",
        otherwise=TransactionError,
    )


def _pause(deadline: Deadline, why: str) -> None:
    if not deadline.pause():
        raise KafkaUnavailableError(
            f"The open transactions could not be listed within {deadline}: {why}."
        )
