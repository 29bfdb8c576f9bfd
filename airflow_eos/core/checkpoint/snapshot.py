"""A checkpoint as one value: owner, progress, decisions, heartbeat; and the facts of the gate.

The order of reading is part of the proof: Spark's logs first, and then the decisions, so that a
decision made meanwhile is seen. Open work that may be ended was listed before all of this. The
heartbeat comes last, since what a driver wrote after its last beat passes for a sign of life; and
the clock is read with it, since the heartbeat's age must not grow while somebody else is asked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from airflow_eos.core.checkpoint.backend import COMMITS, DECISIONS, PIPELINE, visibility_marker_path
from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.heartbeat import Heartbeat, heard
from airflow_eos.core.checkpoint.inputs import require_held
from airflow_eos.core.checkpoint.layout import batch_folders, newest_planned
from airflow_eos.core.checkpoint.mending import (
    damage,
    decided_offsets,
    lost_beginning,
    newest_known,
)
from airflow_eos.core.checkpoint.offsets import require_continuous
from airflow_eos.core.checkpoint.pipeline import PipelineIdentity, owner_of, read_pipeline
from airflow_eos.core.checkpoint.progress import CheckpointState, read_mended, read_state
from airflow_eos.core.checkpoint.repartition import require_finished
from airflow_eos.core.checkpoint.rulings import (
    Acceptance,
    read_acceptance,
    rulings_on_promise,
    with_rulings,
)
from airflow_eos.core.checkpoint.spark_log import SparkLog
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.checkpoint.terms import newest_term
from airflow_eos.core.protocol.decision import Decision, OpenWork, Outcome
from airflow_eos.core.protocol.participant import (
    ANEW,
    Admission,
    Owner,
    Participant,
    StartFacts,
    admission,
)
from airflow_eos.core.protocol.participant_group import alone
from airflow_eos.core.protocol.promise import Promise
from airflow_eos.errors import (
    CheckpointError,
    CheckpointFormatError,
    ContinuityError,
    EosError,
    OwnershipError,
    Remedy,
)

_WITNESSED = 10
"""The number of newest decided batches that a second witness is asked about: most name all ids."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a checkpoint at one time.

    Attributes:
        pipeline: ``eos/pipeline.json``; None where the checkpoint has none.
        batch: The batch whose decisions were asked for; None before the first one.
        decisions: The decisions of ``batch``, by attempt.
        accepted: A person's ruling on ``batch`` as a whole.
        heartbeat: ``eos/driver.json``.
        unheard: Why the heartbeat cannot be read; empty where it can.
        read_at_ms: When the heartbeat was read, in milliseconds since the epoch.
    """

    pipeline: PipelineIdentity | None
    state: CheckpointState
    batch: int | None
    decisions: tuple[Decision, ...]
    accepted: Acceptance | None
    heartbeat: Heartbeat | None
    unheard: str
    read_at_ms: int


def read_snapshot(store: CheckpointStore, batch: int | None = None) -> Snapshot:
    """Read the checkpoint, in the order on which the proof rests.

    Args:
        batch: The batch whose decisions are asked for, seen as the newest one before; None for
            the newest one of this reading.

    Raises:
        CheckpointError: The checkpoint cannot be read, or is an older copy.
        StoreError: The store did not answer.
    """
    pipeline = read_pipeline(store)
    log = DecisionLog(store)
    state, newest = _progress(store, log)
    if batch is not None and (newest is None or newest < batch):
        raise _older_copy(store, newest)
    asked = state.latest_offsets if batch is None else batch
    decisions = log.of_batch(asked) if asked is not None else ()
    promise = Promise.of(decisions)
    accepted = read_acceptance(store, promise.batch_id, promise.nonce) if promise else None
    heartbeat, unheard = heard(store)
    return Snapshot(
        pipeline=pipeline,
        state=state,
        batch=asked,
        decisions=decisions,
        accepted=accepted,
        heartbeat=heartbeat,
        unheard=unheard,
        read_at_ms=time.time_ns() // 1_000_000,
    )


def _progress(store: CheckpointStore, log: DecisionLog) -> tuple[CheckpointState, int | None]:
    """Return the query's progress, and the newest batch of a listing; refuse an older copy."""
    state = read_state(store)
    newest = state.latest_offsets
    if _is_rolled_back(store, log, newest):
        state = read_mended(store, log)  # its newest entry may be lost, and nothing else
        after = 0 if newest is None else newest + 1
        if state.latest_offsets != after or _is_rolled_back(store, log, after):
            raise _older_copy(store, newest)
    return state, newest


def _is_rolled_back(store: CheckpointStore, log: DecisionLog, newest: int | None) -> bool:
    """Whether the batch after the newest one was decided already.

    Only that batch is looked at, which costs one listing. A live driver may begin and decide it
    between two readings, so Spark's log is listed once more.
    """
    after = 0 if newest is None else newest + 1
    if decided_offsets(log, after) is None:
        return False
    latest = newest_planned(store)
    return latest is None or latest < after


def _older_copy(store: CheckpointStore, newest: int | None) -> CheckpointError:
    return CheckpointError(
        f"{store.location} is older than what was decided on it: Spark's newest batch is "
        f"{newest}, but batch {0 if newest is None else newest + 1} was promised or seen before. "
        "It looks like an older copy put back. Nothing was done: resuming from this one would "
        "deliver rows twice.",
        Remedy(
            change=f"restore the newest copy of {store.location} (offsets/, commits/ and eos/ "
            "together)",
            start=True,
        ),
    )


# --- whether a start is let in --------------------------------------------------------------------
# A start, a recovery and a mere look all ask here, so they say the same.


def admitted(
    store: CheckpointStore, participant: Participant, asking: Owner | None = None
) -> tuple[Admission, StartFacts]:
    """Return whether a start on this checkpoint is let in, and by which facts; change nothing.

    The facts are read again where the pipeline has gone on meanwhile: a noted decision may be
    pruned by then.

    Args:
        asking: the owner that starts; None: the one that the checkpoint names.

    Raises:
        CheckpointError: the checkpoint itself cannot be read.
    """
    while True:
        facts = start_facts(store, participant, asking)
        verdict = admission(facts)
        log = DecisionLog(store)
        if verdict.error is None or newest_known(store, log) == facts.newest_planned:
            return verdict, facts


def require_owner(store: CheckpointStore, participant: Participant) -> None:
    """Raise where a start on this checkpoint would be refused.

    Raises:
        OwnershipError: the checkpoint is another pipeline's, an older copy, or elsewhere.
        EosError: whether a start is let in is not known, since a system did not answer.
    """
    admitted(store, participant)[0].require()


def start_facts(
    store: CheckpointStore, participant: Participant, asking: Owner | None = None
) -> StartFacts:
    """Read the facts that decide whether a start is let in; a system's error is a fact, too."""
    asking = asking or owner_of(store)
    log = DecisionLog(store)
    planned = newest_known(store, log)
    lost = _lost_identity(store) or lost_beginning(store, log, planned) or unknown_beginning(store)
    if lost is not None:
        return StartFacts(asking, newest_planned=planned, refused=lost)
    try:
        _require_continuous(store)
        require_held(store, log)
    except ContinuityError as error:
        return StartFacts(asking, newest_planned=planned, refused=error)
    over = [Promise.of(log.of_batch(batch)) for batch in _settled(store, planned)]
    settled = [each for each in over if each is not None]
    promised = bool(settled) or (planned is not None and bool(Promise.of(log.of_batch(planned))))
    try:
        names = participant.ownership(asking)
        for promise in settled:
            participant.require_settled(promise, rulings_on_promise(store, promise))
        noted = [note.batch for each in names if (note := each.newest(asking.pipeline))]
        facts = StartFacts(
            asking,
            newest_planned=planned,
            has_promised=promised,
            newest_settled=max((each.batch_id for each in settled), default=None),
            decisions={batch: log.of_batch(batch) for batch in noted},
            names=names,
            torn=_torn(store, log),
        )
        if facts.owns_nothing:
            return replace(facts, open=(*participant.open(), *lookalikes(participant)))
        if facts.forgotten and settled:
            _require_shown(store, participant, settled[-1])
        if any(not each.given_up for each in facts.forgotten):
            facts = replace(facts, later=_later(store, log, participant))
    except OwnershipError as error:
        return StartFacts(asking, newest_planned=planned, refused=error)
    except EosError as error:
        return StartFacts(asking, newest_planned=planned, unanswered=error)
    return facts


def _lost_identity(store: CheckpointStore) -> CheckpointFormatError | None:
    """Return the error where decisions stand, and no ``eos/pipeline.json`` says whose they are."""
    if read_pipeline(store) is not None or not store.folders(DECISIONS):
        return None
    return CheckpointFormatError(
        f"{store.location}/{PIPELINE} is missing, though {DECISIONS} has decisions: whose they "
        "are, and whether this is the newest copy, is not known.",
        Remedy(change=f"put {PIPELINE} back, as this checkpoint had it", start=True),
        ANEW,
    )


def unknown_beginning(store: CheckpointStore) -> OwnershipError | None:
    """Return the error for a batch in flight of which nothing says which program began it.

    Every driver of ours leaves a term before Spark plans, and some a mark. Spark's own sinks leave
    nothing, and may have written some of the batch. Once it is complete, what follows is the
    query's own.
    """
    if newest_term(store) or read_pipeline(store) or store.folders(DECISIONS):
        return None
    batch = read_state(store).in_flight
    if batch is None or store.head(visibility_marker_path(batch)) is not None:
        return None
    return OwnershipError(
        f"{store.location}: batch {batch} is planned and not complete, and no driver of this "
        "package has ever run there: another sink began it, as Spark's own. Some of its rows may "
        "be visible, and would come twice.",
        Remedy(change="let the program that began it end that batch (availableNow will do)"),
        Remedy(
            change=f"move offsets/{batch} out of {store.location}",
            start=True,
            costs=f"rows of batch {batch} that are visible by now come twice",
        ),
    )


def _torn(store: CheckpointStore, log: DecisionLog) -> CheckpointError | None:
    """Return the error with which a start would be refused later, in its repair or recovery."""
    try:
        damage(store, log)
        _progress(store, log)
    except CheckpointError as error:
        return error
    return None


def _require_continuous(store: CheckpointStore) -> None:
    """Require that the next batch that runs begins where the newest promise before it ended."""
    require_finished(store)
    state = read_state(store)
    following = -1 if state.latest_offsets is None else state.latest_offsets + 1
    batch = following if state.in_flight is None else state.in_flight
    if batch > 0:
        require_continuous(store, SparkLog(store, state.mends), batch)


def lookalikes(participant: Participant) -> tuple[OpenWork, ...]:
    """Return what other programs have open under names like ours, where a system can tell."""
    return tuple(
        found
        for each in alone(participant)
        if (look := getattr(each, "lookalikes", None)) is not None
        for found in look()
    )


def _later(store: CheckpointStore, log: DecisionLog, participant: Participant) -> str:
    """Return what the participants see delivered after the newest promises here; or empty.

    What a driver delivers while they are asked stands decided before: then both are read again.
    """
    looks = [getattr(each, "later_than", None) for each in alone(participant)]
    while True:
        promises = newest_promises(store, log)
        told = next((told for look in looks if look and (told := look(promises))), "")
        if not told or newest_promises(store, log) == promises:
            return told


def newest_promises(store: CheckpointStore, log: DecisionLog) -> list[Promise]:
    """Return the promises of the newest decided batches, the newest last; a few at most."""
    newest = sorted(batch_folders(store, DECISIONS))[-_WITNESSED:]
    return [each for batch in newest if (each := Promise.of(log.of_batch(batch)))]


def newest_promise(store: CheckpointStore, log: DecisionLog) -> Decision | None:
    """Return the newest decision that promised rows, of the newest two batches."""
    planned = newest_known(store, log)
    for batch in () if planned is None else (planned, planned - 1):
        promise = Promise.of(log.of_batch(batch)) if batch >= 0 else None
        if promise is not None:
            return promise.commits[-1]
    return None


def _require_shown(store: CheckpointStore, participant: Participant, promise: Promise) -> None:
    """Refuse an output that lacks rows of the last delivered batch, where no note is left.

    Only the participants of the caller are asked: a look at one prefix alone asks no other one.
    """
    parts = {each.name: promise.part(each.name) for each in participant.members}
    asked = [work for part in parts.values() for work in part.of_rows]
    became = with_rulings(store, participant.outcome(asked))
    said = rulings_on_promise(store, promise)
    there = {each for each, outcome in became.items() if outcome is not Outcome.ABORTED}
    there |= said.committed
    lost = [part.lost_rows(there) - said.missing_rows.get(n, 0) for n, part in parts.items()]
    missing = sum(rows for rows in lost if rows > 0)
    if missing:
        raise OwnershipError(
            f"Nothing remembers the pipeline of {store.location} any more, and {missing} rows of "
            f"batch {promise.batch_id}, which it has delivered, are not in the output: the output "
            "was set back or made anew. Nothing was started: nobody would deliver them again.",
            Remedy(change="restore the newest data of the output", start=True),
            Remedy(
                change="begin with an empty checkpoint and another prefix, at the offsets up to "
                "which the output has everything",
                start=True,
                costs="the state of a stateful query",
            ),
        )


def _settled(store: CheckpointStore, planned: int | None) -> list[int]:
    """Return the batch before the newest one, and the newest one where Spark has completed it.

    A run that ended in order leaves its newest batch complete, and nobody would ask about it again.
    """
    if planned is None:
        return []
    newest = [planned] if store.head(f"{COMMITS}/{planned}") is not None else []
    return [planned - 1, *newest] if planned else newest
