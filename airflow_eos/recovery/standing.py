"""What must still be so before a plan is carried out, asked of the world as it is by then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint.decisions import DecisionLog
from airflow_eos.checkpoint.paths import COMMITS
from airflow_eos.checkpoint.rulings import read_acceptance, ruled_about
from airflow_eos.checkpoint.terms import newest_planned, require_in_flight
from airflow_eos.errors import OwnershipError, RecoveryError, SupersededError
from airflow_eos.protocol.promise import Promise, Said
from airflow_eos.protocol.work import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.decision import Decision
    from airflow_eos.protocol.participant import Member, Participant
    from airflow_eos.recovery.steps import Plan


def require_same_place(plan: Plan, store: CheckpointStore, members: Sequence[Member]) -> None:
    """Refuse a plan that was made for other participants or another checkpoint (OwnershipError)."""
    found_at = {each.name: each for each in members}
    same_members = len(members) == len(plan.participants) and all(
        each.name in found_at and each.is_at(found_at[each.name]) for each in plan.participants
    )
    for planned, found, same in (
        (_named(plan.participants), _named(members), same_members),
        (plan.location, store.location, plan.location == store.location),
    ):
        if not same:
            raise OwnershipError(
                f"The plan was made for {planned}, but is to be executed on {found}. Nothing was "
                "done: make a plan for this one."
            )


def _named(members: Sequence[Member]) -> str:
    return " and ".join(map(str, members))


def require_owner(store: CheckpointStore, participant: Participant) -> None:
    """Refuse a name of another checkpoint, and an older copy of this one.

    Asked again where the pipeline has gone on meanwhile: what was noted may be pruned by then.

    Raises:
        OwnershipError: See :meth:`~airflow_eos.protocol.participant.Participant.require_owner`.
    """
    while True:
        planned = newest_planned(store)
        try:
            participant.require_owner(
                store.location, newest_planned=planned, decisions_of=DecisionLog(store).of_batch
            )
            for batch_id in _settled(store, planned):
                _require_settled(store, participant, batch_id)
        except OwnershipError:
            if newest_planned(store) == planned:
                raise
        else:
            return


def _settled(store: CheckpointStore, planned: int | None) -> list[int]:
    """The batch before the newest one, and the newest one where Spark has completed it.

    A run that ended in order leaves it so, and nobody would ask about it again.
    """
    if planned is None:
        return []
    newest = [planned] if store.head(f"{COMMITS}/{planned}") is not None else []
    return [planned - 1, *newest] if planned else newest


def _require_settled(store: CheckpointStore, participant: Participant, batch_id: int) -> None:
    promise = Promise.of(DecisionLog(store).of_batch(batch_id))
    if promise is None:
        return
    accepted = read_acceptance(store, promise.batch_id, promise.nonce)
    ruled = ruled_about(store, [work.identity for work in promise.works])
    participant.require_settled(
        promise,
        Said(
            committed=frozenset(each for each, was in ruled.items() if was is Outcome.COMMITTED),
            missing_rows=accepted.rows if accepted is not None else 0,
        ),
    )


def still_in_flight(store: CheckpointStore, batch_id: int) -> bool:
    """Asked after the decisions were read and the seal stands, before any of it is acted upon."""
    try:
        require_in_flight(store, batch_id, f"recovery of batch {batch_id}")
    except SupersededError:
        return False
    return True


def require_standing(store: CheckpointStore, decision: Decision) -> None:
    """Asked once it is noted: whoever puts an older copy in place now will find the note.

    Raises:
        RecoveryError: the decision is gone.
    """
    if decision not in DecisionLog(store).of_batch(decision.batch_id):
        raise RecoveryError(
            f"{store.location}: the decision of batch {decision.batch_id}, attempt "
            f"{decision.attempt} is gone since it was read: either the batch was completed and "
            "pruned meanwhile, or an older copy of the checkpoint was put back. Nothing was "
            "committed. Run recovery again."
        )
