"""What the coordinators say of transactional ids that are named (KIP-664)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import KafkaError, KafkaUnavailableError, TransactionError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.deadline import Deadline
from airflow_eos.kafka.client.messages import DescribeTransactionsRequest
from airflow_eos.kafka.client.next_step import ASK_AGAIN, next_step
from airflow_eos.kafka.transactions.identity import OpenTransaction

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_eos.kafka.client.wire import Wire
    from airflow_eos.kafka.transactions.identity import TransactionIdentity

FIRST_ROUND_S = 2.0
"""How long to wait for all brokers at first; twice as long each time."""
ONGOING, COMMITTED = "Ongoing", "CompleteCommit"
"""Of ``org.apache.kafka.clients.admin.TransactionState``."""
_ENDING = frozenset({"PrepareCommit", "PrepareAbort"})
_IDS_PER_DESCRIBE = 500


def not_ended_yet(
    wire: Wire, identities: Collection[TransactionIdentity], *, deadline_s: float = 60.0
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
        if state.transaction_state in _ENDING
        or (state.transaction_state == ONGOING and open_transaction(state).identity in identities)
    )


def open_places(
    wire: Wire, identities: Collection[TransactionIdentity], *, deadline_s: float = 60.0
) -> dict[TransactionIdentity, tuple[tuple[str, int], ...]]:
    """Where those write that are open: topic and partition.

    Raises:
        TransactionError, KafkaUnavailableError: as :func:`not_ended_yet`.
    """
    ids = {each.transactional_id for each in identities}
    found = described(wire, ids, Deadline(deadline_s))
    opened = [open_transaction(s) for s in found if s.transaction_state == ONGOING]
    return {each.identity: each.partitions for each in opened if each.identity in identities}


def described(wire: Wire, wanted: Collection[str], deadline: Deadline) -> list[Any]:
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
        for state in (state for answer in answers for state in answer.transaction_states):
            if next_step(state.error_code) in ASK_AGAIN:
                again.append(state.transactional_id)
            elif state.error_code == faults.NONE:
                found.append(state)
            elif state.error_code != faults.TRANSACTIONAL_ID_NOT_FOUND:
                raise refused(state.error_code, "describing", state.transactional_id)
        ids = again
        if ids:
            wire.cluster.forget_coordinators(ids)
            pause(deadline, f"the coordinators of {len(ids)} ids are moving")
    return found


def _by_coordinator(wire: Wire, ids: list[str], deadline: Deadline) -> list[tuple[int, list[str]]]:
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
    """Wait before asking again.

    Raises:
        KafkaUnavailableError: the time is up.
    """
    if not deadline.pause():
        raise KafkaUnavailableError(
            f"The open transactions could not be listed within {deadline}: {why}."
        )
