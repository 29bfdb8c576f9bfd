"""What says how far a pipeline is, driven by the batches: named by a decision, committed last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_eos.checkpoint import read_state
from airflow_eos.errors import DeliveryError
from airflow_eos.failpoints import failpoint
from airflow_eos.protocol.decision import Outcome
from airflow_eos.protocol.promise import Promise

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore, DecisionLog
    from airflow_eos.protocol.decision import PreparedWork
    from airflow_eos.protocol.participant import Participant
    from airflow_eos.sinks.port import Progress


def say_again(store: CheckpointStore, decisions: DecisionLog, participant: Participant) -> None:
    """Say once more how far the last complete batch was: a group's offsets expire, as in a week."""
    batch = read_state(store).latest_commit
    promise = Promise.of(decisions.of_batch(batch)) if batch is not None else None
    if promise is not None and promise.followers:
        participant.commit(promise.followers)


class Following:
    """The work of a batch that has no rows, and follows those that have.

    Args:
        participant: commits it.
        progress: says what it is; None: nobody wants to know.
    """

    def __init__(self, participant: Participant, progress: Progress | None) -> None:
        self._participant = participant
        self._progress = progress

    def works(self, batch_id: int, attempt: int, offsets: str) -> Sequence[PreparedWork]:
        """See :meth:`Progress.works`."""
        return () if self._progress is None else self._progress.works(batch_id, attempt, offsets)

    def commit(self, batch_id: int, works: Sequence[PreparedWork]) -> None:
        """Say how far the batch is: readers have all its rows, or a person did without them.

        Raises:
            DeliveryError: it could not be said.
        """
        if not works:
            return
        failpoint("following")
        outcomes = self._participant.commit(works)
        late = [work for work in works if outcomes[work.identity] is not Outcome.COMMITTED]
        if late:
            raise DeliveryError(
                f"Batch {batch_id} is delivered, and {late[0].identity} does not say so. Start the "
                "query again: it says it before it goes on."
            )
        failpoint("followed")
