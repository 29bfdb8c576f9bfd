"""Execution of a plan: look again, seal, then act on what was listed and on nothing else.

Safe at any time, in any number of processes, and after being killed anywhere, because

- only work of the plan's own listing is aborted, each piece by a key that is never used again, and
  what a person has given up;
- everything but that listing is read again first, so that a stale plan is only a stale listing;
- before any work is aborted, the attempt that could still name it is sealed.
"""

from __future__ import annotations

import enum
import getpass
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from airflow_eos.core.arguments import Place
from airflow_eos.core.checkpoint import history
from airflow_eos.core.checkpoint.cuts import CutWriter
from airflow_eos.core.checkpoint.decisions import DecisionLog, sealed
from airflow_eos.core.checkpoint.liveness import signs_of_life
from airflow_eos.core.checkpoint.mend import Mend
from airflow_eos.core.checkpoint.mending import damage, mend
from airflow_eos.core.checkpoint.pipeline import owner_of, read_pipeline
from airflow_eos.core.checkpoint.rulings import with_rulings
from airflow_eos.core.checkpoint.snapshot import require_owner
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.checkpoint.terms import require_in_flight, still_in_flight
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.participants import connect
from airflow_eos.core.protocol.decision import Outcome, WorkIdentity, by_time_left
from airflow_eos.core.protocol.participant import Member, Participant
from airflow_eos.core.protocol.participant_group import collect_all, committed
from airflow_eos.core.recovery.facts import Facts, gather, read_facts
from airflow_eos.core.recovery.plan import Action, Plan, Seal, Step, make_plan
from airflow_eos.errors import (
    ConfigurationError,
    DecisionNeededError,
    PipelineAliveError,
    RecoveryError,
    Remedy,
    SupersededError,
)


class Result(enum.Enum):
    """How a step ended."""

    DONE = "done"
    ALREADY_ENDED = "already ended"
    """The work was no longer open with this epoch: its timeout, its driver or another recovery was
    faster. No other work can have been hit."""
    CHANGED = "changed"
    """The facts had moved on since the plan; the detail says what was found."""
    WAITS = "waits for the app"
    """The step is a replay, which the app does when it resumes."""
    NEEDS_PERSON = "needs a person"
    NOT_ALLOWED = "not allowed"
    """The caller did not allow this action."""


class StepResult(msgspec.Struct, frozen=True):
    """One step as it stood when it was executed, and its result."""

    step: Step
    result: Result
    detail: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The report of an executed plan.

    ``sealed`` is the attempt that was sealed, if any; ``mended`` Spark's files written again.
    """

    format_version: int = 1
    location: str
    participants: tuple[Member, ...]
    executed_by: str
    executed_at_ms: int
    sealed: Seal | None
    mended: tuple[Mend, ...] = ()
    results: tuple[StepResult, ...]

    def count(self, *results: Result) -> int:
        """Return how many steps ended with one of these results."""
        return sum(each.result in results for each in self.results)

    @property
    def complete(self) -> bool:
        """Whether nothing is left that somebody must still allow or decide."""
        return self.count(Result.NEEDS_PERSON, Result.NOT_ALLOWED) == 0

    def require_complete(self) -> None:
        """Raise if steps were not carried out.

        Raises:
            DecisionNeededError: Steps need a person or were not allowed; they are named.
        """
        left = [
            each
            for each in self.results
            if each.result in (Result.NEEDS_PERSON, Result.NOT_ALLOWED)
        ]
        if left:
            named = "; ".join(f"{each.step.action.name} {each.step.work}" for each in left[:5])
            raise DecisionNeededError(
                f"{len(left)} of {len(self.results)} recovery steps were left alone: {named}.",
                *dict.fromkeys(remedy for each in left for remedy in each.step.remedies),
            )

    def to_json(self) -> bytes:
        """Return the report as indented JSON; it holds no secret."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


# --- results --------------------------------------------------------------------------------------
# The result of each step in words, and how it differs from the plan; pure.


def what_became(step: Step, done: Mapping[WorkIdentity, bool | Outcome]) -> StepResult:
    """Return a step's result; ``done`` is an outcome if settled, False if ended before us."""
    became = None if step.work is None else done.get(step.work)
    if step.action is Action.REPLAY:
        return StepResult(step, Result.WAITS, "start the app")
    if step.action is Action.ASK:
        return StepResult(step, Result.NEEDS_PERSON, "rule with --assume")
    if isinstance(became, Outcome):
        return _committed(step, became)
    if became is not None:
        return StepResult(step, Result.DONE if became else Result.ALREADY_ENDED)
    return StepResult(step, Result.NOT_ALLOWED, f"allow {step.action.value} to do it")


def _committed(step: Step, outcome: Outcome) -> StepResult:
    match outcome:
        case Outcome.COMMITTED:
            return StepResult(step, Result.DONE)
        case Outcome.ABORTED:
            why = "it had been aborted" if step.rows else "rows of the batch are missing"
            return StepResult(step, Result.CHANGED, f"{why}: the app replays it")
        case Outcome.UNKNOWN | Outcome.OPEN:
            return StepResult(step, Result.NEEDS_PERSON, "no one can tell its outcome: plan again")


def against_plan(plan: Plan, results: Sequence[StepResult]) -> tuple[StepResult, ...]:
    """Note where a step differs from the given plan's, since the facts have changed.

    Steps of that plan which the facts no longer give are added: nothing is left to do for them.
    """
    before = {_subject(step): step for step in plan.steps}
    noted = []
    for each in results:
        planned = before.pop(_subject(each.step), None)
        if planned is not None and planned.action is not each.step.action and not each.detail:
            remark = f"the plan said {planned.action.value}; decided since"
            noted.append(msgspec.structs.replace(each, detail=remark))
        else:
            noted.append(each)
    gone = "no longer needed: the facts have moved on"
    return (*noted, *(StepResult(step, Result.CHANGED, gone) for step in before.values()))


def _subject(step: Step) -> WorkIdentity | tuple[int | None, str | None]:
    """Return what a step is about: prepared work, or a participant's part of a replayed batch."""
    return step.work or (step.batch_id, step.participant)


# --- execute --------------------------------------------------------------------------------------


ALLOWED_BY_DEFAULT = frozenset({Action.COMMIT, Action.ABORT})

_SEALS_LOST_AT_MOST = 20

_DID = {
    Action.COMMIT: "committed",
    Action.ABORT: "aborted",
    Action.ORPHAN: "orphans aborted",
}

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
    facts: Facts | None = None,
) -> Report:
    """Carry ``plan`` out and return the result of each step.

    Args:
        plan: Made a moment or days ago.
        allow: The actions that may be done. Orphans are aborted only when ORPHAN is in here; ASK is
            never acted upon, a person rules (see ``rulings``).
        force: Go on although the pipeline shows signs of life: it loses its running attempt.
        executed_by: Written into the decision that seals.
        facts: What the plan was made of, just now; None: read them again for the plan's listing.

    Raises:
        PipelineAliveError: Signs of life, with the evidence, and ``force`` is off.
        OwnershipError: The plan was made for another participant or checkpoint; the name belongs
            to another checkpoint, or the plan's is an older copy.
        RecoveryError: The attempt could not be sealed, again and again: a driver is running; or
            the decision that was to be settled is gone.
        KafkaError, CheckpointError, …: As they come. Call again: what is done stays done.
    """
    executor = executed_by or _whoami()
    plan.require_made_for(store.location, participant.members)
    mended = _mended(store)
    known = None if mended else facts  # of before the files were put right
    facts, current, sealed = _sealed(
        plan, store, participant, allow=allow, force=force, by=executor, known=known
    )
    failpoint("recovery-sealed")
    # The gate again, after the seal; not for orphans, which are ended only if somebody asks.
    if current.count(*_acted_upon(allow) - {Action.ORPHAN}):
        require_owner(store, participant)
    results = _act(current, facts, store, participant, allow)
    _write_cut(facts, results, store, participant)
    _note_done(current.in_flight, results, store, executor)
    return Report(
        location=store.location,
        participants=plan.participants,
        executed_by=executor,
        executed_at_ms=time.time_ns() // 1_000_000,
        sealed=sealed,
        mended=mended,
        results=against_plan(plan, results),
    )


def _note_done(
    batch: int | None, results: Sequence[StepResult], store: CheckpointStore, by: str
) -> None:
    """Note for people what was done, where anything was."""
    did = Counter(each.step.action for each in results if each.result is Result.DONE)
    said = [f"{did[action]} {word}" for action, word in _DID.items() if did[action]]
    if said:
        where = "" if batch is None else f"batch {batch}: "
        history.note(store, [history.recovered(by, where + ", ".join(said))])


def _mended(store: CheckpointStore) -> tuple[Mend, ...]:
    """Write again the files that decisions hold; only a driver with a term puts files aside."""
    damaged = damage(store, DecisionLog(store))
    lost = tuple(each for each in damaged if each.content is not None and not each.readable)
    mend(store, lost)
    return lost


def _sealed(
    plan: Plan,
    store: CheckpointStore,
    participant: Participant,
    *,
    allow: Collection[Action],
    force: bool,
    by: str,
    known: Facts | None,
) -> tuple[Facts, Plan, Seal | None]:
    """Return the facts of now, the plan that they give for the same listing, and its seal.

    A seal that is lost means that somebody decided this attempt in between: the driver, whose
    COMMIT must now be honoured, or another recovery. So everything is read again; also where the
    batch was completed meanwhile, since a seal in a place that was pruned is no seal.
    """
    looked = force
    for _ in range(_SEALS_LOST_AT_MOST + 1):
        facts = known or read_facts(store, participant, plan.listed, listed_batch=plan.batch_id)
        known = None
        current = make_plan(facts)
        ends_orphans = Action.ORPHAN in allow and current.count(Action.ORPHAN)
        if facts.admission is not None and not ends_orphans:
            facts.admission.require()
        if current.count(*_acted_upon(allow)) and facts.owned and not looked:
            signs = (facts.unheard,) if facts.unheard else signs_of_life(store)
            if signs:
                raise _alive(plan.location, signs)
            looked = True
            continue  # the look took a while: read again
        seal = current.seal if Action.ABORT in allow else None
        if seal is not None:
            reason = f"sealed to abort {current.count(Action.ABORT)} pieces of work"
            taken = sealed(seal.batch_id, seal.attempt, reason=reason, decided_by=by)
            if not DecisionLog(store).record(taken):
                continue
        if current.in_flight is None or still_in_flight(store, current.in_flight):
            return facts, current, seal
    raise RecoveryError(
        f"{store.location}: {_SEALS_LOST_AT_MOST} times in a row another process decided the "
        "attempt that was to be sealed. A driver runs and restarts quickly. Nothing was aborted.",
        Remedy(("airflow-eos recover CHECKPOINT",), change="stop the app", start=True).at(
            store.location
        ),
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

    The outcome of promised work may be told only once older open work has ended: in Kafka, an older
    open transaction keeps the last stable offset of its partition back.
    """
    promised = {entry.identity: entry.work for entry in facts.named}
    ending = _identities(plan, set(allow) & {Action.ABORT, Action.ORPHAN})
    committing = _identities(plan, set(allow) & {Action.COMMIT})
    owed = sorted((promised[each] for each in committing), key=by_time_left)
    promise, commit = facts.promise, partial(committed, participant)

    def settle() -> Mapping[WorkIdentity, Outcome]:
        newest = promise.commits[-1] if owed and promise is not None else None
        if newest is not None:
            participant.note(newest, owner_of(store))
            DecisionLog(store).require_standing(newest)
        rows = [work for work in owed if not work.follows]
        became = with_rulings(store, _one_then_rest(commit, rows))
        if any(outcome is not Outcome.COMMITTED for outcome in became.values()):
            # Work without rows waits for the app, which replays what is missing.
            return {**became, **{w.identity: Outcome.ABORTED for w in owed if w.follows}}
        following = [work for work in owed if work.follows]
        return {**became, **_one_then_rest(commit, following)}

    # One participant's refusal holds up no other one, whose time may be running out.
    acts: list[Callable[[], Mapping[WorkIdentity, bool | Outcome]]] = [
        partial(_one_then_rest, participant.abort, [e for e in ending if e not in promised]),
        partial(participant.abandon, [each for each in ending if each in promised]),
        settle,
    ]
    done = collect_all(acts)
    return tuple(what_became(step, done) for step in plan.steps)


def _write_cut(
    facts: Facts, results: Sequence[StepResult], store: CheckpointStore, participant: Participant
) -> None:
    """Write the cut of the batch in flight where all that it promised is committed by now.

    What a person has accepted is left to the app, which delivers what the input still has of it.
    """
    pipeline, promise, asked = facts.pipeline, facts.promise, {each.name for each in facts.asked}
    if promise is None or pipeline is None or facts.accepted or facts.in_flight is None:
        return
    left = {Action.COMMIT, Action.REPLAY, Action.ASK}
    if any(each.step.action in left and each.result is not Result.DONE for each in results):
        return
    if {each.name for each in pipeline.participants} != asked:
        return  # others of its outputs were not asked
    with suppress(SupersededError):  # who went on has written it
        CutWriter(store, participant, partial(require_in_flight, store, who="recovery")).write(
            promise
        )


def _one_then_rest(
    act: Callable[[Sequence[T]], Mapping[WorkIdentity, R]], items: Sequence[T]
) -> Mapping[WorkIdentity, R]:
    """Act on all items at once; on the first alone only where a test or demo sets failpoints."""
    if not items:
        return {}
    if "EOS_FAILPOINTS" not in os.environ:
        return act(items)
    done, rest = dict(act(items[:1])), items[1:]
    failpoint("recovery-acted-first")
    return done | dict(act(rest)) if rest else done


def _identities(plan: Plan, actions: Collection[Action]) -> list[WorkIdentity]:
    return [step.work for step in plan.steps if step.action in actions and step.work is not None]


def _alive(location: str, signs: Sequence[str]) -> PipelineAliveError:
    return PipelineAliveError(
        f"The pipeline of {location} seems to be alive: {'; '.join(signs)}. Recovery would cost "
        "it the batch it is working on. Nothing was done.",
        Remedy(
            ("airflow-eos recover CHECKPOINT",),
            change="stop the app and wait until its heartbeat stands still",
            start=True,
        ).at(location),
        Remedy(
            ("airflow-eos recover CHECKPOINT --force",),
            change="make sure that the driver is gone",
            start=True,
            costs="the attempt at the running batch, which is written again",
        ).at(location),
    )


def user_name() -> str:
    """Return the name of the user who runs this process, or the id of one without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _whoami() -> str:
    """Return 'recovery by' who runs it and where, as people see it in the decision log.

    It starts with 'recovery', by which a driver knows that starting again is right.
    """
    return f"recovery by {user_name()}@{socket.gethostname()} process {os.getpid()}"


# --- run ------------------------------------------------------------------------------------------
# The two calls that most callers need: make a plan, carry the plan out.


NOBODYS = "unclaimed"
"""The name of a participant that is known by its address and not by a checkpoint."""


def plan_recovery(
    checkpoint: Place,
    kafka: Any = None,
    *,
    reach: Mapping[str, Any] | None = None,
    prefix: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> Plan:
    """Return what recovery would do, by a look at a checkpoint and its participants; do nothing.

    Args:
        checkpoint: The query's checkpoint location, a path or URL.
        kafka: A librdkafka-style configuration, as in Airflow's Kafka connection.
        reach: How to connect to the other participants, by their name or their kind, as a
            checkpoint does not hold it, such as ``{"totals": "host=db dbname=shop password=…"}``.
        prefix: Transactional id prefix, where the checkpoint does not tell the prefix any more.
        storage_options: obstore's configuration keys for the checkpoint's store.
        timeout_s: Seconds to look for each system.

    Raises:
        EosError: See :func:`airflow_eos.core.recovery.facts.gather`.
    """
    store = CheckpointStore.open(checkpoint, storage_options=storage_options)
    with closing(
        participant_of(store, kafka, reach=reach, prefix=prefix, timeout_s=timeout_s)
    ) as participant:
        return make_plan(gather(store, participant, look=True))


def execute_recovery(
    plan: Plan | Place,
    kafka: Any = None,
    *,
    reach: Mapping[str, Any] | None = None,
    prefix: str | None = None,
    allow: Collection[Action] = ALLOWED_BY_DEFAULT,
    force: bool = False,
    executed_by: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> Report:
    """Carry out a plan, or the plan of this moment for a checkpoint location.

    Running it twice, or in two processes at once, does no more than running it once. See
    :func:`airflow_eos.core.recovery.execute.execute` and :func:`plan_recovery` for the arguments
    and errors.
    """
    location = plan.location if isinstance(plan, Plan) else plan
    store = CheckpointStore.open(location, storage_options=storage_options)
    reached = (
        connect(plan.participants, _reach(kafka, reach), store=store, timeout_s=timeout_s)
        if isinstance(plan, Plan)
        else participant_of(store, kafka, reach=reach, prefix=prefix, timeout_s=timeout_s)
    )
    with closing(reached) as participant:
        if not isinstance(plan, Plan):
            plan = make_plan(gather(store, participant))
        return execute(plan, store, participant, allow=allow, force=force, executed_by=executed_by)


def participant_of(
    store: CheckpointStore | None,
    kafka: Any,
    *,
    reach: Mapping[str, Any] | None = None,
    prefix: str | None = None,
    timeout_s: float = 30.0,
) -> Participant:
    """Connect to all participants of this checkpoint, as one; the caller closes it when done.

    Args:
        store: The checkpoint. ``eos/pipeline.json`` never changes, so it may be read first.
        reach: How to reach the others; see :func:`plan_recovery`.
        prefix: The one whose open work is to be listed, whatever the checkpoint says.
        timeout_s: Seconds to look for each system.

    Raises:
        ConfigurationError: The checkpoint names no pipeline and no prefix was given; or nothing
            says how to reach a participant.
        EosError: A participant cannot be reached.
    """
    members = _members(store, prefix)
    return connect(members, _reach(kafka, reach), store=store, timeout_s=timeout_s)


def watched(
    store: CheckpointStore | None,
    kafka: Any,
    *,
    reach: Mapping[str, Any] | None = None,
    prefix: str | None = None,
) -> Participant:
    """Connect to all participants that may hold open work, to list it; the caller closes it.

    Unlike :func:`participant_of`, a prefix that is not the pipeline's never takes the place of its
    participants: a watcher would look at nothing of theirs, and see that all is well.

    Args:
        store: The checkpoint; all participants that it names are reached.
        reach: How to reach the others; see :func:`plan_recovery`.
        prefix: Looked at besides them, and alone where nobody has claimed the checkpoint yet.

    Raises:
        ConfigurationError: As for :func:`participant_of`.
        EosError: A participant cannot be reached.
    """
    theirs = _named(store)
    others = [each for each in _members(store, prefix) if each not in theirs]
    return connect([*theirs, *others], _reach(kafka, reach), store=store)


def _reach(kafka: Any, reach: Mapping[str, Any] | None) -> Mapping[str, Any]:
    # A consumer group is on the source's cluster, which mostly is the output's, too.
    return {"kafka": kafka, "consumer_group": kafka, **(reach or {})}


def _members(store: CheckpointStore | None, prefix: str | None) -> tuple[Member, ...]:
    if prefix is None:
        return require_pipeline(store)
    members = _named(store)
    nobodys = Member(NOBODYS, "kafka", {"transactional_id_prefix": prefix})
    is_theirs = any(each.address.items() >= nobodys.address.items() for each in members)
    return members if is_theirs else (nobodys,)


def require_pipeline(store: CheckpointStore | None) -> tuple[Member, ...]:
    """Return the participants of this checkpoint's pipeline.

    Raises:
        ConfigurationError: no pipeline has started there.
    """
    if not (members := _named(store)):
        where = "Nothing" if store is None else store.location
        raise ConfigurationError(
            f"{where} names no pipeline: there is no eos/pipeline.json. Is this the checkpoint "
            "location that the query uses, and was it started once?",
            Remedy(change="give the checkpointLocation of the query"),
            Remedy(
                change="where the checkpoint is lost, give the transactional id prefix "
                "(--prefix), which shows what is still open under it"
            ),
        )
    return members


def _named(store: CheckpointStore | None) -> tuple[Member, ...]:
    """Return the participants that the checkpoint names; none before its first driver."""
    pipeline = read_pipeline(store) if store is not None else None
    return pipeline.participants if pipeline is not None else ()
