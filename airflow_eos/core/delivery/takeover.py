"""A starting driver's takeover of the pipeline: last refusals, the term, recovery, Spark's log.

The order is the proof. The gate is asked before anything is written, so that a refused start leaves
nothing behind (a standby asks while the driver before it still ends), and names that are ours
already are claimed then; again once all names are claimed, and before the term is taken, since the
term stops a running driver; and again after it, since what a former driver noted before it could
see this term must be seen. Only then does this driver read Spark's log and decisions, only then is
anything ended, and only then does Spark start and read them too.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, cast

from msgspec.structs import replace

from airflow_eos.core.checkpoint import (
    DecisionLog,
    OffsetLog,
    PipelineIdentity,
    Tenure,
    claim,
    read_pipeline,
    read_state,
    take_term,
)
from airflow_eos.core.checkpoint.snapshot import admitted, newest_promise
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.participant import Admission, Owner, SupportsHandover
from airflow_eos.core.protocol.participant_group import alone
from airflow_eos.core.protocol.promise import Promise
from airflow_eos.core.recovery.execute import execute
from airflow_eos.core.recovery.facts import gather
from airflow_eos.core.recovery.plan import make_plan
from airflow_eos.errors import ConfigurationError, EosError, OwnershipError

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint import CheckpointStore
    from airflow_eos.core.checkpoint.mend import Mend
    from airflow_eos.core.delivery.port import Former, OffsetCommit
    from airflow_eos.core.protocol.participant import Participant


def require_nothing_since(participant: Participant, former: Former, owner: Owner) -> None:
    """Refuse to let ``owner`` go on from ``former`` where anything was delivered or opened later.

    Raises:
        ConfigurationError: an empty checkpoint cannot go on with one of the outputs.
        OwnershipError: a system knows of a later delivery, or work is open.
    """
    for each in alone(participant):
        if not hasattr(each, "inherit"):
            raise ConfigurationError(
                f"{' and '.join(map(str, each.members))} cannot go on from a consumer group with "
                "an empty checkpoint: it remembers batches by their numbers. Expected outputs to "
                "Kafka alone. Restore the checkpoint, or give this output a new name."
            )
    decided = former.decision
    batch = None if decided is None else decided.batch_id
    then = replace(owner, pipeline=former.pipeline)
    try:
        for name in participant.ownership(then):
            if name.owner == owner:
                continue  # inherited by a start of ours that died
            name.require(
                then,
                newest_planned=batch,
                newest_settled=batch,
                decisions={} if decided is None else {decided.batch_id: (decided,)},
            )
    except OwnershipError as error:
        raise OwnershipError(
            f"The consumer group is where {'' if batch is None else f'batch {batch} of '}a former "
            f"pipeline {'began' if batch is None else 'ended'}, and that is not all that it "
            f"delivered: it was not drained after it. {error}"
        ) from error
    listed = [each for each in participant.open() if not each.whose]
    if listed:
        raise OwnershipError(
            f"The former pipeline was not drained: {len(listed)} pieces of its work are open, "
            f"first {listed[0].identity}. Restore its checkpoint and start it; or wait until their "
            "timeout has ended them, and start again: then nothing of them is delivered."
        )


def inherit(participant: Participant, owner: Owner) -> None:
    """Make ``owner`` the owner of all names; its checkpoint begins at batch 0."""
    for each in alone(participant):
        cast("SupportsHandover", each).inherit(owner)


def recommit_progress(
    store: CheckpointStore, decisions: DecisionLog, participant: Participant
) -> None:
    """Commit the last complete batch's progress again: a group's offsets expire, as in a week."""
    batch = read_state(store).latest_commit
    promise = Promise.of(decisions.of_batch(batch)) if batch is not None else None
    if promise is not None and promise.followers:
        participant.commit(promise.followers)


def leave_nothing_open(tenure: Tenure, participant: Participant, driver: str) -> None:
    """Abort what is open and was never decided: readers stand still until a timer ends it, if any.

    At the end of a run, as what lost task attempts have left; and where another guarantee begins.
    As a recovery does it, for the listing of a moment when this driver was still the newest. Errors
    are logged: the next start, or a recovery, ends it.
    """
    try:
        if any(not each.whose for each in participant.open()):
            facts = gather(tenure.store, participant)
            if tenure.is_newest():
                plan, by = make_plan(facts), driver
                execute(plan, tenure.store, participant, force=True, executed_by=by, facts=facts)
    except Exception:  # whatever the error: the run has ended well, or goes on without
        log.exception("left_open", hint="`airflow-eos recover` ends it")


def record_drained(
    tenure: Tenure, decisions: DecisionLog, participant: Participant, progress: OffsetCommit
) -> None:
    """Record at the end of a run that nothing is open and all is settled, if that is so.

    A batch that was planned, and never decided, does not change that. Errors are logged: then
    nothing is recorded, and an empty checkpoint will be refused.
    """
    try:
        decision = newest_promise(tenure.store, decisions)
        if decision is not None and all(each.whose for each in participant.open()):
            progress.drained(decision, tenure.is_newest)
    except EosError as error:
        log.warning("not_known_to_be_drained", error=str(error))
    except Exception:  # whatever the error: all is delivered, and the run has ended well
        log.exception("not_known_to_be_drained")


log = Log(__name__)


class Admitted(NamedTuple):
    """What the gate answered to a start.

    Attributes:
        pipeline: the pipeline that the checkpoint belongs to, or will.
        former: the pipeline that an empty checkpoint goes on from.
        forgotten: what a person must be told of names that no system remembers any more.
        is_owner: whether all names were the pipeline's own, so that to claim them changed nothing.
    """

    pipeline: PipelineIdentity
    former: Former | None
    forgotten: tuple[str, ...]
    is_owner: bool


def take_over(
    store: CheckpointStore,
    decisions: DecisionLog,
    participant: Participant,
    *,
    driver: str,
    on_term: Callable[[int], None] = lambda _term: None,
    progress: OffsetCommit | None = None,
    admitted: Admitted | None = None,
    after: int | None = None,
    unreadable: Callable[[], Iterable[Mend]] = tuple,
) -> tuple[Tenure, OffsetLog]:
    """Claim the names, take the term, end what is open, repair Spark's log.

    ``on_term`` is called with our term as soon as we have it.

    ``admitted``: the gate's first answer, where it was asked while another driver still ended.

    ``after``: take the term after this number or none; see ``take_term``.

    ``unreadable``: see :meth:`OffsetLog.repair`.

    Where ``progress`` says that an empty checkpoint goes on from a drained pipeline, the names are
    compared with that pipeline's last decision, and then inherited.

    Returns:
        Our term, and the offset log, which the first batch compares with the decisions again.

    Raises:
        OwnershipError: the name belongs to another checkpoint, or this one is an older copy.
        OvertakenError: another driver has taken the term that was to be ours.
        DecisionNeededError: recovery found what only a person may decide.
        KafkaError, CheckpointError, …: as they come.
    """
    if admitted is None or admitted.former is not None:  # a driver that ended since may have begun
        admitted = require_admitted(store, participant, driver, progress)
    pipeline, former, forgotten, is_owner = admitted
    owner = Owner.at(claim(store, pipeline).id, store.location)
    if not is_owner:
        participant.claim(owner)
    _, still_owner = _require(store, participant, former, owner)
    if is_owner and not still_owner:  # given up since
        participant.claim(owner)
        _require(store, participant, former, owner)
    tenure = take_term(store, taken_by=driver, after=after)
    failpoint("term-taken")
    on_term(tenure.term.number)
    verdict, _ = _require(store, participant, former, owner)
    forgotten += verdict.remarks
    _note_anew(store, participant, owner, forgotten)
    if former is not None:
        inherit(participant, owner)
    if progress is not None:
        progress.begin()
    # Forced: a starting query takes the pipeline over, and its term keeps both drivers exact.
    facts = gather(store, participant, admission=None if former is not None else verdict)
    execute(make_plan(facts), store, participant, force=True, executed_by=driver, facts=facts)
    offsets = OffsetLog(store, decisions)
    offsets.repair(unreadable)
    recommit_progress(store, decisions, participant)
    return tenure, offsets


def require_admitted(
    store: CheckpointStore, participant: Participant, driver: str, progress: OffsetCommit | None
) -> Admitted:
    """Ask the gate for the first time in a start.

    Names that are the pipeline's own are claimed at once: that changes nothing, and checks how
    their systems keep them. A standby has time for it now.

    Raises:
        OwnershipError, ConfigurationError, …: this start is not let in.
    """
    new = PipelineIdentity(
        id=uuid.uuid4().hex,
        participants=participant.members,
        created_at_ms=time.time_ns() // 1_000_000,
        created_by=driver,
    )
    pipeline = read_pipeline(store) or new
    pipeline.require_same(new, store.location)
    former = progress.former(pipeline.id) if progress is not None else None
    owner = Owner.at(pipeline.id, store.location)
    verdict, is_owner = _require(store, participant, former, owner)
    if is_owner:
        participant.claim(owner)
    return Admitted(pipeline, former, verdict.remarks, is_owner)


def _require(
    store: CheckpointStore, participant: Participant, former: Former | None, owner: Owner
) -> tuple[Admission, bool]:
    """Check an empty checkpoint against its predecessor, every other one against its own records.

    Returns:
        The answer, and whether the systems say that all names are the owner's.
    """
    if former is not None:
        require_nothing_since(participant, former, owner)
        return Admission(), False
    verdict, facts = admitted(store, participant, owner)
    verdict.require()
    return verdict, bool(facts.names) and all(n.owner == owner for n in facts.names)


def _note_anew(
    store: CheckpointStore, participant: Participant, owner: Owner, forgotten: tuple[str, ...]
) -> None:
    """Note the newest promise anew where nothing was remembered: an older copy is refused again."""
    newest = newest_promise(store, DecisionLog(store)) if forgotten else None
    if newest is not None:
        for remark in sorted(set(forgotten)):
            log.error("ownership_forgotten", remark=remark, noted_anew=newest.batch_id)
        participant.note(newest, owner)
