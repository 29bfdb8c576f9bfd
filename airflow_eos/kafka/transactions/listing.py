"""Which transactions are open now, under one prefix, over all coordinators (KIP-664)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.deadline import Deadline, wait
from airflow_eos.kafka.client.messages import ListTransactionsRequest
from airflow_eos.kafka.client.next_step import ASK_AGAIN, next_step
from airflow_eos.kafka.transactions.describing import (
    COMMITTED,
    FIRST_ROUND_S,
    ONGOING,
    described,
    open_transaction,
    pause,
    refused,
)
from airflow_eos.kafka.transactions.identity import (
    belongs_to_prefix,
    transactional_id_of,
    whose,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_eos.kafka.client.wire import Wire
    from airflow_eos.kafka.transactions.identity import OpenTransaction, TransactionIdentity

_TAKEOVER_S = 1.0


def list_open(
    wire: Wire,
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
    found = _listed(wire, _ongoing(wire, f"{re.escape(prefix)}-eos-[0-9]+-[0-9]+"), deadline)
    found -= {(known.transactional_id, known.producer_id) for known in besides}
    ids = {i for i, _ in found if belongs_to_prefix(i, prefix)}
    return _opened(wire, ids, deadline)


def list_lookalikes(
    wire: Wire, prefix: str, *, deadline_s: float = 60.0
) -> tuple[tuple[OpenTransaction, str], ...]:
    """What other programs have open under the prefix, and whose it is by the form of its id.

    Raises:
        TransactionError, KafkaUnavailableError: as :func:`list_open`.
    """
    deadline = Deadline(deadline_s)
    found = _listed(wire, _ongoing(wire, f"{re.escape(prefix)}.*"), deadline)
    ids = {i for i, _ in found if whose(i, prefix)}
    return tuple(
        (each, whose(each.transactional_id, prefix)) for each in _opened(wire, ids, deadline)
    )


def _opened(wire: Wire, ids: set[str], deadline: Deadline) -> tuple[OpenTransaction, ...]:
    opened = (s for s in described(wire, ids, deadline) if s.transaction_state == ONGOING)
    return tuple(sorted(map(open_transaction, opened), key=lambda t: t.identity))


def held_by_coordinators(
    wire: Wire, producer_ids: Collection[int], *, deadline_s: float = 60.0
) -> frozenset[tuple[int, str, int]]:
    """(producer id, topic, partition) of all in a transaction that its coordinator has not ended.

    Of ids that the principal may not describe, nothing is told.

    Raises:
        KafkaUnavailableError: as :func:`list_open`.
    """
    return frozenset(
        (state.producer_id, held.topic, partition)
        for state in _of_producers(wire, producer_ids, Deadline(deadline_s))
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
    raised = 1 if wire.cluster.transaction_version >= 2 else 0
    return frozenset(
        (state.producer_id, state.producer_epoch - raised)
        for state in _of_producers(wire, producer_ids, Deadline(deadline_s))
        if state.transaction_state == COMMITTED
    )


def _of_producers(wire: Wire, producer_ids: Collection[int], deadline: Deadline) -> list[Any]:
    """What the coordinators say of the ids that these producers have."""
    mine = ListTransactionsRequest(state_filters=[], producer_id_filters=sorted(producer_ids))
    return described(wire, {i for i, _ in _listed(wire, mine, deadline)}, deadline)


def _listed(wire: Wire, request: Any, deadline: Deadline) -> set[tuple[str, int]]:
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
        pause(deadline, str(error))
        return False
    loading = []
    for node, answer in zip(nodes, answers, strict=True):
        found.update((t.transactional_id, t.producer_id) for t in answer.transaction_states)
        if next_step(answer.error_code) in ASK_AGAIN:
            loading.append(node)  # its part of __transaction_state is not read yet
        elif answer.error_code != faults.NONE:
            raise refused(answer.error_code, "listing", "*")
    if loading:
        pause(deadline, f"brokers {loading} are loading their transactions")
    return not loading


def _ongoing(wire: Wire, pattern: str) -> Any:
    filters: dict[str, Any] = {}
    if wire.highest_version(ListTransactionsRequest) >= 2:
        # RE2 on the broker: what re.escape puts a backslash before may have one there, too
        filters["transactional_id_pattern"] = pattern
    return ListTransactionsRequest(state_filters=[ONGOING], producer_id_filters=[], **filters)
