"""Whether a pipeline gets on, is idle or has stalled; pure, a table of evidence.

=====================================================  ===========
evidence, the first that holds                         health
=====================================================  ===========
no heartbeat at all, ``stopped`` or ``failed``         STALLED
looked at once: nobody has seen whether it beats       NOT KNOWN
the heartbeat was seen to stand still                  STALLED
the last commit is young                               FRESH
the driver, or the batch in flight, is young           WORKING
a batch is in flight for too long                      STALLED
nothing to read, driver beats and waits                IDLE
rows to read, driver beats and waits, seen once        SUSPECT
the same, seen again after a trigger interval          STALLED
=====================================================  ===========

No clock is compared with another one. Whether a driver lives is seen by the reader's. How old a
commit and a batch are is reckoned within the store's clock, as of the newest heartbeat that stands
there; how old a driver is, within its own.

SUSPECT is why an idle topic is no stall: the first row after a quiet night finds an old commit.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pendulum

if TYPE_CHECKING:
    from airflow_eos.checkpoint import Heartbeat
    from airflow_eos.checkpoint.progress import CheckpointState

_MARGIN_MS = 5_000
"""On top of the trigger interval, for a batch to be planned before a suspicion is confirmed."""


class Health(enum.Enum):
    """What the evidence says."""

    FRESH = "fresh"
    WORKING = "working"
    IDLE = "idle"
    SUSPECT = "suspect"
    STALLED = "stalled"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen.

    Attributes:
        state: Spark's progress.
        heartbeat: the newest.
        unread: how many offsets are still to be read; None where that is not known.
        now_ms: when the newest heartbeat was written, by the store's clock.
        alive: whether the heartbeat was seen to change; None where nobody has looked twice.
    """

    state: CheckpointState
    heartbeat: Heartbeat | None
    unread: int | None
    now_ms: int
    alive: bool | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Health and why, in one sentence."""

    health: Health
    reason: str


def judge(seen: Observation, *, max_age_ms: int, earlier: Observation | None = None) -> Finding:
    """Say how the pipeline is; ``earlier`` is the look that gave a suspicion.

    Args:
        seen: what was found now.
        max_age_ms: how old a commit, a batch in flight or a start may be, in ms.
        earlier: an observation at least :func:`confirm_after_ms` older.
    """
    state, heartbeat = seen.state, seen.heartbeat
    if silent := why_not_at_work(seen):
        return Finding(Health.STALLED, f"{_last(seen)}: {silent}")
    assert heartbeat is not None  # noqa: S101 - no heartbeat is silence
    if seen.alive is None:
        return Finding(
            Health.UNKNOWN,
            f"{_last(seen)}: whether driver {heartbeat.application_id} is alive shows at a second "
            "look",
        )
    if state.committed_at_ms is not None and seen.now_ms - state.committed_at_ms <= max_age_ms:
        age = _age(seen, state.committed_at_ms)
        return Finding(Health.FRESH, f"batch {state.latest_commit} was committed {age} ago")
    since = _since(seen)
    started_ms = heartbeat.beat_at_ms - heartbeat.started_at_ms
    if started_ms <= max_age_ms:
        return Finding(Health.WORKING, f"the driver started {_words(started_ms)} ago")
    if state.in_flight is not None and state.planned_at_ms is not None:
        age = _age(seen, state.planned_at_ms)
        young = seen.now_ms - state.planned_at_ms <= max_age_ms
        return Finding(
            Health.WORKING if young else Health.STALLED,
            f"{since}: batch {state.in_flight} is in flight for {age}, phase {heartbeat.phase!r}",
        )
    return _waiting(seen, since, earlier)


def confirm_after_ms(seen: Observation) -> int:
    """How long a suspicion must stand before it is a stall."""
    return _MARGIN_MS + (seen.heartbeat.trigger_ms if seen.heartbeat else 0)


def _waiting(seen: Observation, since: str, earlier: Observation | None) -> Finding:
    """The driver beats and no batch is in flight: is there anything to read?"""
    if not seen.unread:
        what = "nothing to read" if seen.unread == 0 else "sources whose ends are not known"
        return Finding(Health.IDLE, f"{since}, with {what}; the driver is alive")
    reason = f"{since}, although {seen.unread} offsets are unread and the driver is alive"
    unmoved = (
        earlier is not None
        and bool(earlier.unread)
        and earlier.state.latest_offsets == seen.state.latest_offsets
    )
    return Finding(Health.STALLED if unmoved else Health.SUSPECT, reason)


def why_not_at_work(seen: Observation) -> str:
    """What the last heartbeat says of a driver that is not at work; empty where it is."""
    heartbeat = seen.heartbeat
    if heartbeat is None:
        return "no driver has ever written a heartbeat"
    if heartbeat.phase == "failed":
        return "the driver failed" + _why(": ", heartbeat.reason)
    if heartbeat.phase == "stopped":
        asked = heartbeat.reason if heartbeat.drained_by is not None else None
        return "the driver stopped" + _why(", asked to by ", asked)
    if seen.alive is False:
        return (
            f"driver {heartbeat.application_id} on {heartbeat.host} has fallen silent in phase "
            f"{heartbeat.phase!r}"
        )
    return ""


def _why(before: str, reason: str | None) -> str:
    return f"{before}{reason}" if reason else ""


def _last(seen: Observation) -> str:
    """How far it is, where nothing tells how long ago that was."""
    if seen.state.committed_at_ms is None:
        return "no batch was ever committed"
    return f"batch {seen.state.latest_commit} is its last"


def _since(seen: Observation) -> str:
    if seen.state.committed_at_ms is None:
        return "no batch was ever committed"
    return f"no commit for {_age(seen, seen.state.committed_at_ms)}"


def _age(seen: Observation, at_ms: int) -> str:
    return _words(seen.now_ms - at_ms)


def _words(span_ms: int) -> str:
    # Stores tell whole seconds.
    return pendulum.duration(seconds=max(1, round(span_ms / 1000))).in_words()
