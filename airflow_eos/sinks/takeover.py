"""A starting driver takes the pipeline over: the last refusals, the term, recovery, Spark's log.

The order is the proof. Ownership is read before the term is taken, since taking it stops whoever
runs now, and a driver that is going to be refused must not; and again after it, since what a former
driver noted before it could see this term must be seen. Only then is anything read that Spark or a
decision says, and only then does Spark start and read it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint import OffsetLog, Tenure, take_term
from airflow_eos.checkpoint.standing import require_owner
from airflow_eos.recovery.execute import execute
from airflow_eos.recovery.facts import gather
from airflow_eos.recovery.plan import make_plan

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore, DecisionLog
    from airflow_eos.protocol.participant import Participant


def take_over(
    store: CheckpointStore,
    decisions: DecisionLog,
    participant: Participant,
    *,
    driver: str,
) -> tuple[Tenure, OffsetLog]:
    """Own the name, become the newest driver, end what is open, put Spark's log right.

    Returns:
        Our term, and the offset log, to be held against the decisions again by the first batch.

    Raises:
        OwnershipError: the name belongs to another checkpoint, or this one is an older copy.
        DecisionNeededError: recovery found what only a person may decide.
        KafkaError, CheckpointError, …: as they come.
    """
    participant.claim(store.location)
    require_owner(store, participant)
    tenure = take_term(store, taken_by=driver)
    require_owner(store, participant)
    # Forced: whoever starts a query takes it over, and its term keeps both drivers exact.
    plan = make_plan(gather(store, participant))
    execute(plan, store, participant, force=True, executed_by=driver)
    offsets = OffsetLog(store, decisions)
    offsets.repair()
    return tenure, offsets
