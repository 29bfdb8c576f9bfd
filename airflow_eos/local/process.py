"""What the embedded servers have in common: a guard, a time to come up, and their end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from airflow_eos.errors import LocalEnvironmentError

_GUARD = Path(__file__).parent / "guard.py"
_READY_SECONDS = 60.0  # on a machine that stands still for a while now and then
_POLL = 0.05
_TAIL = 2000  # characters of a log


class Embedded(ABC):
    """A server that runs while a block does."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def start(self) -> None:
        """Start it; returns when it answers."""

    @abstractmethod
    def close(self) -> None:
        """End it and remove its data. Closing twice is harmless."""


class EmbeddedProcess(Embedded):
    """A server of one process, which may be killed and started again on its data.

    Attributes:
        port: where it listens, the same after :meth:`kill` and :meth:`start`; 0 before the first.
    """

    def __init__(self) -> None:
        self.port = 0
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """End it with SIGKILL, guard and all; its data stays for :meth:`start`."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it and remove its data. Closing twice is harmless."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _run(
        self,
        command: Sequence[str],
        folder: Path,
        answers: Callable[[], bool],
        seconds: float = _READY_SECONDS,
    ) -> None:
        """Return when it answers; what has not in time is ended (LocalEnvironmentError)."""
        log = folder / "log"
        self._process = guarded(command, folder=folder, log=log)
        called = Path(command[0]).name
        try:
            wait_until_ready(self._process, answers, called=called, log=log, seconds=seconds)
        except BaseException:  # Ctrl-C too must leave nothing behind
            self.kill()
            raise


def guarded(
    command: Sequence[str], *, folder: Path, log: Path, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program that ends with this process, whatever ends that one.

    Args:
        command: the program and its arguments.
        folder: removed where nobody else is left to do it.
        log: gets what it says.
        env: its whole environment, in the place of this process's.
    """
    guard = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), str(folder)]
    log.parent.mkdir(parents=True, exist_ok=True)  # later runs prune logs, also of one that lives
    with log.open("ab") as out:
        return subprocess.Popen(
            [*guard, *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,  # Ctrl-C in the terminal is for us, not for the server
        )


def wait_until_ready(
    process: subprocess.Popen[bytes],
    answers: Callable[[], bool],
    *,
    called: str,
    log: Path,
    seconds: float = _READY_SECONDS,
) -> None:
    """Look until it answers.

    Raises:
        LocalEnvironmentError: it ended, or does not answer in time; with what it said last.
    """
    deadline = time.monotonic() + seconds
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            raise LocalEnvironmentError(
                f"{called} ended, or was not ready in {seconds:.0f} s:\n{tail(log)}\nTry "
                "again; the machine may be too busy."
            )
        time.sleep(_POLL)


def tail(log: Path) -> str:
    """What a server said last."""
    if not log.exists():
        return "(no log)"
    return log.read_text(encoding="utf-8", errors="replace")[-_TAIL:]
