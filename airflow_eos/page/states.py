"""What the evidence of a checkpoint says of its pipeline, in a word and a sentence; pure.

=============================================  ===========
evidence, the first that holds                 state
=============================================  ===========
the heartbeat cannot be read                   unreadable
nothing was ever planned, nobody ever beat     new
the driver said ``stopped``                    stopped
the driver said ``failed``                     failed
looked at once                                 looking
its heartbeat was seen to stand still          silent
alive, and asked to stop                       draining
alive, and gets on                             running
alive, nothing in flight for a long time       idle
alive, and a batch is in flight for too long   stalled
=============================================  ===========

Alive is whose heartbeat, or progress, was seen to change by this server's clock; stalls are
reckoned where the sensors reckon them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.supervision.health import Health, Observation, judge, why_not_at_work

if TYPE_CHECKING:
    from airflow_eos.checkpoint import DrainRequest
    from airflow_eos.checkpoint.snapshot import Snapshot
    from airflow_eos.page.views import State

STALL_AFTER_MS = 300_000
"""As of the sensors: older than this, a commit, a batch in flight or a start is a stall."""

_OF_HEALTH: dict[Health, State] = {
    Health.FRESH: "running",
    Health.WORKING: "running",
    Health.IDLE: "idle",
    Health.SUSPECT: "stalled",
    Health.STALLED: "stalled",
    Health.UNKNOWN: "looking",
}


def state_of(
    found: Snapshot,
    drain: DrainRequest | None,
    stall_after_ms: int = STALL_AFTER_MS,
    *,
    alive: bool | None,
    beaten_at_ms: int,
) -> tuple[State, str]:
    """The state and why, in one sentence.

    Args:
        found: what stands in the checkpoint.
        drain: the request that means the last driver.
        stall_after_ms: older than this, a commit, a batch in flight or a start is a stall.
        alive: whether the pipeline was seen to be; None where that has not shown yet.
        beaten_at_ms: when the last heartbeat was written, by the store's clock.
    """
    if found.unheard:
        return "unreadable", found.unheard
    if found.heartbeat is None and found.state.latest_offsets is None:
        return "new", "no driver has run on this checkpoint yet"
    # What is unread is not asked for: that would be a look at Kafka for each row of a list.
    seen = Observation(found.state, found.heartbeat, None, beaten_at_ms, alive)
    if alive is None:
        return "looking", judge(seen, max_age_ms=stall_after_ms).reason
    if not alive:
        phase = found.heartbeat.phase if found.heartbeat is not None else None
        state: State = phase if phase in ("stopped", "failed") else "silent"
        return state, why_not_at_work(seen)
    if drain is not None:
        return "draining", f"asked to stop by {drain.requested_by}: {drain.reason}"
    finding = judge(seen, max_age_ms=stall_after_ms)
    return _OF_HEALTH[finding.health], finding.reason
