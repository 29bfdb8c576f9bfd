"""A starting driver takes the pipeline over: the last refusals, the term, recovery, Spark's log.

The order is the proof. Ownership is read before the term is taken, since taking it stops whoever
runs now, and a driver that is going to be refused must not; and again after it, since what a former
driver noted before it could see this term must be seen. Only then is anything read that Spark or a
decision says, and only then does Spark start and read it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_eos.checkpoint import OffsetLog, Tenure, take_term
from airflow_eos.checkpoint.standing import require_owner
from airflow_eos.failpoints import failpoint
from airflow_eos.recovery.execute import execute
from airflow_eos.recovery.facts import gather
from airflow_eos.recovery.plan import make_plan
from airflow_eos.sinks.following import say_again
from airflow_eos.sinks.inheriting import inherit, require_nothing_since

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore, Decision, DecisionLog
    from airflow_eos.protocol.participant import Participant
    from airflow_eos.sinks.port import Progress


def take_over(
    store: CheckpointStore,
    decisions: DecisionLog,
    participant: Participant,
    *,
    driver: str,
    on_term: Callable[[int], None] = lambda _term: None,
    progress: Progress | None = None,
) -> tuple[Tenure, OffsetLog]:
    """Own the name, become the newest driver, end what is open, put Spark's log right.

    ``on_term`` is told our term as soon as we have it.

    Where ``progress`` says that an empty checkpoint goes on from a drained pipeline, the names are
    held against that one's last decision, and then inherited.

    Returns:
        Our term, and the offset log, to be held against the decisions again by the first batch.

    Raises:
        OwnershipError: the name belongs to another checkpoint, or this one is an older copy.
        DecisionNeededError: recovery found what only a person may decide.
        KafkaError, CheckpointError, …: as they come.
    """
    former = progress.former() if progress is not None else None
    participant.claim(store.location)
    _require(store, participant, former)
    tenure = take_term(store, taken_by=driver)
    failpoint("term-taken")
    on_term(tenure.term.number)
    _require(store, participant, former)
    if former is not None:
        inherit(store, participant)
    if progress is not None:
        progress.begin()
    # Forced: whoever starts a query takes it over, and its term keeps both drivers exact.
    plan = make_plan(gather(store, participant))
    execute(plan, store, participant, force=True, executed_by=driver)
    offsets = OffsetLog(store, decisions)
    offsets.repair()
    say_again(store, decisions, participant)
    return tenure, offsets


def _require(store: CheckpointStore, participant: Participant, former: Decision | None) -> None:
    """An empty checkpoint is held against what it goes on from, every other one against its own."""
    if former is None:
        require_owner(store, participant)
    else:
        require_nothing_since(store, participant, former)
