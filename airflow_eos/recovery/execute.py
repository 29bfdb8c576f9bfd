"""Carry a plan out: look again, seal, then act on what was listed and on nothing else.

Safe at any time, in any number of processes, and after being killed anywhere, because

- only work of the plan's own listing is aborted, each piece by a key that is never used again, and
  what a person has given up;
- everything but that listing is read again first, so that a stale plan is only a stale listing;
- before anything is aborted, the attempt that could still name it is taken (the seal).
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from airflow_eos.checkpoint.decisions import DecisionLog, sealed
from airflow_eos.checkpoint.pipeline import owner_of
from airflow_eos.checkpoint.rulings import with_rulings
from airflow_eos.checkpoint.standing import require_owner
from airflow_eos.checkpoint.terms import still_in_flight
from airflow_eos.errors import PipelineAliveError, RecoveryError
from airflow_eos.failpoints import failpoint
from airflow_eos.protocol.decision import Decision
from airflow_eos.protocol.turns import answers_in_turn
from airflow_eos.protocol.work import Outcome, by_time_left
from airflow_eos.recovery.facts import read_facts
from airflow_eos.recovery.plan import make_plan
from airflow_eos.recovery.report import Report, StepResult
from airflow_eos.recovery.results import against_plan, what_became
from airflow_eos.recovery.steps import Action, Plan, Seal

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.participant import Participant
    from airflow_eos.protocol.work import WorkIdentity
    from airflow_eos.recovery.facts import Facts

ALLOWED_BY_DEFAULT = frozenset({Action.COMMIT, Action.ABORT})

_SEALS_LOST_AT_MOST = 20

T = TypeVar("T")
R = TypeVar("R")


def execute(
    plan: Plan,
    store: CheckpointStore,
    participant: Participant,
    *,
    allow: Collection[Action] = ALLOWED_BY_DEFAULT,
    force: bool = False,
    executed_by: str | None = None,
) -> Report:
    """Carry ``plan`` out and say what became of each step.

    Args:
        plan: Made a moment or days ago.
        store: The checkpoint that the plan speaks of.
        participant: Those that the plan speaks of.
        allow: What may be done. ORPHAN is aborted only when it is in here; ASK is never acted
            upon, a person rules (see ``rulings``).
        force: Go on although the pipeline shows signs of life: it loses its running attempt.
        executed_by: Written into the decision that seals.

    Raises:
        PipelineAliveError: Signs of life, with the evidence, and ``force`` is off.
        OwnershipError: The plan was made for another participant or checkpoint; the name belongs
            to another checkpoint, or this one is an older copy.
        RecoveryError: The attempt could not be sealed, again and again: a driver is running; or
            the decision that was to be settled is gone.
        KafkaError, CheckpointError, …: As they come. Run it again: what is done stays done.
    """
    executor = executed_by or _whoami()
    plan.require_made_for(store.location, participant.members)
    facts, current, sealed = _sealed(
        plan, store, participant, allow=allow, force=force, by=executor
    )
    failpoint("recovery-sealed")
    # Again, after the seal; an orphan is ended only because somebody asks.
    if current.count(*_acted_upon(allow) - {Action.ORPHAN}):
        require_owner(store, participant)
    results = _act(current, facts, store, participant, allow)
    return Report(
        location=store.location,
        participants=plan.participants,
        executed_by=executor,
        executed_at_ms=time.time_ns() // 1_000_000,
        sealed=sealed,
        results=against_plan(plan, results),
    )


def _sealed(
    plan: Plan,
    store: CheckpointStore,
    participant: Participant,
    *,
    allow: Collection[Action],
    force: bool,
    by: str,
) -> tuple[Facts, Plan, Seal | None]:
    """The facts of now, the plan they give for the same listing, and what we sealed for it.

    A seal that is lost means that somebody decided this attempt in between: the driver, whose
    COMMIT must now be honoured, or another recovery. So everything is read again; as it is where
    the batch was completed meanwhile, since a seal in a place that was pruned is no seal.
    """
    for _ in range(_SEALS_LOST_AT_MOST):
        facts = read_facts(store, participant, plan.listed, listed_batch=plan.batch_id)
        current = make_plan(facts)
        ends_orphans = Action.ORPHAN in allow and current.count(Action.ORPHAN)
        if facts.admission is not None and not ends_orphans:
            facts.admission.require()
        if current.count(*_acted_upon(allow)) and current.alive and not force:
            raise _alive(current)
        seal = current.seal if Action.ABORT in allow else None
        taken = None if seal is None else _taken(seal, current.count(Action.ABORT), by)
        if taken is not None and not DecisionLog(store).record(taken):
            continue
        if current.in_flight is None or still_in_flight(store, current.in_flight):
            return facts, current, seal
    raise RecoveryError(
        f"{store.location}: {_SEALS_LOST_AT_MOST} times in a row somebody else decided the attempt "
        "that was to be sealed. A driver is running and restarting quickly. Nothing was aborted; "
        "stop the app, then run recovery again."
    )


def _taken(seal: Seal, aborts: int, by: str) -> Decision:
    """The decision that takes the attempt."""
    return sealed(
        seal.batch_id,
        seal.attempt,
        reason=f"sealed to abort {aborts} pieces of work",
        decided_by=by,
    )


def _acted_upon(allow: Collection[Action]) -> set[Action]:
    return set(allow) & {Action.COMMIT, Action.ABORT, Action.ORPHAN}


def _act(
    plan: Plan,
    facts: Facts,
    store: CheckpointStore,
    participant: Participant,
    allow: Collection[Action],
) -> tuple[StepResult, ...]:
    """End what may be ended: aborts first, and then the commits, by the time that is left.

    What became of promised work may be told only once older open work has ended: in Kafka, an older
    open transaction keeps the last stable offset of its partition back.
    """
    promised = {entry.identity: entry.work for entry in facts.named}
    ending = _identities(plan, set(allow) & {Action.ABORT, Action.ORPHAN})
    committing = _identities(plan, set(allow) & {Action.COMMIT})
    owed = sorted((promised[each] for each in committing), key=by_time_left)
    promise = facts.promise

    def settle() -> Mapping[WorkIdentity, Outcome]:
        newest = promise.commits[-1] if owed and promise is not None else None
        if newest is not None and newest.term is not None:  # version 1 knew no notes
            participant.note(newest, owner_of(store))
            DecisionLog(store).require_standing(newest)
        rows = [work for work in owed if not work.follows]
        became = with_rulings(store, _one_then_rest(participant.commit, rows))
        if any(outcome is not Outcome.COMMITTED for outcome in became.values()):
            # Who says how far the batch is waits for the app, which replays what is missing.
            return {**became, **{w.identity: Outcome.ABORTED for w in owed if w.follows}}
        following = [work for work in owed if work.follows]
        return {**became, **_one_then_rest(participant.commit, following)}

    # What one participant refuses holds up no other: their time may be running out.
    acts: list[Callable[[], Mapping[WorkIdentity, bool | Outcome]]] = [
        partial(_one_then_rest, participant.abort, [e for e in ending if e not in promised]),
        partial(participant.abandon, [each for each in ending if each in promised]),
        settle,
    ]
    done = answers_in_turn(acts)
    return tuple(what_became(step, done) for step in plan.steps)


def _one_then_rest(
    act: Callable[[Sequence[T]], Mapping[WorkIdentity, R]], items: Sequence[T]
) -> Mapping[WorkIdentity, R]:
    """All at once; only for a test or the demo is there a "between two of them"."""
    if not items:
        return {}
    if "EOS_FAILPOINTS" not in os.environ:
        return act(items)
    done, rest = dict(act(items[:1])), items[1:]
    failpoint("recovery-acted-first")
    return done | dict(act(rest)) if rest else done


def _identities(plan: Plan, actions: Collection[Action]) -> list[WorkIdentity]:
    return [step.work for step in plan.steps if step.action in actions and step.work is not None]


def _alive(plan: Plan) -> PipelineAliveError:
    return PipelineAliveError(
        f"The pipeline of {plan.location} seems to be alive: {'; '.join(plan.alive)}. Recovery "
        "would cost it the batch it is working on. Nothing was done. Stop the app and wait until "
        "its heartbeat is old, or force it if you know that the driver is gone."
    )


def _whoami() -> str:
    """Recovery, and who ran it where: what people see in the decision log.

    It starts with 'recovery', by which a driver knows that starting again is right.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        user = str(os.getuid())
    return f"recovery by {user}@{socket.gethostname()} process {os.getpid()}"
