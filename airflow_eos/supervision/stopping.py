"""Stop one app: ask it to drain, then end its process by whatever way there is, and say which."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from airflow_eos.checkpoint import drain_of, read_heartbeat, request_drain
from airflow_eos.checkpoint.liveness import BY_AIRFLOW, ENDED
from airflow_eos.checkpoint.starter import STARTED_BY
from airflow_eos.errors import AppRefusedError, EosError

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore, Heartbeat

log = logging.getLogger(__name__)

Cancel = Literal["drain", "kill", "leave"]
"""What becomes of the app when its task is stopped: end its batch first, end at once, go on."""

_MANAGER_S = 60.0
_YARN = ("spark-class", "org.apache.hadoop.yarn.client.cli.ApplicationCLI", "application")


def ask_to_drain(store: CheckpointStore, submission: str, reason: str) -> bool:
    """Ask this start of the app, whether its driver has begun or not; False where that failed."""
    try:
        request_drain(store, requested_by=BY_AIRFLOW, reason=reason, submission=submission)
    except EosError as error:
        log.warning("The drain request could not be written: %s", error)
        return False
    return True


def require_not_drained(store: CheckpointStore, submission: str) -> None:
    """Refuse to go on where a person has asked this start of the app to end, and it failed.

    A driver removes what was asked of others before it beats: what stands was asked of it. A store
    that does not answer says nothing.

    Raises:
        AppRefusedError: so it is.
    """
    try:
        beat = read_heartbeat(store)
        ours = beat is not None and beat.submission == submission
        request = drain_of(store, beat) if ours else None
    except EosError as error:
        log.warning("Whether somebody has asked the app to drain cannot be told: %s", error)
        return
    if request is not None and request.requested_by != BY_AIRFLOW:
        raise AppRefusedError(
            f"{request.requested_by} asked the app to drain ({request.reason}), and it failed. So "
            "it is not started again. Clear the task to start it: that recovers what is open."
        )


def end_by_force(store: CheckpointStore, submission: str, reason: str) -> str:
    """End this start of the app, wherever it is, without waiting; returns what was done.

    It is asked to drain, too, and first: nobody may reach it from here, nor this process live until
    somebody has. Where it comes back from out of reach it finds the request, and ends.
    """
    asked = ask_to_drain(store, submission, reason)
    done = kill_if_it_beats(store, submission)
    return f"{done}; {'it was asked to drain, too' if asked else 'it could not be asked to drain'}"


def kill_if_it_beats(store: CheckpointStore, submission: str) -> str:
    """End the driver of this start, wherever it is, if it is the one that beat last.

    Returns what was done. A store that does not answer leaves it alone.
    """
    try:
        beat = read_heartbeat(store)
    except EosError as error:
        return f"it cannot be found: {error}"
    if beat is None or beat.submission != submission or beat.phase in ENDED:
        return "it has ended, or has not begun to beat, or another one has taken its place"
    return kill_elsewhere(beat)


def kill_elsewhere(heartbeat: Heartbeat) -> str:
    """End a driver that is no child of this process, without asking it; returns what was done.

    What it leaves open is for recovery to end. Where nothing can be done from here, that is said:
    the next start then supersedes it, so that it delivers nothing any more.
    """
    if heartbeat.deploy_mode != "cluster":
        return _kill_here(heartbeat)
    if heartbeat.master.startswith("yarn"):
        # What `yarn application -kill` runs, from the jars that spark-submit has anyway.
        return _ask_manager([*_YARN, "-kill", heartbeat.application_id])
    if heartbeat.master.startswith("k8s"):
        # The pod's host name is its name. Without a namespace spark-submit takes that of the
        # current context: a pod that is in another one is not found, and goes on.
        pod = ":".join(filter(None, [heartbeat.namespace, heartbeat.host]))
        return _ask_manager(["spark-submit", "--master", heartbeat.master, "--kill", pod])
    return f"no way is known to end a driver of master {heartbeat.master!r} from here"


def _kill_here(heartbeat: Heartbeat) -> str:
    """A driver in client mode, by its process id, if it runs on this machine and is that one."""
    who = f"process {heartbeat.pid} on {heartbeat.host}"
    if heartbeat.host != socket.gethostname():
        return f"{who} is on another machine: it cannot be ended from here"
    if heartbeat.started_by is None or not _is_that(heartbeat):
        return f"{who} is not the driver any more, or not ours to look at"
    try:
        os.kill(heartbeat.pid, signal.SIGKILL)
    except ProcessLookupError:
        return f"{who} had ended already"
    except PermissionError:
        return f"{who} belongs to another user"
    return f"{who} was killed"


def _is_that(heartbeat: Heartbeat) -> bool:
    """Whether the process was started with the identity that the heartbeat names."""
    assert heartbeat.started_by is not None  # noqa: S101 - asked before
    try:
        environment = Path(f"/proc/{heartbeat.pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, of another user, or no Linux
        return False
    return f"{STARTED_BY}={heartbeat.started_by.as_text()}".encode() in environment


def _ask_manager(command: list[str]) -> str:
    asked = " ".join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,  # a task's is Airflow's socket
            capture_output=True,
            text=True,
            timeout=_MANAGER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"`{asked}` could not be run: {error}"
    said = (done.stderr or done.stdout).strip().splitlines()
    return f"`{asked}` ended with {done.returncode}" + (f": {said[-1]}" if said else "")
