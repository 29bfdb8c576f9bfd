"""What recovery would do, as a value: facts in, plan out, no I/O.

The table of the protocol, row by row:

=====================================================  =======================================
what is found                                          what the plan says
=====================================================  =======================================
open, named by a COMMIT decision (all three equal)     COMMIT
open, not named                                        ABORT, after sealing the attempt
decided COMMIT, outcome COMMITTED                      nothing
decided COMMIT, outcome ABORTED, not delivered later   REPLAY when the app resumes
decided COMMIT, outcome UNKNOWN, open in part or not   ASK: a person decides
decided COMMIT, without rows, and not said yet         COMMIT, where nothing is lost or asked
decided COMMIT, the batch accepted as it is            nothing; ABORT what was given up with it
open under the name, checkpoint does not know it       ORPHAN: ended only when asked
a start on the checkpoint would be refused             ORPHAN, all that is open; and why
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

from typing import TYPE_CHECKING

from airflow_eos.protocol.promise import Named, Promise
from airflow_eos.protocol.work import Outcome
from airflow_eos.recovery.alive import signs_of_life
from airflow_eos.recovery.steps import Action, Plan, Seal, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_eos.protocol.work import OpenWork, PreparedWork, WorkIdentity
    from airflow_eos.recovery.facts import Facts

_FOLLOWS = "; it follows, once readers have all rows of the batch"
_NOT_TOLD_YET = (
    "; it was not listed as open, and its end is told only when older open transactions of its "
    "partition are through: committing finds out, and changes nothing twice"
)


def make_plan(facts: Facts) -> Plan:
    """Sort every fact into the row of the table that it belongs to."""
    listed = tuple(sorted(facts.listed, key=lambda each: each.identity))
    refused = facts.admission.error if facts.admission is not None else None
    unowned_because = _why_unowned(facts)
    if unowned_because:
        alive: tuple[str, ...] = ()  # another pipeline's heartbeat says nothing about this work
        steps = [
            _ending(facts, each, Action.ORPHAN, _whose(each, unowned_because)) for each in listed
        ]
    else:
        alive = signs_of_life(facts.heartbeat, facts.checkpoint, facts.now_ms)
        steps = [
            _ending(facts, each, Action.ORPHAN, _whose(each, "")) for each in listed if each.whose
        ]
        steps += _steps(facts, tuple(each for each in listed if not each.whose))
    seal = None
    if facts.in_flight is not None and any(step.action is Action.ABORT for step in steps):
        seal = Seal(facts.in_flight, facts.last_attempt + 1)
    return Plan(
        made_at_ms=facts.now_ms,
        location=facts.location,
        participants=facts.asked,
        batch_id=facts.listed_batch,
        in_flight=facts.in_flight,
        seal=seal,
        steps=tuple(steps),
        alive=alive,
        listed=listed,
        refusal=None if refused is None else str(refused),
        remarks=facts.admission.remarks if facts.admission is not None else (),
    )


def _why_unowned(facts: Facts) -> str:
    """Why this checkpoint says nothing about what was listed; empty where it does."""
    if facts.pipeline is None:
        return "the checkpoint names no pipeline (no eos/pipeline.json)"
    if not any(facts.pipeline.member(each.name) for each in facts.asked):
        return f"the checkpoint belongs to {' and '.join(map(str, facts.pipeline.participants))}"
    if facts.admission is not None and facts.admission.error is not None:
        return "a start on this checkpoint is refused, so it is not known to be its own"
    return ""


def _whose(listed: OpenWork, because: str) -> str:
    """By the form of its key, where that is another program's."""
    program = f"it has the form of {listed.whose}" if listed.whose else ""
    return "; ".join(filter(None, (program, because)))


def _steps(facts: Facts, listed: tuple[OpenWork, ...]) -> Iterator[Step]:
    named = {entry.identity: entry for entry in facts.named}
    is_open = {each.identity for each in listed} - (set() if facts.accepted else facts.untold)
    # Rule 5 holds whatever the checkpoint says: what a decision names is never aborted by us,
    # not even where the batch claims to be complete; but by a person.
    for each in listed:
        if each.identity in named and each.identity in is_open:
            yield _promised(facts, named[each.identity])
    if facts.in_flight is not None:
        for entry in named.values():
            told = entry.identity in is_open or entry.work.follows
            if not told and _outcome(facts, entry) is Outcome.OPEN:
                yield _promised(facts, entry, _NOT_TOLD_YET)
    yield from (
        _ending(facts, each, Action.ABORT, _why_not_named(facts))
        for each in listed
        if each.identity not in named
    )
    promise = facts.promise
    if facts.in_flight is not None and facts.accepted is None and promise is not None:
        broken: list[Step] = []
        for name in promise.participants:
            theirs = tuple(n for n in named.values() if n.identity.participant == name)
            broken += _broken_promises(facts, promise.part(name), theirs, is_open)
        # What says how far the batch is: the app says it where rows are still to be replayed.
        yield from broken or (
            _promised(facts, each, _FOLLOWS)
            for each in named.values()
            if each.work.follows and _outcome(facts, each) is Outcome.OPEN
        )


def _broken_promises(
    facts: Facts, promise: Promise, named: tuple[Named, ...], is_open: set[WorkIdentity]
) -> Iterator[Step]:
    """Of one participant: REPLAY for what is lost, ASK for what nobody can tell.

    Of the newest COMMIT alone: it named all that was missing, whatever became of single pieces
    before it.
    """
    newest = {work.identity for work in promise.newest} - is_open
    owed = [each for each in named if each.identity in newest]
    lost = [each.work for each in owed if _outcome(facts, each) is Outcome.ABORTED]
    if lost:
        yield Step(
            action=Action.REPLAY,
            batch_id=facts.in_flight,
            attempt=facts.last_attempt,
            works=len(lost),
            participant=lost[0].participant,
            rows=sum(work.rows for work in lost),
            reason="promised, but it was aborted (its timeout passed, or its id was taken "
            "again); the app evaluates the batch again when it resumes",
        )
    for entry in owed:
        if _outcome(facts, entry) is Outcome.UNKNOWN:
            yield Step(
                action=Action.ASK,
                work=entry.identity,
                age_ms=facts.now_ms - entry.work.opened_at_ms,
                rows=entry.work.rows,
                batch_id=entry.batch_id,
                attempt=entry.attempt,
                reason="promised, but nothing tells what became of it any more, as where its rows "
                "are past retention or compacted away: say 'committed' if readers have seen them, "
                "else 'aborted'",
            )


def _outcome(facts: Facts, entry: Named) -> Outcome:
    """The outcome as read; one that nobody has read is not guessed."""
    return facts.outcomes.get(entry.identity, Outcome.UNKNOWN)


def _why_not_named(facts: Facts) -> str:
    if facts.in_flight is not None:
        return f"no decision of batch {facts.in_flight} names it: its rows were never promised"
    if facts.listed_batch is None:
        return "no batch was ever started: its rows were never promised"
    return f"batch {facts.listed_batch} is complete without it: left by a lost task attempt"


def _promised(facts: Facts, entry: Named, remark: str = "") -> Step:
    """COMMIT, unless a person has given it up."""
    work = entry.work
    age_ms = facts.now_ms - work.opened_at_ms
    accepted = facts.accepted
    given_up = accepted is not None and entry.identity in accepted.given_up
    return Step(
        action=Action.ABORT if given_up else Action.COMMIT,
        work=entry.identity,
        age_ms=age_ms,
        time_left_ms=_left(work, age_ms),
        rows=work.rows,
        batch_id=entry.batch_id,
        attempt=entry.attempt,
        reason=f"promised by the COMMIT decision of batch {entry.batch_id}, "
        f"attempt {entry.attempt}"
        + (f", and given up by {accepted.ruled_by}" if accepted and given_up else remark),
    )


def _ending(facts: Facts, listed: OpenWork, action: Action, reason: str) -> Step:
    age_ms = facts.now_ms - listed.opened_at_ms
    return Step(
        action=action,
        work=listed.identity,
        age_ms=age_ms,
        time_left_ms=_left(listed, age_ms),
        batch_id=facts.in_flight if action is Action.ABORT else None,
        reason=reason,
    )


def _left(work: PreparedWork | OpenWork, age_ms: int) -> int | None:
    """How long its system still waits; None where that ends nothing by itself."""
    return None if work.timeout_ms is None else work.timeout_ms - age_ms
