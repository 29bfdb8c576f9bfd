"""Read what the planner needs, in the order on which the proof rests.

First the open work is listed, then the checkpoint and the decisions are read. What was open at the
listing therefore belongs to the newest batch that is read afterwards, or to an older one, and what
no decision names once the next attempt is sealed can never be named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint.rulings import with_rulings
from airflow_eos.checkpoint.snapshot import read_snapshot
from airflow_eos.failpoints import failpoint
from airflow_eos.protocol.promise import named_by
from airflow_eos.protocol.work import Outcome
from airflow_eos.recovery.plan import Facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.participant import Participant
    from airflow_eos.protocol.promise import Named
    from airflow_eos.protocol.work import OpenWork, WorkIdentity


def gather(store: CheckpointStore, participant: Participant) -> Facts:
    """List what is open at the participant, then read all the rest.

    Raises:
        OwnershipError: The pipeline delivers to another address than the one asked.
        CheckpointError: The checkpoint cannot be read, or is an older copy.
        EosError: The participant cannot be reached or refuses.
    """
    listed = participant.open()
    failpoint("recovery-listed")
    return read_facts(store, participant, listed)


def read_facts(
    store: CheckpointStore,
    participant: Participant,
    listed: Iterable[OpenWork],
    *,
    listed_batch: int | None = None,
) -> Facts:
    """Read everything but the listing. Call it again with the same one as often as needed.

    Args:
        store: The checkpoint.
        participant: Who was asked for the listing.
        listed: What was open there before this call.
        listed_batch: The newest batch when the listing was young; None when this is the first
            reading after it.
    """
    found = read_snapshot(store, listed_batch)
    pipeline, batch, asked = found.pipeline, found.batch, participant.members
    ours = False
    if pipeline is not None:
        for each in asked:
            pipeline.require_own(each, store.location)
        ours = any(pipeline.member(each.name) for each in asked)
    named = named_by(found.decisions)
    if ours:
        participant.check([entry.work for entry in named])
    listed = tuple(listed)
    in_flight = batch is not None and batch == found.state.in_flight
    return Facts(
        location=store.location,
        asked=asked,
        pipeline=pipeline,
        checkpoint=found.state,
        listed_batch=batch,
        decisions=found.decisions,
        listed=listed,
        # A complete batch was settled before Spark completed it: its outcomes are not asked for,
        # or an idle pipeline would be ASKed about as soon as its rows pass retention.
        outcomes=_outcomes(store, participant, named, listed) if in_flight and ours else {},
        accepted=found.accepted,
        heartbeat=found.heartbeat,
        now_ms=found.read_at_ms,
    )


def _outcomes(
    store: CheckpointStore,
    participant: Participant,
    named: Iterable[Named],
    listed: Iterable[OpenWork],
) -> Mapping[WorkIdentity, Outcome]:
    """Ask the witness about what was decided; a ruling where it is mute.

    Also where it is listed by a system that ends nothing by itself: a part of it may be left, and
    the outcome UNKNOWN. One that does keeps count of what is open, whatever became of its rows.
    """
    is_kept_count_of = {each.identity for each in listed if each.timeout_ms is not None}
    decided = [entry.work for entry in named if entry.identity not in is_kept_count_of]
    return with_rulings(store, participant.outcome(decided)) if decided else {}
