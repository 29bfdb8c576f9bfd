"""The facts that decide whether a start is let in, read; see :mod:`airflow_eos.protocol.ownership`.

Whoever starts, recovers or only looks asks here, so all of them say the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.decisions import DecisionLog
from airflow_eos.checkpoint.mending import newest_known
from airflow_eos.checkpoint.offsets import require_continuous
from airflow_eos.checkpoint.paths import COMMITS
from airflow_eos.checkpoint.pipeline import owner_of
from airflow_eos.checkpoint.rulings import said_of, with_rulings
from airflow_eos.checkpoint.spark_log import SparkLog
from airflow_eos.checkpoint.state import read_state
from airflow_eos.errors import ContinuityError, EosError, OwnershipError, Remedy
from airflow_eos.protocol.group import alone
from airflow_eos.protocol.ownership import Admission, Owner, StartFacts, admission
from airflow_eos.protocol.promise import Promise
from airflow_eos.protocol.work import Outcome

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.decision import Decision
    from airflow_eos.protocol.participant import Participant
    from airflow_eos.protocol.work import OpenWork


def admitted(
    store: CheckpointStore, participant: Participant, asking: Owner | None = None
) -> tuple[Admission, StartFacts]:
    """Whether a start on this checkpoint is let in, and by which facts; changes nothing.

    Asked again where the pipeline has gone on meanwhile: what was noted may be pruned by then.

    Args:
        store: the checkpoint.
        participant: all who take part, as one.
        asking: who starts; None: whom the checkpoint names.

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
    """Refuse what a start would refuse.

    Raises:
        OwnershipError: it is another pipeline's, an older copy, or elsewhere.
        EosError: it is not known, since a system did not answer.
    """
    admitted(store, participant)[0].require()


def start_facts(
    store: CheckpointStore, participant: Participant, asking: Owner | None = None
) -> StartFacts:
    """Read them; what a system answers with an error is a fact, too."""
    asking = asking or owner_of(store)
    log = DecisionLog(store)
    planned = newest_known(store, log)
    try:
        _require_continuous(store)
    except ContinuityError as error:
        return StartFacts(asking, newest_planned=planned, refused=error)
    over = [Promise.of(log.of_batch(batch)) for batch in _settled(store, planned)]
    settled = [each for each in over if each is not None]
    promised = bool(settled) or (planned is not None and bool(Promise.of(log.of_batch(planned))))
    try:
        names = participant.ownership(asking)
        for promise in settled:
            participant.require_settled(promise, said_of(store, promise))
        noted = [note.batch for each in names if (note := each.newest(asking.pipeline))]
        facts = StartFacts(
            asking,
            newest_planned=planned,
            has_promised=promised,
            newest_settled=max((each.batch_id for each in settled), default=None),
            decisions={batch: log.of_batch(batch) for batch in noted},
            names=names,
        )
        if facts.owns_nothing:
            return replace(facts, open=listed_for_a_first_start(participant))
        if facts.forgotten and settled:
            _require_shown(store, participant, settled[-1])
    except OwnershipError as error:
        return StartFacts(asking, newest_planned=planned, refused=error)
    except EosError as error:
        return StartFacts(asking, newest_planned=planned, unanswered=error)
    return facts


def _require_continuous(store: CheckpointStore) -> None:
    """The next batch that is run begins where the newest promise before it ended."""
    state = read_state(store)
    following = -1 if state.latest_offsets is None else state.latest_offsets + 1
    batch = following if state.in_flight is None else state.in_flight
    if batch > 0:
        require_continuous(store, SparkLog(store, state.mends), batch)


def listed_for_a_first_start(participant: Participant) -> tuple[OpenWork, ...]:
    """All that is open under names like ours, whoever's: of a pipeline that owns nothing yet."""
    return (*participant.open(), *lookalikes(participant))


def lookalikes(participant: Participant) -> tuple[OpenWork, ...]:
    """What other programs have open under names like ours, where a system can tell."""
    return tuple(
        found
        for each in alone(participant)
        if (look := getattr(each, "lookalikes", None)) is not None
        for found in look()
    )


def newest_promise(store: CheckpointStore) -> Decision | None:
    """The newest decision that rows were promised by, of the newest two batches."""
    log = DecisionLog(store)
    planned = newest_known(store, log)
    for batch in () if planned is None else (planned, planned - 1):
        promise = Promise.of(log.of_batch(batch)) if batch >= 0 else None
        if promise is not None:
            return promise.commits[-1]
    return None


def _require_shown(store: CheckpointStore, participant: Participant, promise: Promise) -> None:
    """Nothing remembers this pipeline: does the output at least hold what it delivered last?"""
    became = with_rulings(store, participant.outcome(promise.of_rows))
    said = said_of(store, promise)
    there = {each for each, outcome in became.items() if outcome is not Outcome.ABORTED}
    missing = promise.lost_rows(there | said.committed) - sum(said.missing_rows.values())
    if missing > 0:
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
    """The batch before the newest one, and the newest one where Spark has completed it.

    A run that ended in order leaves it so, and nobody would ask about it again.
    """
    if planned is None:
        return []
    newest = [planned] if store.head(f"{COMMITS}/{planned}") is not None else []
    return [planned - 1, *newest] if planned else newest
