"""Every answer of a transaction coordinator, sorted once: the table of ``design/protocol.md``.

The same table serves commit and abort: where the transaction has ended the other way, it is not
ours to act on, and the log tells what became of it.
"""

from __future__ import annotations

import enum

from airflow_eos.kafka.client import faults


class Answer(enum.Enum):
    """What to do with a coordinator's answer."""

    DONE = enum.auto()
    """It is as asked."""
    LOOK = enum.auto()
    """This coordinator cannot tell what became of the transaction: ask the log."""
    AGAIN = enum.auto()
    """The same coordinator will know in a moment."""
    ELSEWHERE = enum.auto()
    """Find the coordinator anew, then ask it."""


_MEANING = {
    faults.NONE: Answer.DONE,
    # Just ending, by us or by its timeout, or the id is being taken: the next answer will tell.
    faults.CONCURRENT_TRANSACTIONS: Answer.AGAIN,
    # EndTxn while the broker begins to abort by timeout: Kafka 4.3 throws IllegalStateException
    # ("pending state PREPARE_EPOCH_FENCE", TransactionMetadata.prepareTransitionTo).
    faults.UNKNOWN_SERVER_ERROR: Answer.AGAIN,
    faults.COORDINATOR_LOAD_IN_PROGRESS: Answer.AGAIN,
    faults.COORDINATOR_NOT_AVAILABLE: Answer.ELSEWHERE,
    faults.NOT_COORDINATOR: Answer.ELSEWHERE,
    faults.TRANSACTION_COORDINATOR_FENCED: Answer.ELSEWHERE,
    # Ended the other way (commit after abort, abort after commit), or never begun.
    faults.INVALID_TXN_STATE: Answer.LOOK,
    # Timed out under EndTxn v4 and below, or the id was taken again since: either may follow a
    # commit whose answer was lost, so these say nothing about what became of the rows.
    faults.PRODUCER_FENCED: Answer.LOOK,
    faults.INVALID_PRODUCER_EPOCH: Answer.LOOK,
    faults.UNKNOWN_PRODUCER_ID: Answer.LOOK,
    # transactional.id.expiration.ms has passed, and with it the coordinator's memory.
    faults.INVALID_PRODUCER_ID_MAPPING: Answer.LOOK,
}
"""Every answer of ``design/protocol.md``, for commit and abort alike."""


ASK_AGAIN = frozenset({Answer.AGAIN, Answer.ELSEWHERE})


def meaning(code: int) -> Answer | None:
    """What an error code of a coordinator asks for; ``None``: it needs a person."""
    if code in _MEANING:
        return _MEANING[code]
    return Answer.AGAIN if faults.is_retriable(code) else None
