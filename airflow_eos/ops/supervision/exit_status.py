"""Decides how an app has ended, by a table of its process and its heartbeat; pure.

For an app whose process is a child of ours, both must agree. For an app that runs elsewhere only
the heartbeat counts, also where the process that submitted it failed. An app succeeds only if its
driver says so. A driver that stopped because Airflow asked did so for a former try of the task: the
try that has taken the app over since looks for the next app.

=========================  ====================================  ==================
process                    heartbeat                             end
=========================  ====================================  ==================
ended, or elsewhere        of a newer driver                     SUPERSEDED
exited with an error       any                                   FAILED
exited with 0              ours: stopped                         SUCCEEDED, DRAINED
exited with 0, elsewhere   ours: stopped, for a former try       CALLED_OFF
exited with 0              none of ours, or another phase        FAILED
elsewhere                  ours: stopped                         SUCCEEDED, DRAINED
elsewhere                  ours: failed                          FAILED, SUPERSEDED
elsewhere                  ours: its process is gone             VANISHED
elsewhere                  ours: stood still for long            VANISHED
elsewhere                  none of ours within the time allowed  NEVER_SEEN
runs                       ours: stood still for long            STALLED
runs                       ours: failed, and long ago            FAILED, SUPERSEDED
runs                       ours: stopped, and very long ago      SUCCEEDED, DRAINED
runs                       none of ours within the time allowed  NEVER_SEEN
runs                       of a newer driver, and long since     SUPERSEDED
runs                       anything else                         not yet
=========================  ====================================  ==================

A process that runs on after its driver's final heartbeat hangs, and is ended. An app may have work
of its own after its query: where the query stopped in order, the app has the time of a first beat.
"""

from __future__ import annotations

import enum
import re
import signal
from dataclasses import dataclass

from airflow_eos.core.checkpoint import DrainRequest, Heartbeat, StartedBy
from airflow_eos.core.checkpoint.drain import BY_AIRFLOW
from airflow_eos.core.checkpoint.liveness import MISSED_BEATS
from airflow_eos.core.checkpoint.standby import Standby
from airflow_eos.core.protocol.decision import one_line
from airflow_eos.errors import REFUSED_STATUS
from airflow_eos.ops.supervision.heartbeat_monitor import HeartbeatObservation

_STATUS = re.compile(r"Error code is: (-?[0-9]{1,3})\b", re.ASCII)
_KILLED = 128
"""The number that a shell, and Spark's Python runner, add to that of the signal."""
_SHOWN = 300


class ExitKind(enum.Enum):
    """The ways in which an app can end; each value says in words what happened."""

    SUCCEEDED = "the app read everything and stopped in order"
    DRAINED = "the app was asked to stop, and did so in order after its running batch"
    CALLED_OFF = "another try was stopped, and asked the app to stop, which this one had taken over"
    FAILED = "the app ended with an error"
    VANISHED = "the app fell silent without a word"
    STALLED = "the driver's process is there, and hangs"
    SUPERSEDED = "another driver, or a recovery, took its place"
    NEVER_SEEN = "no driver of this start has ever given a sign of life"


IN_ORDER = frozenset({ExitKind.SUCCEEDED, ExitKind.DRAINED})
ENDED_BY_OTHERS = frozenset({ExitKind.SUPERSEDED, ExitKind.CALLED_OFF})
"""Ends that another driver or try brought about: look for a living app before a start."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How an app ended, and what was found; ``hopeless`` where no restart can heal it."""

    end: ExitKind
    found: str
    hopeless: bool = False

    @property
    def in_order(self) -> bool:
        """Whether the app stopped in order."""
        return self.end in IN_ORDER

    def __str__(self) -> str:
        """Return the end and what was found, for people."""
        return f"{self.end.name.lower().replace('_', ' ')} ({self.end.value}): {self.found}"


@dataclass(frozen=True, slots=True)
class Process:
    """The app's process that this one has started; its ``failure`` is known once it ended.

    A ``detached`` process has only submitted the driver: where the process failed, the cluster's
    reply may be lost and the driver live.
    """

    running: bool
    failure: BaseException | None = None
    detached: bool = False


@dataclass(frozen=True, slots=True)
class Patience:
    """The times in seconds after which the silence of an app counts as its end.

    Attributes:
        silent_s: how long a driver that has written heartbeats may write none.
        first_beat_s: how long an app may take from its start to its first heartbeat; and how long
            its process may still be there once its query has stopped in order.
    """

    silent_s: float
    first_beat_s: float

    def of(self, seen: HeartbeatObservation) -> float:
        """Return the seconds of silence that end a driver: so many that no try adopts it again."""
        return max(self.silent_s, MISSED_BEATS * seen.interval_s)


def ended(
    seen: HeartbeatObservation,
    submission: str,
    process: Process | None,
    patience: Patience,
    since_start_s: float,
) -> ExitStatus | None:
    """Return how the app of ``submission`` ended, or None where it has not.

    Args:
        process: the app's own process; None where only the heartbeat tells.
        patience: the times after which silence counts as the end.
        since_start_s: seconds since the app was started or adopted; for a running process, since it
            was last known to be the newest driver.
    """
    ours = seen.of(submission)
    if process is not None and process.running:
        return _hangs(seen, submission, patience, since_start_s)
    if process is not None and not (process.detached and ours is not None):
        return _exited(seen, submission, process.failure)
    if ours is None:
        return _not_ours(seen, submission, patience, since_start_s)
    if seen.has_ended:
        return _as_it_says(ours)
    if seen.gone is None and seen.silent_s < patience.of(seen):
        return None
    return ExitStatus(
        ExitKind.VANISHED,
        f"driver {ours.application_id} on {ours.host}, batch {ours.batch_id}, phase "
        f"{ours.phase!r}: {seen.gone or f'it was seen to be silent for {seen.silent_s:.0f} s'}",
    )


def left(standby: Standby) -> ExitStatus:
    """Return how a standby that never drove has ended, by the standby's own note."""
    if standby.end == "called off":
        return ExitStatus(ExitKind.DRAINED, standby.reason)
    return ExitStatus(ExitKind.FAILED, standby.reason, hopeless=standby.end == "refused")


def died_standing_by(process: Process) -> ExitStatus:
    """Return how a standby ended that left no reason, by its process."""
    failure = process.failure
    if failure is None:
        return ExitStatus(
            ExitKind.FAILED, "it exited with 0, and neither drove nor said why it left"
        )
    found, refused = _in_words(failure, "the app")
    return ExitStatus(ExitKind.FAILED, f"before it drove, {found}", refused)


def _hangs(
    seen: HeartbeatObservation, submission: str, patience: Patience, since_start_s: float
) -> ExitStatus | None:
    """Return the end of a running process without heartbeats, which hangs; None where not yet."""
    ours = seen.of(submission)
    if ours is None:
        late = since_start_s >= patience.first_beat_s
        return _not_ours(seen, submission, patience, since_start_s) if late else None
    last_word = seen.has_ended and ours.phase == "stopped"
    allowed_s = max(patience.of(seen), patience.first_beat_s if last_word else 0)
    if seen.silent_s < allowed_s:
        return None
    if seen.has_ended:
        how = _as_it_says(ours)
        there = f"{how.found}; process {ours.pid} is still there {seen.silent_s:.0f} s after it"
        return ExitStatus(how.end, there, how.hopeless)
    return ExitStatus(
        ExitKind.STALLED,
        f"process {ours.pid} is there, and its heartbeat (batch {ours.batch_id}, phase "
        f"{ours.phase!r}) was seen to stand still for {seen.silent_s:.0f} s",
    )


def _exited(
    seen: HeartbeatObservation, submission: str, failure: BaseException | None
) -> ExitStatus:
    """Return the end of an exited process; status 0 counts only if the driver said it stopped."""
    ours = seen.of(submission)
    if ours is None and (superseded := _superseded(seen, submission)) is not None:
        return superseded
    if failure is not None:
        found, refused = _in_words(failure, "the driver" if ours is not None else "the app")
        found = f"{ours.reason} ({found})" if ours is not None and ours.reason else found
        is_superseded = ours is not None and ours.end == "superseded"
        how = ExitKind.SUPERSEDED if is_superseded else ExitKind.FAILED
        return ExitStatus(how, found, refused or _hopeless(ours))
    if ours is None:
        return ExitStatus(
            ExitKind.FAILED,
            "it exited with 0, but wrote no heartbeat of this start. Is the operator's "
            "checkpoint_location the one that the app gives to start_exactly_once?",
        )
    if ours.phase == "stopped":
        return _as_it_says(ours)
    return ExitStatus(
        ExitKind.FAILED,
        f"it exited with 0, but its last heartbeat (batch {ours.batch_id}) says {ours.phase!r}, "
        "expected 'stopped': the query ended by accident.",
    )


def _as_it_says(ours: Heartbeat) -> ExitStatus:
    found = f"driver {ours.application_id} on {ours.host}, last batch {ours.batch_id}"
    found += f": {ours.reason}" if ours.reason else ""
    if ours.phase == "stopped":
        if ours.end != "drained":
            return ExitStatus(ExitKind.SUCCEEDED, found)
        return ExitStatus(
            ExitKind.CALLED_OFF if ours.drained_by == BY_AIRFLOW else ExitKind.DRAINED, found
        )
    how = ExitKind.SUPERSEDED if ours.end == "superseded" else ExitKind.FAILED
    return ExitStatus(how, found, _hopeless(ours))


def _in_words(failure: BaseException, who: str) -> tuple[str, bool]:
    """Describe how a process failed in a few words, and whether it refuses to run as it is.

    ``SparkSubmitHook`` raises an error with a command line of kilobytes and the status in it.
    """
    found = _STATUS.search(str(failure))
    if found is None:
        return one_line(str(failure))[:_SHOWN], False
    status = int(found[1])
    if status == REFUSED_STATUS:
        return f"{who} exited with status {status}: it refuses to run as it is; see its log", True
    killed = -status if status < 0 else status - _KILLED
    if killed in set(signal.Signals):
        return f"{who} was killed (signal {killed}): exit status {status}", False
    return f"{who} exited with status {status}; see its log", False


def _hopeless(ours: Heartbeat | None) -> bool:
    """Whether the driver has failed with an error that no restart heals."""
    return ours is not None and ours.phase == "failed" and ours.restart_heals is False


def _not_ours(
    seen: HeartbeatObservation, submission: str, patience: Patience, since_start_s: float
) -> ExitStatus | None:
    if (superseded := _superseded(seen, submission)) is not None:
        return superseded
    if seen.heartbeat is not None and seen.heartbeat.submission == submission:
        if seen.silent_s < patience.silent_s:
            return None
        return ExitStatus(
            ExitKind.SUPERSEDED, f"a driver took term {seen.term}, and has said nothing since"
        )
    if since_start_s < patience.first_beat_s:
        return None
    return ExitStatus(
        ExitKind.NEVER_SEEN,
        f"none within {patience.first_beat_s:.0f} s of the submit. Look whether the cluster has "
        "resources for it, whether the driver reaches the checkpoint, and into its log.",
    )


def _superseded(seen: HeartbeatObservation, submission: str) -> ExitStatus | None:
    newer = seen.current
    if newer is None or newer.submission == submission or not seen.moved:
        return None
    whose = f", started by {newer.started_by}" if newer.started_by is not None else ""
    who = f"driver {newer.application_id} (term {newer.term}) on {newer.host}{whose}"
    return ExitStatus(ExitKind.SUPERSEDED, f"{who} runs the checkpoint now")


# --- adoption -------------------------------------------------------------------------------------
# Whether a try starts an app or takes over one that lives.
#
# =============================================  ==================  =========
# the newest driver                              whose               action
# =============================================  ==================  =========
# there was none                                                     START
# has said that it ended                         anybody's           START
# its process is gone                            anybody's           START
# stood still for long enough                    anybody's           START
# not seen for long enough to tell               anybody's           LOOK
# beats, and is asked to drain                   anybody's           WAIT
# beats                                          of the same task    ADOPT
# beats                                          another's           REFUSE
# =============================================  ==================  =========
#
# The same task means the tries of one task instance: same DAG, task, map index and run. An app that
# was started by hand is another's.


class NextAction(enum.Enum):
    """The next action of a try towards the newest driver."""

    START = "start"
    LOOK = "look again"
    WAIT = "wait"
    ADOPT = "adopt"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class AdoptionDecision:
    """The next action of a try, and the reason in one sentence."""

    action: NextAction
    reason: str


def choose(
    seen: HeartbeatObservation, identity: StartedBy, drain: DrainRequest | None
) -> AdoptionDecision:
    """Decide what a try of ``identity`` does next, by the heartbeat and the drain request."""
    if seen.heartbeat is None and seen.term == 0:
        return AdoptionDecision(NextAction.START, "no driver has ever run here")
    if seen.has_ended:
        return AdoptionDecision(NextAction.START, f"{_driver(seen)} has ended")
    if seen.gone is not None:
        return AdoptionDecision(NextAction.START, f"{_driver(seen)} has ended: {seen.gone}")
    if seen.silent_s >= MISSED_BEATS * seen.interval_s:
        return AdoptionDecision(
            NextAction.START, f"{_driver(seen)} was seen to be silent for {seen.silent_s:.0f} s"
        )
    living = seen.living
    if living is None:
        return AdoptionDecision(
            NextAction.LOOK, f"whether {_driver(seen)} is alive shows in a moment"
        )
    if drain is not None and drain.is_for(living.term, living.submission):
        return AdoptionDecision(
            NextAction.WAIT, f"{_driver(seen)} was asked by {drain.requested_by} to drain, and does"
        )
    if identity.is_same_task(living.started_by):
        return AdoptionDecision(
            NextAction.ADOPT, f"{_driver(seen)}, of an earlier try of this task, is alive"
        )
    whose = str(living.started_by) if living.started_by is not None else "nobody in Airflow"
    return AdoptionDecision(
        NextAction.REFUSE,
        f"{_driver(seen)}, batch {living.batch_id}, phase {living.phase!r}, is alive, and was "
        f"started by {whose}",
    )


def _driver(seen: HeartbeatObservation) -> str:
    beat = seen.current
    if beat is None:
        return f"the driver of term {seen.term}"
    return f"driver {beat.application_id} (process {beat.pid} on {beat.host})"
