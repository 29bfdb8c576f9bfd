"""The plan of a recovery, as a value: facts in, plan out, no I/O.

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
batch is in flight, a driver that still runs could name listed work in its next decision; so that
attempt is sealed first.
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from airflow_eos.core.checkpoint.mend import Mend
from airflow_eos.core.protocol.decision import OpenWork, Outcome, PreparedWork, WorkIdentity
from airflow_eos.core.protocol.participant import Member
from airflow_eos.core.protocol.promise import Promise, PromisedWork, rulings_on, tries
from airflow_eos.errors import ConfigurationError, OwnershipError, Remedy, advice

if TYPE_CHECKING:
    from airflow_eos.core.recovery.facts import Facts

FORMAT_VERSION = 1


class Action(enum.Enum):
    """The action of a step. Work that needs no action has no step."""

    COMMIT = "commit"
    ABORT = "abort"
    REPLAY = "replay"
    """The app replays the rows when it resumes; recovery does nothing."""
    ASK = "ask"
    """A person must rule on the work's outcome; see ``airflow_eos.core.checkpoint.rulings``."""
    ORPHAN = "orphan"
    """The work is open under a name that the checkpoint does not know; aborted if asked."""


class Seal(msgspec.Struct, frozen=True):
    """The attempt that is sealed, by an ABORT decision, before anything is aborted."""

    batch_id: int
    attempt: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the plan. Times in ms; work with ``time_left_ms`` below 0 may end any moment.

    ``work`` is None for REPLAY, which speaks of ``works`` pieces of a batch, all of one
    ``participant``. ``time_left_ms`` is None where a system ends nothing by itself, ``rows`` where
    no decision tells the number. ``remedies`` are what to do; of several a person chooses one.
    """

    action: Action
    reason: str
    work: WorkIdentity | None = None
    works: int = 1
    participant: str | None = None
    rows: int | None = None
    batch_id: int | None = None
    attempt: int | None = None
    age_ms: int | None = None
    time_left_ms: int | None = None
    remedies: tuple[Remedy, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a recovery, why, and the listing of its participants on which they rest.

    Execution acts only on ``listed``, by identity, and reads everything else again, so that a plan
    may be stale without being dangerous. ``batch_id`` is the newest batch when the plan was made,
    ``in_flight`` the same if that batch was not complete. ``mends`` are repairs of Spark's damaged
    files. ``refusal`` is what a start on this checkpoint is refused with, or why that is not known,
    and ``remedies`` what to do about the refusal; ``remarks`` are what a person is told.
    """

    format_version: int = FORMAT_VERSION
    made_at_ms: int
    location: str
    participants: tuple[Member, ...]
    batch_id: int | None
    in_flight: int | None
    seal: Seal | None
    steps: tuple[Step, ...]
    mends: tuple[Mend, ...] = ()
    alive: tuple[str, ...]
    listed: tuple[OpenWork, ...]
    refusal: str | None = None
    remedies: tuple[Remedy, ...] = ()
    remarks: tuple[str, ...] = ()

    def require_made_for(self, location: str, members: Sequence[Member]) -> None:
        """Refuse another checkpoint or other participants than the plan was made for.

        Raises:
            OwnershipError: the plan was made for another checkpoint or other participants.
        """
        found_at = {each.name: each for each in members}
        same_members = len(members) == len(self.participants) and all(
            each.name in found_at and each.is_at(found_at[each.name]) for each in self.participants
        )
        for planned, found, same in (
            (_named(self.participants), _named(members), same_members),
            (self.location, location, self.location == location),
        ):
            if not same:
                raise OwnershipError(
                    f"The plan was made for {planned}, but is to be executed on {found}. Nothing "
                    "was done: make a plan for this one."
                )

    @property
    def said(self) -> tuple[str, ...]:
        """The advice of the plan, each sentence once: about a refused start, and each step."""
        told = [self.remedies, *(step.remedies for step in self.steps)]
        return tuple(dict.fromkeys(advice(each) for each in told if each))

    def count(self, *actions: Action) -> int:
        """Return how many steps have one of these actions."""
        return sum(step.action in actions for step in self.steps)

    @property
    def needs_person(self) -> bool:
        """Whether a step, or a start, waits for a decision that no program may take."""
        return self.refusal is not None or self.count(Action.ASK, Action.ORPHAN) > 0

    def to_json(self) -> bytes:
        """Return the plan as indented JSON, the same for the same plan; it holds no secret."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)

    @classmethod
    def from_json(cls, data: bytes | str) -> Plan:
        """Read a plan that ``to_json`` wrote.

        Raises:
            ConfigurationError: The data is no plan, or one of another format version.
        """
        try:
            plan = msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ConfigurationError(
                f"This is not a recovery plan: {error}. Make one with `airflow-eos plan --out`; in "
                "Airflow, whose XCom of it is gone, clear the task that has made it."
            ) from error
        if plan.format_version != FORMAT_VERSION:
            raise ConfigurationError(
                f"The plan has format version {plan.format_version}, this version of airflow-eos "
                f"reads {FORMAT_VERSION}. Make the plan again."
            )
        return plan


def _named(members: Sequence[Member]) -> str:
    return " and ".join(map(str, members))


_FOLLOWS = "; it follows, once readers have all rows of the batch"
_NOT_TOLD_YET = (
    "; it is not listed as open, and whether it is committed shows only when older open "
    "transactions of its partition have ended: committing it again is harmless"
)


def make_plan(facts: Facts) -> Plan:
    """Make the plan: sort every fact into the row of the table that it belongs to."""
    listed = tuple(sorted(facts.listed, key=lambda each: each.identity))
    refused = facts.admission.error if facts.admission is not None else None
    unowned_because = _why_unowned(facts)
    if unowned_because:
        alive: tuple[str, ...] = ()  # another pipeline's heartbeat says nothing about this work
        steps = [
            _ending(facts, each, Action.ORPHAN, _whose(each, unowned_because)) for each in listed
        ]
    else:
        alive = facts.alive + ((facts.unheard,) if facts.unheard else ())
        promised = {entry.identity for entry in facts.named}
        theirs = [each for each in listed if each.whose and each.identity not in promised]
        steps = [_ending(facts, each, Action.ORPHAN, _whose(each, "")) for each in theirs]
        steps += _steps(facts, tuple(each for each in listed if each not in theirs))
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
        steps=tuple(_with_remedies(facts, step) for step in steps),
        mends=facts.checkpoint.mends if facts.checkpoint is not None else (),
        alive=alive,
        listed=listed,
        refusal=None if refused is None else str(refused),
        remedies=() if refused is None else tuple(r.at(facts.location) for r in refused.remedies),
        remarks=facts.admission.remarks if facts.admission is not None else (),
    )


def _with_remedies(facts: Facts, step: Step) -> Step:
    """Add the remedies to a step, as data; the table of docs/recovery.md, row by row."""
    remedies: tuple[Remedy, ...]
    match step.action:
        case Action.COMMIT | Action.ABORT:
            remedies = (Remedy(("airflow-eos recover CHECKPOINT",), start=True),)
        case Action.REPLAY:
            remedies = (Remedy(start=True),)
        case Action.ASK:
            asked = next(each.work for each in facts.named if each.identity == step.work)
            remedies = rulings_on(asked)
        case Action.ORPHAN:
            prefix = next(
                (
                    f" --prefix {shlex.quote(told)}"
                    for each in facts.asked
                    if facts.pipeline is None
                    and (told := each.address.get("transactional_id_prefix"))
                ),
                "",
            )
            remedies = (
                Remedy(
                    (f"airflow-eos recover CHECKPOINT{prefix} --allow orphan",),
                    change="make sure that nobody else uses this name",
                    costs="what was written there, where it is another program's",
                ),
            )
    return msgspec.structs.replace(step, remedies=tuple(r.at(facts.location) for r in remedies))


def _why_unowned(facts: Facts) -> str:
    """Say why this checkpoint tells nothing about listed work; empty where it does."""
    if facts.pipeline is None:
        return "the checkpoint names no pipeline (no eos/pipeline.json)"
    if not any(facts.pipeline.member(each.name) for each in facts.asked):
        return f"the checkpoint belongs to {' and '.join(map(str, facts.pipeline.participants))}"
    if facts.admission is not None and facts.admission.error is not None:
        return "a start on this checkpoint is refused, so it is not known to be its own"
    return ""


def _whose(listed: OpenWork, because: str) -> str:
    """Say why listed work is an orphan: by its key's form another program's, or ``because``."""
    program = f"it has the form of {listed.whose}" if listed.whose else ""
    return "; ".join(filter(None, (program, because)))


def _steps(facts: Facts, listed: tuple[OpenWork, ...]) -> Iterator[Step]:
    named = {entry.identity: entry for entry in facts.named}
    beyond = set() if facts.accepted else facts.untold | facts.lost_targets.keys()
    is_open = {each.identity for each in listed} - beyond
    # Rule 5 holds whatever the checkpoint says: only a person aborts work that a decision names,
    # even where the batch claims to be complete.
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
        # Work without rows: the app commits it where rows are still to be replayed.
        yield from broken or (
            _promised(facts, each, _FOLLOWS)
            for each in named.values()
            if each.work.follows and _outcome(facts, each) is Outcome.OPEN
        )


def _broken_promises(
    facts: Facts, promise: Promise, named: tuple[PromisedWork, ...], is_open: set[WorkIdentity]
) -> Iterator[Step]:
    """Yield one participant's REPLAY for lost work, and ASK for each outcome that nobody can tell.

    Only for the newest COMMIT: it named all that was missing, whatever became of single pieces
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
                reason=f"promised, but {_why_unknown(facts, entry)}: say 'committed' if readers "
                "have seen them, else 'aborted'",
            )


def _why_unknown(facts: Facts, entry: PromisedWork) -> str:
    because = facts.lost_targets.get(entry.identity)
    return (
        f"{because}, and with it what was written there"
        if because
        else "nothing tells what became of it any more, as where its rows are past retention or "
        "compacted away"
    )


def _outcome(facts: Facts, entry: PromisedWork) -> Outcome:
    """Return the outcome as read; one that nobody has read is UNKNOWN, not guessed."""
    return facts.outcomes.get(entry.identity, Outcome.UNKNOWN)


def _why_not_named(facts: Facts) -> str:
    if facts.in_flight is not None:
        return f"no decision of batch {facts.in_flight} names it: its rows were never promised"
    if facts.listed_batch is None:
        return "no batch was ever started: its rows were never promised"
    return f"batch {facts.listed_batch} is complete without it: left by a lost task attempt"


def _promised(facts: Facts, entry: PromisedWork, remark: str = "") -> Step:
    """Return the step for promised work: COMMIT, or ABORT where a person has given it up."""
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
        f"attempt {tries(facts.decisions).get(entry.attempt, entry.attempt)}"
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
    """Return the ms for which the system still waits; None where it ends nothing by itself."""
    return None if work.timeout_ms is None else work.timeout_ms - age_ms
