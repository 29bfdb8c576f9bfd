"""A broker in the background, which outlives the command that started it, until it is stopped.

The daemon is a Python process with an ``EmbeddedKafka``. While it runs, it holds a lock on a file:
by that it is known to run, and not by a pid, which the system may have given to another process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import platformdirs

from airflow_eos.errors import EosError, LocalEnvironmentError
from airflow_eos.local.broker import AT_FULL_SPEED, EmbeddedKafka

PORT = 9092
"""The broker's port in the tutorial; another port is used where this one is taken."""
_START_SECONDS = 90.0
_STOP_SECONDS = 15.0
_POLL = 0.1
_LOOK_SECONDS = 1.0  # between two checks that the broker runs


class RunningBroker(msgspec.Struct, frozen=True):
    """The running broker in the background.

    Attributes:
        pid: the daemon's process id.
        bootstrap_servers: address for clients.
        log_folder: where the broker's logs are.
        started_at: start time, in seconds since the epoch.
    """

    pid: int
    bootstrap_servers: str
    log_folder: str
    started_at: float


def status() -> RunningBroker | None:
    """Return the broker in the background; None where none runs, or it is not ready yet."""
    if not _held():
        return None
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode(_state_file().read_bytes(), type=RunningBroker)
    return None


def start() -> RunningBroker:
    """Start a broker in the background and wait until it is ready; return one that runs already.

    Raises:
        LocalEnvironmentError: the broker did not come up.
    """
    found = status()
    if found is not None:
        return found
    _folder().mkdir(parents=True, exist_ok=True)
    log = _folder() / "daemon.log"
    daemon = _spawn(log)
    # A daemon that finds another one starting ends at once: then wait for the other one.
    try:
        _wait(
            lambda: status() is not None or (daemon.poll() is not None and not _held()),
            _START_SECONDS,
            f"the broker was not ready after {_START_SECONDS:.0f} s, and was ended; its daemon's "
            f"output is in {log}. The machine may be too busy: try again",
        )
    except BaseException:  # Ctrl-C too: a broker must not come up after its command has ended
        daemon.terminate()
        raise
    found = status()
    if found is None:
        reason = log.read_text(encoding="utf-8", errors="replace").strip()
        raise LocalEnvironmentError(reason or "the broker's daemon ended without a word")
    return found


def stop() -> bool:
    """End the broker in the background; its data stays.

    Returns:
        False where no broker ran.

    Raises:
        LocalEnvironmentError: the broker did not end, or did not come up first.
    """
    _wait(
        lambda: status() is not None or not _held(),
        _START_SECONDS,
        f"a broker is coming up, and was not ready after {_START_SECONDS:.0f} s: try again",
    )
    found = status()
    if found is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(found.pid, signal.SIGTERM)
    _wait(
        lambda: not _held(),
        _STOP_SECONDS,
        f"the broker (process {found.pid}) has not ended after {_STOP_SECONDS:.0f} s: "
        f"kill {found.pid}",
    )
    return True


def serve() -> None:
    """Run a broker until SIGTERM, as the daemon.

    Raises:
        LocalEnvironmentError: the broker does not come up, or has died.
    """
    with _lock_file().open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another daemon was faster; the command finds its broker
        # Of a daemon that was killed, or went down with its machine: its pid may be anybody's now.
        _state_file().unlink(missing_ok=True)
        kafka = EmbeddedKafka(java_options=AT_FULL_SPEED, port=PORT, folder=data_folder())
        with kafka as broker:
            # Until here SIGTERM ends this process, and then the guard ends the broker.
            told = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: told.set())
            with _published(broker):
                while not told.wait(_LOOK_SECONDS):
                    if not broker.running:
                        raise LocalEnvironmentError(
                            f"the broker has died; its logs are in {broker.log_folder}. "
                            "`airflow-eos broker start` starts it again, with its data"
                        )


def _spawn(log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "airflow_eos.local.daemon"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",  # so that the daemon keeps no file system busy
        )


@contextlib.contextmanager
def _published(broker: EmbeddedKafka) -> Iterator[None]:
    state = RunningBroker(
        os.getpid(), broker.bootstrap_servers, str(broker.log_folder), time.time()
    )
    draft = _state_file().with_suffix(".tmp")
    draft.write_bytes(msgspec.json.encode(state))
    draft.replace(_state_file())  # atomic: a reader sees the whole state or none
    try:
        yield
    finally:
        _state_file().unlink(missing_ok=True)


def _held() -> bool:
    try:
        with _lock_file().open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _wait(condition: Callable[[], bool], seconds: float, message: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise LocalEnvironmentError(message)
        time.sleep(_POLL)


def data_folder() -> Path:
    """Return the folder of the broker's data, which stays from start to start."""
    return _folder() / "broker-data"


def _folder() -> Path:
    return platformdirs.user_state_path("airflow-eos")


def _lock_file() -> Path:
    return _folder() / "broker.lock"


def _state_file() -> Path:
    return _folder() / "broker.json"


if __name__ == "__main__":
    try:
        serve()
    except (EosError, OSError) as error:
        sys.exit(str(error))
