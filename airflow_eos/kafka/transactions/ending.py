"""EndTxn by identity: commit or abort what any process has prepared.

EndTxn carries the transactional id, the producer id and its epoch, and nothing that only the
writer could know, so any process may send it. It is idempotent
(``TransactionCoordinator.endTransaction`` of the broker).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import KafkaError, KafkaUnavailableError, TransactionError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.deadline import SHORTLY_S, Deadline
from airflow_eos.kafka.client.messages import EndTxnRequest
from airflow_eos.kafka.client.next_step import NextStep, next_step
from airflow_eos.kafka.transactions.identity import TransactionIdentity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from airflow_eos.kafka.client.wire import Wire


_NO_PRODUCER = 2**63 - 1
"""Numbers are handed out from 0 upwards."""


class EndResult(enum.Enum):
    """What the coordinator's answer to EndTxn tells. There is no "lost": only the log knows."""

    DONE = "done"
    """It ends as asked: that is durable, and readers see it within milliseconds."""
    LOOK = "look"
    """The coordinator no longer knows this transaction, or ended it the other way: ask the log."""


def end_transactions(
    wire: Wire,
    identities: Sequence[TransactionIdentity],
    *,
    commit: bool,
    deadline_s: float = 60.0,
) -> dict[TransactionIdentity, EndResult]:
    """End each transaction, all in flight together; asks again whatever passes by itself.

    Raises:
        TransactionError: not allowed, or an answer nobody expects; the others have been ended.
        KafkaUnavailableError: some had no answer within ``deadline_s``. What became of those
            is not known: ask again.
    """
    deadline = Deadline(deadline_s, first_pause_s=SHORTLY_S)
    results: dict[TransactionIdentity, EndResult] = {}
    left = list(dict.fromkeys(identities))
    while left:
        answers = _end_once(wire, left, commit=commit, deadline=deadline)
        results |= _final(answers)
        left = [i for i in left if i not in results]
        wire.cluster.forget_coordinators(i.transactional_id for i in left if _has_moved(answers[i]))
        if left and not deadline.pause():
            raise KafkaUnavailableError(
                f"{len(left)} of {len(identities)} transactions could not be "
                f"{'committed' if commit else 'aborted'} within {deadline}, as "
                f"{left[0]}: {faults.said(answers[left[0]])}. Ask again: that changes nothing "
                "twice."
            )
    return results


def require_right_to_end(wire: Wire, transactional_id: str, *, deadline_s: float = 60.0) -> None:
    """Ask for the end of a transaction that nobody has: the right is looked at before the rest.

    Nothing can end by it, whether the id is in use or not: no producer has the number.

    Args:
        wire: connections to the cluster.
        transactional_id: whose right is asked for.
        deadline_s: how long to ask.

    Raises:
        TransactionError: these credentials may not end it: they need Write.
        KafkaUnavailableError: the coordinator did not answer within ``deadline_s``.
    """
    nobody = TransactionIdentity(transactional_id, _NO_PRODUCER, 0)
    end_transactions(wire, [nobody], commit=False, deadline_s=deadline_s)


def _end_once(
    wire: Wire, identities: list[TransactionIdentity], *, commit: bool, deadline: Deadline
) -> dict[TransactionIdentity, int | KafkaUnavailableError]:
    """One EndTxn for each, pipelined; the error code, or what broke on the way."""
    homes = wire.cluster.coordinators(
        [i.transactional_id for i in identities], timeout_s=deadline.remaining
    )
    # v5 tells the broker to fence by raising the epoch, which only transaction version 2 can.
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
    """The answers that need no asking again; raises only after all have been sent."""
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
                raise _refused(answer, identity)
    return results


def _has_moved(answer: int | KafkaUnavailableError) -> bool:
    return not isinstance(answer, int) or next_step(answer) is NextStep.ELSEWHERE


def _code_of(future: Future[Any], deadline: Deadline) -> int | KafkaUnavailableError:
    try:
        return int(future.result(deadline.remaining).error_code)
    except KafkaUnavailableError as error:
        return error
    except TimeoutError:
        future.cancel()
        return KafkaUnavailableError("no answer in time")


def _refused(code: int, identity: TransactionIdentity) -> KafkaError:
    return faults.refusal(
        code,
        f"while ending {identity}",
        acl=f"Write on TransactionalId {identity.transactional_id!r}",
        otherwise=TransactionError,
    )
