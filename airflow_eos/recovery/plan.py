"""What recovery would do, as a value: facts in, plan out, no I/O.

The table of the protocol, row by row:

=====================================================  =======================================
what is found                                          what the plan says
=====================================================  =======================================
open, named by a COMMIT decision (all three equal)     COMMIT
open, not named                                        ABORT, after sealing the attempt
decided COMMIT, outcome COMMITTED                      nothing
decided COMMIT, outcome ABORTED, not delivered later   REPLAY when the app resumes
decided COMMIT, outcome UNKNOWN                        ASK: a person decides
open under the prefix, checkpoint does not know it     ORPHAN: ended only when asked
=====================================================  =======================================

Why a finished batch needs no seal: the open transactions were listed *before* the checkpoint was
read. A task opens a transaction only after Spark wrote ``offsets/N``, and Spark writes
``commits/N`` only after all that was decided for N is settled. So where the newest batch is
complete, whatever was listed belongs to it or to an older one, is not among the settled ones, and
no decision can name it any more: it is the leftover of a lost task attempt. Where the newest
batch is in flight, a driver that still runs could name it in its next decision; that decision is
taken from it first (the seal).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.recovery.alive import signs_of_life
from airflow_eos.recovery.promise import Named, missing, named_by
from airflow_eos.recovery.steps import Action, Plan, Seal, Step
from airflow_eos.transactions import Outcome, belongs_to_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_eos.checkpoint.decisions import Decision
    from airflow_eos.checkpoint.liveness import Heartbeat
    from airflow_eos.checkpoint.pipeline import Pipeline
    from airflow_eos.checkpoint.state import CheckpointState
    from airflow_eos.transactions import OpenTransaction, TransactionIdentity


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the planner looks at. Read in the protocol's order: ``listed`` before the rest.

    Attributes:
        location: The checkpoint, as the user gave it.
        prefix: The prefix under which was listed.
        cluster_id: The Kafka cluster that was asked.
        pipeline: ``eos/pipeline.json``; None where the checkpoint has none.
        checkpoint: Spark's progress; None where there is no checkpoint at all.
        listed_batch: The newest batch at the moment just after the listing: nothing that was
            listed can belong to a later one. None before the first batch.
        decisions: Those of ``listed_batch``, by attempt.
        listed: The open transactions under the prefix.
        outcomes: What became of each transaction that a COMMIT decision of ``listed_batch``
            names and that was not listed; needed only while that batch is in flight.
        heartbeat: ``eos/driver.json``.
        now_ms: Milliseconds since the epoch.
    """

    location: str
    prefix: str
    cluster_id: str
    pipeline: Pipeline | None
    checkpoint: CheckpointState | None
    listed_batch: int | None
    decisions: tuple[Decision, ...]
    listed: tuple[OpenTransaction, ...]
    outcomes: Mapping[TransactionIdentity, Outcome]
    heartbeat: Heartbeat | None
    now_ms: int

    @property
    def in_flight(self) -> int | None:
        """The batch that was listed for, if it is still in flight."""
        current = self.checkpoint.in_flight if self.checkpoint is not None else None
        return current if current == self.listed_batch else None


_NOT_TOLD_YET = (
    "; it was not listed as open, and the log tells its end only when older open transactions of "
    "its partition are through: committing finds out, and changes nothing twice"
)


def make_plan(facts: Facts) -> Plan:
    """Sort every fact into the row of the table that it belongs to."""
    listed = tuple(
        sorted(
            (
                each
                for each in facts.listed
                if belongs_to_prefix(each.transactional_id, facts.prefix)
            ),
            key=lambda each: each.identity,
        )
    )
    stranger = _why_unknown(facts)
    if stranger:
        steps = [_ending(facts, each, Action.ORPHAN, stranger) for each in listed]
    else:
        steps = list(_steps(facts, listed))
    seal = None
    if facts.in_flight is not None and any(step.action is Action.ABORT for step in steps):
        seal = Seal(facts.in_flight, _last_attempt(facts) + 1)
    return Plan(
        made_at_ms=facts.now_ms,
        location=facts.location,
        prefix=facts.prefix,
        cluster_id=facts.cluster_id,
        batch_id=facts.listed_batch,
        in_flight=facts.in_flight,
        seal=seal,
        steps=tuple(steps),
        # the heartbeat of another pipeline says nothing about this prefix
        alive=() if stranger else signs_of_life(facts.heartbeat, facts.checkpoint, facts.now_ms),
        listed=listed,
    )


def _why_unknown(facts: Facts) -> str:
    """Why this checkpoint says nothing about this prefix; empty where it does."""
    if facts.pipeline is None:
        return "the checkpoint names no pipeline (no eos/pipeline.json)"
    if facts.pipeline.transactional_id_prefix != facts.prefix:
        return f"the checkpoint belongs to prefix {facts.pipeline.transactional_id_prefix!r}"
    return ""


def _steps(facts: Facts, listed: tuple[OpenTransaction, ...]) -> Iterator[Step]:
    named = {entry.identity: entry for entry in named_by(facts.decisions)}
    is_open = {each.identity for each in listed}
    # Rule 5 holds whatever the checkpoint says: what a decision names is never aborted by us,
    # not even where the batch claims to be complete.
    yield from (_commit(facts, named[each.identity]) for each in listed if each.identity in named)
    if facts.in_flight is not None:
        for entry in named.values():
            if entry.identity not in is_open and _outcome(facts, entry) is Outcome.OPEN:
                yield _commit(facts, entry, _NOT_TOLD_YET)
    yield from (
        _ending(facts, each, Action.ABORT, _why_not_named(facts))
        for each in listed
        if each.identity not in named
    )
    if facts.in_flight is not None:
        yield from _broken_promises(facts, tuple(named.values()), is_open)


def _broken_promises(
    facts: Facts, named: tuple[Named, ...], is_open: set[TransactionIdentity]
) -> Iterator[Step]:
    """REPLAY for what is lost, ASK for what nobody can tell."""
    lost_or_not = {entry.identity: _outcome(facts, entry) for entry in named}
    lost = {
        identity
        for identity, outcome in lost_or_not.items()
        if outcome is Outcome.ABORTED and identity not in is_open
    }
    # Neither lost nor to be replayed before a person has ruled: what is UNKNOWN counts as there.
    owed = missing(named, lost_or_not.keys() - lost)
    if owed:
        yield Step(
            action=Action.REPLAY,
            batch_id=facts.in_flight,
            attempt=_last_attempt(facts),
            transactions=owed.transactions,
            rows=owed.rows,
            reason="promised, but the broker aborted it (its timeout passed, or its id was taken "
            "again); the app evaluates the batch again when it resumes",
        )
    for entry in named:
        if entry.identity not in is_open and lost_or_not[entry.identity] is Outcome.UNKNOWN:
            yield Step(
                action=Action.ASK,
                transaction=entry.identity,
                age_ms=facts.now_ms - entry.transaction.opened_at_ms,
                rows=entry.transaction.rows,
                batch_id=entry.batch_id,
                attempt=entry.attempt,
                reason="promised, but the broker has forgotten it and its rows are past retention "
                "or compacted away: say 'committed' if readers have seen them, else 'aborted'",
            )


def _outcome(facts: Facts, entry: Named) -> Outcome:
    """The outcome as read; one that nobody has read is not guessed."""
    return facts.outcomes.get(entry.identity, Outcome.UNKNOWN)


def _last_attempt(facts: Facts) -> int:
    return max((decision.attempt for decision in facts.decisions), default=0)


def _why_not_named(facts: Facts) -> str:
    if facts.in_flight is not None:
        return f"no decision of batch {facts.in_flight} names it: its rows were never promised"
    if facts.listed_batch is None:
        return "no batch was ever started: its rows were never promised"
    return f"batch {facts.listed_batch} is complete without it: left by a lost task attempt"


def _commit(facts: Facts, entry: Named, remark: str = "") -> Step:
    transaction = entry.transaction
    age_ms = facts.now_ms - transaction.opened_at_ms
    return Step(
        action=Action.COMMIT,
        transaction=entry.identity,
        age_ms=age_ms,
        time_left_ms=transaction.timeout_ms - age_ms,
        rows=transaction.rows,
        batch_id=entry.batch_id,
        attempt=entry.attempt,
        reason=f"promised by the COMMIT decision of batch {entry.batch_id}, "
        f"attempt {entry.attempt}{remark}",
    )


def _ending(facts: Facts, listed: OpenTransaction, action: Action, reason: str) -> Step:
    age_ms = facts.now_ms - listed.started_at_ms
    return Step(
        action=action,
        transaction=listed.identity,
        age_ms=age_ms,
        time_left_ms=listed.timeout_ms - age_ms,
        batch_id=facts.in_flight if action is Action.ABORT else None,
        reason=reason,
    )
