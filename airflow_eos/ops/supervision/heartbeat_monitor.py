"""Observes a heartbeat by the reader's own clock: whether it changes, how long it stands still.

The times in a heartbeat are by the driver's clock; clocks differ, and machines sleep. So they are
not used: a driver lives whose heartbeat was *seen* to change between two looks, and is dead once
the heartbeat was seen to stand still for long enough. A look without an answer proves neither.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import obstore.exceptions as failures

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    Heartbeat,
    drain_of,
    newest_term,
    read_heartbeat,
    request_drain,
)
from airflow_eos.core.checkpoint.drain import BY_AIRFLOW, NOT_FOR_GOOD
from airflow_eos.core.checkpoint.heartbeat import ENDED, STARTED_BY, StartedBy, beat_interval
from airflow_eos.core.checkpoint.liveness import (
    SignOfLife,
    Standstill,
    last_word,
    of_the_newest,
    process_state,
)
from airflow_eos.errors import AppRefusedError, CheckpointFormatError, EosError, StoreError

log = logging.getLogger(__name__)

_REFUSALS = (failures.PermissionDeniedError, failures.UnauthenticatedError, PermissionError)

REFUSED_AT_MOST = 3
"""Looks that a store may refuse one after another: keys expire, and rights take time to spread."""

_UNREADABLE = "a heartbeat that cannot be read"


@dataclass(frozen=True, slots=True)
class HeartbeatObservation(SignOfLife):
    """A sign of life compared with the previous ones.

    Attributes:
        moved: whether the heartbeat was seen to change.
        silent_s: for how many seconds the heartbeat and the term were seen to stand still.
    """

    moved: bool = False
    silent_s: float = 0.0

    def of(self, submission: str) -> Heartbeat | None:
        """Return the newest driver's heartbeat, where that is of this start of the app."""
        current = self.current
        return current if current is not None and current.submission == submission else None

    @property
    def living(self) -> Heartbeat | None:
        """The newest driver's heartbeat, where it was seen to change, and no end of it is known."""
        return self.current if self.moved and not self.has_ended and self.gone is None else None


def is_refusal(error: BaseException) -> bool:
    """Whether a store refused access: asking again with these keys gets the same answer."""
    return isinstance(error, StoreError) and isinstance(error.__cause__, _REFUSALS)


def read_pulse(store: CheckpointStore) -> tuple[int, Heartbeat | None, str | None]:
    """Read the newest term and the last heartbeat, and judge whether its process is gone.

    One listing and one read; a driver elsewhere is gone once it was silent for long.

    Raises:
        StoreError: the store gave no answer, which says nothing of the driver.
        CheckpointFormatError: the heartbeat is foreign, or of a newer release.
    """
    term = newest_term(store)
    return term, *last_word(store, read_heartbeat(store), noted=False)


class HeartbeatReading:
    """Reads the heartbeat of one checkpoint again and again; for one thread at a time.

    Args:
        every_s: seconds between two looks, as the caller means to look.
        reopen: opens the store with current keys, once the store has refused the former ones.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        every_s: float = 1.0,
        reopen: Callable[[], CheckpointStore] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        """The checkpoint's store, as it was opened last."""
        self._reopen = reopen
        self._refused = 0
        self._unanswered = Standstill(clock)
        self._every_s = every_s
        self._silence = Standstill(clock)
        self._last: HeartbeatObservation | None = None

    def look(self) -> HeartbeatObservation:
        """Read the heartbeat, and compare it with the looks before.

        Raises:
            StoreError, CheckpointFormatError: see :func:`read_pulse`.
        """
        try:
            found = read_pulse(self.store)
        except (CheckpointFormatError, StoreError) as error:
            self.no_answer()
            self._unanswered.lasts_s(
                _UNREADABLE if isinstance(error, CheckpointFormatError) else ""
            )
            self._refused = self._refused + 1 if is_refusal(error) else 0
            if self._refused and self._reopen is not None:
                try:
                    self.store = self._reopen()
                except Exception:  # of any connection type: the old keys are tried again
                    log.exception("The checkpoint could not be opened again")
            raise
        self._refused = 0
        self._unanswered.lasts_s(None)
        return self.hold(*found)

    def look_if_it_answers(self, *, refused: bool) -> HeartbeatObservation | None:
        """Return :meth:`look`, or None where the store does not answer, which says nothing.

        Args:
            refused: raise where the store refuses access :data:`REFUSED_AT_MOST` times in a row, or
                the heartbeat cannot be read for so long that a driver that lives had written
                another one. False where the driver is seen to run.
        """
        try:
            return self.look()
        except CheckpointFormatError as error:
            written_anew_s = REFUSED_AT_MOST * beat_interval(self.store.location).total_seconds()
            if refused and self._unanswered.lasts_s(_UNREADABLE) >= written_anew_s:
                raise
            log.warning("The heartbeat cannot be read; asking again: %s", error)
            return None
        except StoreError as error:
            if refused and self._refused >= REFUSED_AT_MOST:
                raise
            log.warning("The checkpoint did not answer; asking again: %s", error)
            return None

    def hold(
        self, term: int, heartbeat: Heartbeat | None, gone: str | None = None
    ) -> HeartbeatObservation:
        """Compare what :func:`read_pulse` has just read with the looks before."""
        last, current = self._last, of_the_newest(heartbeat, term)
        moved = last is not None and heartbeat != last.heartbeat and current is not None
        # A heartbeat of a former term that still changes says nothing of the newest driver.
        still = last is not None and term == last.term and not moved
        at_most_s = 0.0 if last is None else max(last.interval_s, 2 * self._every_s)
        self._last = HeartbeatObservation(
            heartbeat,
            term,
            moved=moved or (still and last is not None and last.moved),
            silent_s=self._silence.count(still=still, at_most_s=at_most_s),
            gone=None if current is None else gone,  # a former driver's is another process
        )
        return self._last

    def forget(self) -> None:
        """Forget all looks: they say nothing of an app that is about to be started."""
        self._last = None
        self._silence.forget()

    def no_answer(self) -> None:
        """Count silence anew: the driver may not have reached the store either."""
        self._silence.forget()


# --- stopping -------------------------------------------------------------------------------------


_MANAGER_S = 60.0
_YARN = ("spark-class", "org.apache.hadoop.yarn.client.cli.ApplicationCLI", "application")
_APPLICATION = re.compile(r"application_[0-9]{1,20}_[0-9]{1,20}", re.ASCII)
_SUBMISSION = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?", re.ASCII)
"""A submission that may be part of a pod's name: above all, one that is no pattern."""
_SHOWN = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterManager:
    """The cluster manager of a task's own connection, and the names of its drivers there.

    Any writer of a checkpoint can say in the heartbeat where its driver runs. That place must equal
    this one, and no other manager is ever asked: a request carries the worker's login.

    Attributes:
        master: Spark's master URL, of the connection.
        is_cluster: whether drivers run in the cluster (deploy mode ``cluster``), not on the worker.
    """

    master: str = "local"
    is_cluster: bool = False
    namespace: str = "default"

    @property
    def is_yarn(self) -> bool:
        """Whether YARN is the manager, by the test that ``SparkSubmitHook`` uses."""
        return "yarn" in self.master

    @property
    def is_kubernetes(self) -> bool:
        """Whether Kubernetes is the manager."""
        return "k8s" in self.master

    def pod_of(self, submission: str) -> str:
        """Return the name of the driver's pod of this start."""
        return f"eos-{submission}-driver"

    def tag_of(self, submission: str) -> str:
        """Return the YARN tag of this start."""
        return f"eos-{submission}"

    def differs_from(self, heartbeat: Heartbeat) -> str | None:
        """Return how the place of a heartbeat's driver differs from this manager, or None."""
        submission = heartbeat.submission
        if submission is None or not _SUBMISSION.fullmatch(submission):
            return "it names no start of a task"
        said: list[tuple[str, object, object]] = [
            ("deploy mode cluster", heartbeat.deploy_mode == "cluster", self.is_cluster)
        ]
        if self.is_cluster:
            said.append(("master", _address(heartbeat.master), _address(self.master)))
        if self.is_cluster and self.is_kubernetes:
            said.append(("namespace", heartbeat.namespace, self.namespace))
            said.append(("pod", heartbeat.host, self.pod_of(submission)))
        for what, theirs, ours in said:
            if theirs != ours:
                return f"its {what} is {str(theirs)[:_SHOWN]!r}, and this task's {str(ours)!r}"
        return None


def _address(master: str) -> str:
    """Normalise a master as Spark does: an API server without a scheme is ``https``."""
    scheme, found, rest = master.partition("://")
    if scheme != "k8s" or not found:
        return master
    return f"k8s://{rest if '://' in rest else f'https://{rest}'}".rstrip("/")


def ask_to_drain(store: CheckpointStore, submission: str, reason: str) -> bool:
    """Write a drain request for a start of the app, begun or not; False where that failed."""
    try:
        request_drain(store, requested_by=BY_AIRFLOW, reason=reason, submission=submission)
    except EosError as error:
        log.warning("The drain request could not be written: %s", error)
        return False
    return True


def require_not_drained(store: CheckpointStore, submission: str) -> None:
    """Refuse to go on where a person has asked this start of the app to end, and it failed.

    A driver removes the requests to other drivers before it beats: one that stands is for this
    driver, also where that has not beaten, unless it is for the one that beat last. A store that
    does not answer says nothing.

    Raises:
        AppRefusedError: a person has asked that, or the request cannot be read.
    """
    try:
        beat = read_heartbeat(store)
    except EosError as error:
        log.warning("Whether somebody has asked the app to drain cannot be told: %s", error)
        return
    try:
        request = drain_of(store, beat, known=True)
    except StoreError as error:
        log.warning("Whether somebody has asked the app to drain cannot be told: %s", error)
        return
    except CheckpointFormatError as error:
        raise AppRefusedError(str(error)) from error
    if request is None or (
        beat is not None
        and beat.submission != submission
        and request.is_for(beat.term, beat.submission)
    ):
        return  # there is none, or it is for the driver before
    if request.requested_by not in NOT_FOR_GOOD:
        raise AppRefusedError(
            f"{request.requested_by} asked the app to drain ({request.reason}), and it failed. So "
            "it is not started again. Clear the task to start it: that recovers what is open."
        )


def end_by_force(
    store: CheckpointStore, submission: str, reason: str, manager: ClusterManager
) -> str:
    """Kill the driver of this start, wherever it is, without waiting; return what was done.

    The driver is asked to drain, too, and first: it may be out of reach from here, or this process
    may end before the kill. A driver that comes back into reach finds the request, and ends.
    """
    asked = ask_to_drain(store, submission, reason)
    done = kill_if_it_beats(store, submission, manager)
    return f"{done}; {'it was asked to drain, too' if asked else 'it could not be asked to drain'}"


def is_known_gone(store: CheckpointStore, submission: str) -> bool:
    """Whether the process of this start, if it beat last, is seen from here to be gone."""
    try:
        beat = read_heartbeat(store)
    except EosError:
        return False
    return beat is not None and beat.submission == submission and process_state(beat) == "gone"


def kill_if_it_beats(store: CheckpointStore, submission: str, manager: ClusterManager) -> str:
    """Kill the driver of this start, wherever it is, if it beat last; return what was done.

    Where the store does not answer, the driver is left alone.
    """
    try:
        beat = read_heartbeat(store)
    except EosError as error:
        return f"it cannot be found: {error}"
    if beat is None or beat.submission != submission or beat.phase in ENDED:
        return "it has ended, or has not begun to beat, or another one has taken its place"
    return kill_elsewhere(beat, manager)


def kill_elsewhere(heartbeat: Heartbeat, manager: ClusterManager) -> str:
    """Kill a driver that is no child of this process, without draining; return what was done.

    Recovery ends the transactions it leaves open. Where nothing can be done from here, the answer
    says so: the next start then supersedes the driver, so that it delivers nothing any more.

    Args:
        heartbeat: heartbeat of a start of this task, which the caller has made sure of.
        manager: the manager this task submits to; asked only where the heartbeat names the same.
    """
    differs = manager.differs_from(heartbeat)
    if differs is not None:
        return f"nobody was asked to end the driver that the heartbeat names: {differs}"
    submission = heartbeat.submission or ""  # never empty: `differs_from` has checked it
    if not manager.is_cluster:
        return _kill_here(heartbeat, submission)
    if manager.is_yarn:
        return _kill_on_yarn(heartbeat, manager.tag_of(submission))
    pod = f"{manager.namespace}:{manager.pod_of(submission)}"
    return _asked(["spark-submit", "--master", manager.master, "--kill", pod])[1]


def _kill_on_yarn(heartbeat: Heartbeat, tag: str) -> str:
    """Kill the YARN application of a heartbeat if it has the start's tag: an id may be anybody's.

    Runs the class behind ``yarn application``, from the jars that spark-submit has anyway.
    """
    listed, said = _asked([*_YARN, "-list", "-appTags", tag])
    found = set(_APPLICATION.findall(listed))
    if heartbeat.application_id not in found:
        named = heartbeat.application_id[:_SHOWN]
        return f"nobody was asked to end {named!r}: YARN runs no such one tagged {tag} ({said})"
    return _asked([*_YARN, "-kill", heartbeat.application_id])[1]


def _kill_here(heartbeat: Heartbeat, submission: str) -> str:
    """Kill a client-mode driver by its process id, if it runs here and is of this start."""
    who = f"process {heartbeat.pid} on {heartbeat.host[:_SHOWN]!r}"
    if process_state(heartbeat) == "gone":
        return f"{who} has ended already"
    if heartbeat.host != socket.gethostname():
        return f"{who} is on another machine: it cannot be ended from here"
    if not _is_that(heartbeat.pid, submission):
        return f"{who} is not the driver any more, or not ours to look at"
    try:
        os.kill(heartbeat.pid, signal.SIGKILL)
    except ProcessLookupError:
        return f"{who} has ended already"
    except PermissionError:
        return f"{who} belongs to another user"
    return f"{who} was killed"


def _is_that(pid: int, submission: str) -> bool:
    """Whether the environment of process ``pid`` names this start of the app."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, of another user, or no Linux
        return False
    name = f"{STARTED_BY}=".encode()
    told = [each.removeprefix(name) for each in environment if each.startswith(name)]
    try:
        started = StartedBy.of_text(told[0].decode()) if told else None
    except (EosError, UnicodeDecodeError):
        return False
    return started is not None and started.submission == submission


def _asked(command: list[str]) -> tuple[str, str]:
    """Run a command of the cluster manager; return its output, and a sentence on the outcome."""
    asked = " ".join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,  # a task's own stdin is Airflow's socket
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MANAGER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"`{asked}` could not be run: {error}"
    said = (done.stderr or done.stdout).strip().splitlines()
    last = f": {said[-1]}" if said else ""
    return done.stdout, f"`{asked}` ended with {done.returncode}{last}"
