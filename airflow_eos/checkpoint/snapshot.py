"""A checkpoint as one value: whose it is, how far it is, what was decided, who gives signs of life.

The order of reading is part of the proof: Spark's logs first, and then the decisions, so that what
is decided meanwhile is seen. What may be ended was listed before all of this. The heartbeat comes
last, since what a driver wrote after its last beat passes for a sign of life; and the clock is read
with it, since its age must not grow while somebody else is asked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.decisions import DecisionLog
from airflow_eos.checkpoint.liveness import read_heartbeat
from airflow_eos.checkpoint.mending import decided_offsets
from airflow_eos.checkpoint.paths import HEARTBEAT
from airflow_eos.checkpoint.pipeline import read_pipeline
from airflow_eos.checkpoint.rulings import read_acceptance
from airflow_eos.checkpoint.state import read_mended, read_state
from airflow_eos.checkpoint.terms import newest_planned
from airflow_eos.errors import CheckpointError, CheckpointFormatError, Remedy
from airflow_eos.protocol.promise import Promise

if TYPE_CHECKING:
    from airflow_eos.checkpoint.liveness import Heartbeat
    from airflow_eos.checkpoint.pipeline import Pipeline
    from airflow_eos.checkpoint.rulings import Acceptance
    from airflow_eos.checkpoint.state import CheckpointState
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.decision import Decision


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What stands in a checkpoint.

    Attributes:
        pipeline: ``eos/pipeline.json``; None where the checkpoint has none.
        state: Spark's progress.
        batch: The batch whose decisions were asked for; None before the first one.
        decisions: Those of ``batch``, by attempt.
        accepted: What a person said of ``batch`` as a whole.
        heartbeat: ``eos/driver.json``.
        unheard: Why nobody can read it; empty where nothing keeps one from it.
        read_at_ms: When the heartbeat was read, in milliseconds since the epoch.
    """

    pipeline: Pipeline | None
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
        store: The checkpoint.
        batch: The batch whose decisions are asked for, seen as the newest one before; None for
            the newest one of this reading.

    Raises:
        CheckpointError: It cannot be read, or is an older copy.
        StoreError: The store did not answer.
    """
    pipeline = read_pipeline(store)
    state = read_state(store)
    log = DecisionLog(store)
    newest = state.latest_offsets
    rolled_back = _is_rolled_back(store, log, newest)
    if rolled_back:
        state = read_mended(store, log)  # its newest entry may be lost, and nothing else
        rolled_back = state.latest_offsets != (0 if newest is None else newest + 1)
    if rolled_back or (batch is not None and (newest is None or newest < batch)):
        raise _older_copy(store, newest)
    asked = state.latest_offsets if batch is None else batch
    decisions = log.of_batch(asked) if asked is not None else ()
    promise = Promise.of(decisions)
    accepted = read_acceptance(store, promise.batch_id, promise.nonce) if promise else None
    heartbeat, unheard = None, ""
    try:
        heartbeat = read_heartbeat(store)
    except CheckpointFormatError:
        unheard = f"{HEARTBEAT} is damaged: whether a driver runs is not known"
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


def _is_rolled_back(store: CheckpointStore, log: DecisionLog, newest: int | None) -> bool:
    """Whether the batch after the newest one was decided already.

    Asked of that one only, which costs one listing. A live driver may begin and decide it between
    two readings, so Spark's log is listed once more.
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
