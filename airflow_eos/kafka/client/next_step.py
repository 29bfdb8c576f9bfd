"""What each answer of a transaction coordinator asks for, once: the table of ``docs/protocol.md``.

The same table serves commit and abort: where the transaction has ended the other way, it is not
ours to act on, and the log tells what became of it.
"""

from __future__ import annotations

import enum

from airflow_eos.kafka.client import faults


class NextStep(enum.Enum):
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
    faults.NONE: NextStep.DONE,
    # Just ending, by us or by its timeout, or the id is being taken: the next answer will tell.
    faults.CONCURRENT_TRANSACTIONS: NextStep.AGAIN,
    # EndTxn while the broker begins to abort by timeout: Kafka 4.3 throws IllegalStateException
    # ("pending state PREPARE_EPOCH_FENCE", TransactionMetadata.prepareTransitionTo).
    faults.UNKNOWN_SERVER_ERROR: NextStep.AGAIN,
    faults.COORDINATOR_LOAD_IN_PROGRESS: NextStep.AGAIN,
    faults.COORDINATOR_NOT_AVAILABLE: NextStep.ELSEWHERE,
    faults.NOT_COORDINATOR: NextStep.ELSEWHERE,
    faults.TRANSACTION_COORDINATOR_FENCED: NextStep.ELSEWHERE,
    # Ended the other way (commit after abort, abort after commit), or never begun.
    faults.INVALID_TXN_STATE: NextStep.LOOK,
    # Timed out under EndTxn v4 and below, or the id was taken again since: either may follow a
    # commit whose answer was lost, so these say nothing about what became of the rows.
    faults.PRODUCER_FENCED: NextStep.LOOK,
    faults.INVALID_PRODUCER_EPOCH: NextStep.LOOK,
    faults.UNKNOWN_PRODUCER_ID: NextStep.LOOK,
    # transactional.id.expiration.ms has passed, and with it the coordinator's memory.
    faults.INVALID_PRODUCER_ID_MAPPING: NextStep.LOOK,
}
"""Every answer of ``docs/protocol.md``, for commit and abort alike."""


ASK_AGAIN = frozenset({NextStep.AGAIN, NextStep.ELSEWHERE})


def next_step(code: int) -> NextStep | None:
    """What an error code of a coordinator asks for; ``None``: it needs a person."""
    if code in _MEANING:
        return _MEANING[code]
    return NextStep.AGAIN if faults.is_retriable(code) else None
