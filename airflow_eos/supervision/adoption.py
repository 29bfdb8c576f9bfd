"""May a try start an app, or does it take one over that lives? Pure; a table of what was seen.

=============================================  ==================  =========
the newest driver                              whose               action
=============================================  ==================  =========
there was none                                                     START
has said that it ended                         anybody's           START
stood still for long enough                    anybody's           START
not seen for long enough to tell               anybody's           LOOK
beats, and is asked to drain                   anybody's           WAIT
beats                                          of the same task    ADOPT
beats                                          another's           REFUSE
=============================================  ==================  =========

The same task is one try after another of one task instance: same DAG, task, map index and run.
An app that was started by hand is another's.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.recovery.driver_liveness import MISSED_BEATS

if TYPE_CHECKING:
    from airflow_eos.checkpoint import DrainRequest, StartedBy
    from airflow_eos.supervision.pulse import Seen


class Action(enum.Enum):
    """What a try does next."""

    START = "start"
    LOOK = "look again"
    WAIT = "wait"
    ADOPT = "adopt"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Choice:
    """An action and why, in one sentence."""

    action: Action
    reason: str


def choose(seen: Seen, us: StartedBy, drain: DrainRequest | None) -> Choice:
    """Say what a try of ``us`` does, from what was seen and the request to drain that stands."""
    if seen.heartbeat is None and seen.term == 0:
        return Choice(Action.START, "no driver has ever run here")
    if seen.is_over:
        return Choice(Action.START, f"{_driver(seen)} has ended")
    if seen.silent_s >= MISSED_BEATS * seen.interval_s:
        return Choice(
            Action.START, f"{_driver(seen)} was seen to be silent for {seen.silent_s:.0f} s"
        )
    living = seen.living
    if living is None:
        return Choice(Action.LOOK, f"whether {_driver(seen)} is alive shows in a moment")
    if drain is not None and drain.is_for(living.term, living.submission):
        return Choice(
            Action.WAIT, f"{_driver(seen)} was asked by {drain.requested_by} to drain, and does"
        )
    if us.is_same_task(living.started_by):
        return Choice(Action.ADOPT, f"{_driver(seen)}, of an earlier try of this task, is alive")
    whose = str(living.started_by) if living.started_by is not None else "nobody in Airflow"
    return Choice(
        Action.REFUSE,
        f"{_driver(seen)}, batch {living.batch_id}, phase {living.phase!r}, is alive, and was "
        f"started by {whose}",
    )


def _driver(seen: Seen) -> str:
    beat = seen.current
    if beat is None:
        return f"the driver of term {seen.term}"
    return f"driver {beat.application_id} (process {beat.pid} on {beat.host})"
