"""An empty checkpoint goes on from where a drained pipeline ended; and that it is drained.

What the drained pipeline left is a decision: all is settled up to it, nothing was open. The systems
of the rows are asked, as of a checkpoint that holds this decision and no later one, whether they
know more; then they forget it, since batches are counted from 0 again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import structlog
from msgspec.structs import replace

from airflow_eos.checkpoint import DecisionLog
from airflow_eos.checkpoint.terms import newest_planned
from airflow_eos.errors import ConfigurationError, EosError, OwnershipError
from airflow_eos.protocol.group import alone
from airflow_eos.protocol.participant import Heir
from airflow_eos.protocol.promise import Promise

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore, Tenure
    from airflow_eos.protocol.decision import Decision
    from airflow_eos.protocol.ownership import Owner
    from airflow_eos.protocol.participant import Participant
    from airflow_eos.sinks.port import Former, Progress

log = structlog.get_logger(__name__)


def require_nothing_since(participant: Participant, former: Former, owner: Owner) -> None:
    """Refuse that ``owner`` goes on from ``former`` where anything was delivered or opened after.

    Raises:
        ConfigurationError: an output cannot be gone on with by an empty checkpoint.
        OwnershipError: more is known, or open.
    """
    for each in alone(participant):
        if not hasattr(each, "inherit"):
            raise ConfigurationError(
                f"{' and '.join(map(str, each.members))} cannot go on from a consumer group with "
                "an empty checkpoint: it remembers batches by their numbers. Expected outputs to "
                "Kafka alone. Restore the checkpoint, or give this output a new name."
            )
    batch = former.decision.batch_id
    then = replace(owner, pipeline=former.pipeline)
    try:
        for name in participant.ownership(then):
            if name.owner == owner:
                continue  # inherited by a start of ours that died
            name.require(
                then,
                newest_planned=batch,
                newest_settled=batch,
                decisions={batch: (former.decision,)},
            )
    except OwnershipError as error:
        raise OwnershipError(
            f"The consumer group is where batch {batch} of a former pipeline ended, and "
            f"that is not all that it delivered: it was not drained after it. {error}"
        ) from error
    listed = participant.open()
    if listed:
        raise OwnershipError(
            f"The former pipeline was not drained: {len(listed)} pieces of its work are open, "
            f"first {listed[0].identity}. Restore its checkpoint and start it; or wait until their "
            "timeout has ended them, and start again: then nothing of them is delivered."
        )


def inherit(participant: Participant, owner: Owner) -> None:
    """Let all names be this checkpoint's, which begins at batch 0."""
    for each in alone(participant):
        cast("Heir", each).inherit(owner)


def say_drained(
    tenure: Tenure, decisions: DecisionLog, participant: Participant, progress: Progress
) -> None:
    """At the end of a run: remember that nothing is open and all is settled, if that is so.

    A batch that was planned, and never decided, takes nothing away from it. Errors are logged: then
    it is not remembered, and an empty checkpoint will be refused.
    """
    try:
        decision = _settled(tenure.store, decisions)
        if decision is not None and not participant.open():
            progress.drained(decision, tenure.is_newest)
    except EosError as error:
        log.warning("not_known_to_be_drained", error=str(error))
    except Exception:  # whatever it is: all is delivered, and the run has ended well
        log.exception("not_known_to_be_drained")


def _settled(store: CheckpointStore, decisions: DecisionLog) -> Decision | None:
    """The newest decision that promised anything."""
    newest = newest_planned(store)
    for batch_id in () if newest is None else (newest, newest - 1):
        promise = Promise.of(decisions.of_batch(batch_id)) if batch_id >= 0 else None
        if promise is not None:
            return promise.commits[-1]
    return None
