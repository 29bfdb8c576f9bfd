"""Requests to transaction coordinators: take or describe an id, add partitions, end transactions.

Listing is in :mod:`.listing`. Every request may be repeated: describing changes nothing,
InitProducerId a second time raises the epoch once more, adding a partition twice adds it once. So
after a lost response the request is repeated; a lost response is never read as an outcome.
"""

from __future__ import annotations

import enum
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal

from airflow_eos.errors import (
    FencedError,
    KafkaError,
    KafkaUnavailableError,
    Remedy,
    TimeoutBudgetError,
    TransactionError,
)
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.cluster import TWO_PHASE, TWO_PHASE_SETTING
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.errors import ASK_AGAIN, SHORTLY_S, Deadline, NextStep, next_step
from airflow_eos.kafka.client.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from airflow_eos.kafka.transactions.identity import NEVER_MS, TransactionIdentity

TwoPhase = bool | Literal["auto"]
"""Whether no timer is to end a transaction that is opened; ``auto``: if the cluster offers it."""
_ASKED_AGAIN_S = 60.0
"""How long a coordinator's refusal of two-phase transactions is taken for its answer to all."""


class TransactionCoordinator:
    """Client of one cluster's transaction coordinators; one broker coordinates each id."""

    def __init__(self, wire: ConnectionPool) -> None:
        self._wire = wire
        self._refused_at_s = -math.inf

    def take(
        self, transactional_id: str, timeout_ms: int, two_phase: TwoPhase
    ) -> tuple[TransactionIdentity, bool]:
        """Take the id as :meth:`init`; return also whether no timer ends its transaction.

        With ``auto`` a plain one is opened where the cluster offers no other. Errors as
        :meth:`init`; and a TransactionError where ``two_phase`` is True, and refused.
        """
        if two_phase is not False:
            fresh = time.monotonic() - self._refused_at_s < _ASKED_AGAIN_S
            identity = None if fresh else self.init_two_phase(transactional_id)
            if identity is not None:
                return identity, True
            if two_phase is True:
                raise two_phase_refused(self._wire, transactional_id)
        return self.init(transactional_id, timeout_ms), False

    def init_two_phase(self, transactional_id: str) -> TransactionIdentity | None:
        """Take the id for a transaction that no timer ends; None where the cluster refuses that.

        Then nothing was taken. Errors as :meth:`init`.
        """
        if self._wire.cluster.capabilities().of(TWO_PHASE).version is None:
            return None
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=NEVER_MS,
            producer_id=-1,
            producer_epoch=-1,
            enable2_pc=True,
            keep_prepared_txn=False,
            min_version=TWO_PHASE.least,  # an older one would leave out enable2_pc in silence
            max_version=TWO_PHASE.least,
        )
        answer, code = self._ask(transactional_id, request, _code)
        if code == faults.NONE:
            return TransactionIdentity(transactional_id, answer.producer_id, answer.producer_epoch)
        if code != faults.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise _refused(code, "taking", transactional_id)
        self._refused_at_s = time.monotonic()
        return None

    def init(
        self, transactional_id: str, timeout_ms: int, *, deadline_s: float = 60.0
    ) -> TransactionIdentity:
        """Take the id (InitProducerId): fence its holder and abort the holder's open transaction.

        Raises:
            TimeoutBudgetError: ``timeout_ms`` is above the broker's ``transaction.max.timeout.ms``.
            TransactionError: not allowed to use the id, or an unexpected error code.
            KafkaUnavailableError: no coordinator answered within ``deadline_s``.
        """
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            max_version=5,  # v6 only adds two-phase commit: see init_two_phase
        )
        answer, code = self._ask(transactional_id, request, _code, deadline_s)
        if code == faults.NONE:
            return TransactionIdentity(transactional_id, answer.producer_id, answer.producer_epoch)
        if code == faults.INVALID_TRANSACTION_TIMEOUT:
            raise TimeoutBudgetError(
                f"The broker refuses a transaction timeout of {timeout_ms} ms: it is above its "
                "transaction.max.timeout.ms (15 min unless set). Lower the timeout or raise that."
            )
        raise _refused(code, "taking", transactional_id)

    def holder(self, transactional_id: str) -> TransactionIdentity:
        """Return the producer id and epoch that hold the id now, with or without open transaction.

        Raises:
            TransactionError: no producer holds the id, or not allowed to describe it.
            KafkaUnavailableError: no coordinator answered within a minute.
        """
        answer, code = self._ask(
            transactional_id,
            DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            lambda answer: faults.first_code(each.error_code for each in answer.transaction_states),
        )
        if code != faults.NONE:
            raise _refused(code, "describing", transactional_id, right="Describe")
        state = answer.transaction_states[0]
        return TransactionIdentity(transactional_id, state.producer_id, state.producer_epoch)

    def add_partitions(
        self,
        identity: TransactionIdentity,
        topic_partitions: Iterable[tuple[str, int]],
    ) -> None:
        """Add partitions to a transaction before it writes; needed below transaction version 2.

        With version 2 the produce request adds them (KIP-890).

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
        asked = sum(map(len, topics.values()))
        _, code = self._ask(
            identity.transactional_id,
            request,
            lambda answer: _partition_code(answer, asked),
        )
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
        raise _refused(code, "adding partitions to", identity.transactional_id)

    def add_offsets(
        self, identity: TransactionIdentity, group: str, *, deadline_s: float = 60.0
    ) -> int:
        """Add a consumer group to a transaction; needed below transaction version 2.

        Returns:
            The final error code: not one that passes by itself.

        Raises:
            KafkaUnavailableError: no coordinator answered within ``deadline_s``.
        """
        request = AddOffsetsToTxnRequest(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            group_id=group,
            max_version=3,
        )
        return self._ask(identity.transactional_id, request, _code, deadline_s)[1]

    def _ask(
        self,
        transactional_id: str,
        request: Any,
        code_of: Callable[[Any], int],
        deadline_s: float = 60.0,
    ) -> tuple[Any, int]:
        """Send a request to the id's coordinator until it is answered with a final code."""
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


def _partition_code(answer: Any, asked: int) -> int:
    """Return AddPartitionsToTxn v3's decisive code: one partition's error stops all others.

    A response that omits a partition is retriable: its rows would be in no known transaction.
    """
    codes = [
        partition.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    ]
    final = [c for c in codes if c not in {faults.NONE, faults.OPERATION_NOT_ATTEMPTED}]
    if not final and len(codes) < asked:
        return faults.COORDINATOR_NOT_AVAILABLE
    return int(final[0]) if final else faults.NONE


def _code(answer: Any) -> int:
    return int(answer.error_code)


def two_phase_refused(wire: ConnectionPool, transactional_id: str) -> TransactionError:
    """Return the error for a cluster that opens no two-phase transaction under this id."""
    told = wire.cluster.capabilities()
    speaks, setting = told.of(TWO_PHASE), told.settings.get(TWO_PHASE_SETTING, "not told")
    plainly = Remedy(
        change="let the sink open plain transactions where it has to: two_phase='auto'",
        start=True,
        costs="their timeout ends them",
    )
    if speaks.version is None:
        return TransactionError(
            f"two_phase=True, and {speaks}. Brokers have it from Kafka 4.1 on, up to 4.4 with "
            "unstable.api.versions.enable=true.",
            plainly,
        )
    by_setting = Remedy(
        change="restart the brokers with it", settings={TWO_PHASE_SETTING: "true"}, start=True
    )
    by_acl = Remedy(
        change="grant TwoPhaseCommit, beside Write, on the TransactionalIds of the prefix",
        start=True,
    )
    why, ways = {
        "true": ("is true, so the ACL TwoPhaseCommit is missing", (by_acl,)),
        "false": ("is false", (by_setting,)),
    }.get(
        setting,
        (f"is {setting}: it is false, or the ACL TwoPhaseCommit is missing", (by_setting, by_acl)),
    )
    return TransactionError(
        f"two_phase=True, and Kafka refuses it for transactional id {transactional_id!r}: the "
        f"brokers' {TWO_PHASE_SETTING} {why}.",
        *ways,
        plainly,
    )


def _refused(code: int, doing: str, transactional_id: str, *, right: str = "Write") -> KafkaError:
    return faults.refusal(
        code,
        f"while {doing} transactional id {transactional_id!r}",
        acl=f"{right} on TransactionalId {transactional_id!r}",
        otherwise=TransactionError,
    )


# --- ending ---------------------------------------------------------------------------------------
# EndTxn by identity: commit or abort a transaction that any process has prepared.
#
# EndTxn carries the transactional id, the producer id and its epoch, and nothing that only the
# writer could know, so any process may send it. It is idempotent
# (``TransactionCoordinator.endTransaction`` of the broker).


_NO_PRODUCER = 2**63 - 1
"""A producer id that no producer has: Kafka gives them out from 0 upwards."""


class EndResult(enum.Enum):
    """Result of EndTxn. Whether a transaction was lost is read from the log, not from here."""

    DONE = "done"
    """The transaction ends as requested: that is durable; readers see it within milliseconds."""
    LOOK = "look"
    """The coordinator no longer knows the transaction, or ended it the other way: ask the log."""


def end_transactions(
    wire: ConnectionPool,
    identities: Sequence[TransactionIdentity],
    *,
    commit: bool,
    deadline_s: float = 60.0,
) -> dict[TransactionIdentity, EndResult]:
    """Commit or abort each transaction, all in flight together; repeat after retriable answers.

    Raises:
        TransactionError: not allowed, or an unexpected error code; the others have been ended.
        KafkaUnavailableError: some had no answer within ``deadline_s``. Their outcomes are not
            known: call again.
    """
    deadline = Deadline(deadline_s, first_pause_s=SHORTLY_S)
    results: dict[TransactionIdentity, EndResult] = {}
    left = list(dict.fromkeys(identities))
    while left:
        answers = _end_once(wire, left, commit=commit, deadline=deadline)
        results |= _final(answers)
        left = [i for i in left if i not in results]
        wire.cluster.forget_coordinators(
            each.transactional_id
            for each in left
            if not isinstance(code := answers[each], int) or next_step(code) is NextStep.ELSEWHERE
        )
        if left and not deadline.pause():
            raise KafkaUnavailableError(
                f"{len(left)} of {len(identities)} transactions could not be "
                f"{'committed' if commit else 'aborted'} within {deadline}, as "
                f"{left[0]}: {faults.said(answers[left[0]])}. Ask again: that changes nothing "
                "twice."
            )
    return results


def require_right_to_end(
    wire: ConnectionPool, transactional_id: str, *, deadline_s: float = 60.0
) -> None:
    """Check that these credentials may end transactions of an id, by an EndTxn that ends none.

    The coordinator checks the right first; no producer has the producer id in the request.

    Raises:
        TransactionError: these credentials lack Write on the id.
        KafkaUnavailableError: the coordinator did not answer within ``deadline_s``.
    """
    nobody = TransactionIdentity(transactional_id, _NO_PRODUCER, 0)
    end_transactions(wire, [nobody], commit=False, deadline_s=deadline_s)


def _end_once(
    wire: ConnectionPool, identities: list[TransactionIdentity], *, commit: bool, deadline: Deadline
) -> dict[TransactionIdentity, int | KafkaUnavailableError]:
    """Send one EndTxn per transaction, pipelined; return each error code or connection error."""
    homes = wire.cluster.coordinators(
        [i.transactional_id for i in identities], timeout_s=deadline.remaining
    )
    # v5 makes the broker fence by raising the epoch, which takes transaction version 2.
    version = 5 if wire.cluster.transaction_version >= 2 else 4
    futures = {
        identity: wire.submit(
            EndTxnRequest(
                transactional_id=identity.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                committed=commit,
                max_version=version,
            ),
            node_id=homes[identity.transactional_id],
            timeout_s=deadline.answer_s,
        )
        for identity in identities
    }
    return {i: _code_of(future, deadline) for i, future in futures.items()}


def _final(
    answers: Mapping[TransactionIdentity, int | KafkaUnavailableError],
) -> dict[TransactionIdentity, EndResult]:
    """Return the final results among the answers; raise for a refusal (all have been sent)."""
    results: dict[TransactionIdentity, EndResult] = {}
    for identity, answer in answers.items():
        if isinstance(answer, KafkaUnavailableError):
            continue
        match next_step(answer):
            case NextStep.DONE:
                results[identity] = EndResult.DONE
            case NextStep.LOOK:
                results[identity] = EndResult.LOOK
            case None:
                raise faults.refusal(
                    answer,
                    f"while ending {identity}",
                    acl=f"Write on TransactionalId {identity.transactional_id!r}",
                    otherwise=TransactionError,
                )
    return results


def _code_of(future: Future[Any], deadline: Deadline) -> int | KafkaUnavailableError:
    try:
        return int(future.result(deadline.remaining).error_code)
    except KafkaUnavailableError as error:
        return error
    except TimeoutError:
        future.cancel()
        return KafkaUnavailableError("no answer in time")
