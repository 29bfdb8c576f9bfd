"""What a writer asks of a transaction coordinator: an id, who holds it, partitions for it.

Listing is in :mod:`.listing`, ending in :mod:`.ending`. Everything may be repeated: describing
changes nothing, InitProducerId a second time raises the epoch once more, adding a partition twice
adds it once. So a lost answer is asked for again and never read as an outcome.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import (
    FencedError,
    KafkaError,
    KafkaUnavailableError,
    TimeoutBudgetError,
    TransactionError,
)
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.deadline import SHORTLY_S, Deadline
from airflow_eos.kafka.client.messages import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
)
from airflow_eos.kafka.client.next_step import ASK_AGAIN, NextStep, next_step
from airflow_eos.kafka.transactions.identity import TransactionIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_eos.kafka.client.wire import Wire


class TransactionCoordinator:
    """All transaction coordinators of one cluster; each id is coordinated by one broker."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def init(
        self, transactional_id: str, timeout_ms: int, *, deadline_s: float = 60.0
    ) -> TransactionIdentity:
        """Take the id (InitProducerId): fences whoever held it and aborts what it left open.

        Raises:
            TimeoutBudgetError: ``timeout_ms`` is above the broker's ``transaction.max.timeout.ms``.
            TransactionError: not allowed to use the id, or an answer nobody expects.
            KafkaUnavailableError: no coordinator answered within ``deadline_s``.
        """
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            max_version=5,  # v6 only adds two-phase commit, which brokers refuse (KIP-939)
        )
        answer, code = self._ask(
            transactional_id, request, lambda answer: int(answer.error_code), deadline_s
        )
        if code == faults.NONE:
            return TransactionIdentity(transactional_id, answer.producer_id, answer.producer_epoch)
        if code == faults.INVALID_TRANSACTION_TIMEOUT:
            raise TimeoutBudgetError(
                f"The broker refuses a transaction timeout of {timeout_ms} ms: it is above its "
                "transaction.max.timeout.ms (15 min unless set). Lower the timeout or raise that."
            )
        raise _refused(code, "while taking", transactional_id)

    def holder(self, transactional_id: str, *, deadline_s: float = 60.0) -> TransactionIdentity:
        """The producer id and epoch that hold the id now, with a transaction open or without.

        Raises:
            TransactionError: nobody holds it, or not allowed to describe it.
            KafkaUnavailableError: no coordinator answered within ``deadline_s``.
        """
        answer, code = self._ask(
            transactional_id,
            DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            lambda answer: int(answer.transaction_states[0].error_code),
            deadline_s,
        )
        if code != faults.NONE:
            raise faults.refusal(
                code,
                f"while describing transactional id {transactional_id!r}",
                acl=f"Describe on TransactionalId {transactional_id!r}",
                otherwise=TransactionError,
            )
        state = answer.transaction_states[0]
        return TransactionIdentity(transactional_id, state.producer_id, state.producer_epoch)

    def add_partitions(
        self,
        identity: TransactionIdentity,
        topic_partitions: Iterable[tuple[str, int]],
        *,
        deadline_s: float = 60.0,
    ) -> None:
        """Say which partitions the transaction will write to; needed below transaction version 2.

        With version 2 the produce request does it (KIP-890).

        Raises:
            FencedError: the id has been taken, or the transaction has timed out.
            TopicError: a topic may not be written to.
        """
        topics: dict[str, list[int]] = defaultdict(list)
        for topic, partition in topic_partitions:
            topics[topic].append(partition)
        kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=identity.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=[kind(name=t, partitions=p) for t, p in topics.items()],
            max_version=3,
        )
        transactional_id = identity.transactional_id
        _, code = self._ask(transactional_id, request, _partition_code, deadline_s)
        if code == faults.NONE:
            return
        if next_step(code) is NextStep.LOOK:
            raise FencedError(
                f"Kafka answered {faults.error_name(code)} while adding partitions to {identity}: "
                "somebody has taken the id since, or its timeout has passed. Run the batch again."
            )
        if code == faults.TOPIC_AUTHORIZATION_FAILED:
            raise faults.refusal(
                code, f"while adding partitions to {identity}", acl=f"Write on Topic {list(topics)}"
            )
        raise _refused(code, "while adding partitions to", transactional_id)

    def _ask(
        self,
        transactional_id: str,
        request: Any,
        code_of: Callable[[Any], int],
        deadline_s: float,
    ) -> tuple[Any, int]:
        """Ask the id's coordinator until it answers something that is not "ask again"."""
        deadline = Deadline(deadline_s, first_pause_s=SHORTLY_S)
        while True:
            home = self._wire.cluster.coordinators([transactional_id], timeout_s=deadline.remaining)
            last: int | KafkaUnavailableError
            try:
                answer = self._wire.submit(
                    request,
                    node_id=home[transactional_id],
                    timeout_s=deadline.answer_s,
                ).result(deadline.remaining)
                last = code_of(answer)
                if next_step(last) not in ASK_AGAIN:
                    return answer, last
            except (KafkaUnavailableError, TimeoutError) as error:
                last = KafkaUnavailableError(str(error) or "no answer in time")
            if last != faults.CONCURRENT_TRANSACTIONS:
                self._wire.cluster.forget_coordinators([transactional_id])
            if not deadline.pause():
                raise KafkaUnavailableError(
                    f"The coordinator of transactional id {transactional_id!r} gave no final "
                    f"answer within {deadline}: {faults.said(last)}."
                )


def _partition_code(answer: Any) -> int:
    """The most telling code of AddPartitionsToTxn v3: one partition's error stops all others."""
    codes = [
        partition.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    ]
    final = [c for c in codes if c not in {faults.NONE, faults.OPERATION_NOT_ATTEMPTED}]
    return int(final[0]) if final else faults.NONE


def _refused(code: int, doing: str, transactional_id: str) -> KafkaError:
    return faults.refusal(
        code,
        f"{doing} transactional id {transactional_id!r}",
        acl=f"Write on TransactionalId {transactional_id!r}",
        otherwise=TransactionError,
    )
