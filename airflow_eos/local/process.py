"""Programs that end with the process that started them, by a guard, and the ends of their logs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_GUARD = Path(__file__).parent / "guard.py"
_TAIL = 2000  # characters of a log
_ENDS_WITHIN_S = 10.0


class Embedded(ABC):
    """A server that runs while its ``with`` block does."""

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
        """Start the server; return when it answers."""

    @abstractmethod
    def close(self) -> None:
        """End the server and remove its data. Closing twice is harmless."""


def guarded(
    command: Sequence[str], *, folder: Path, log: Path, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program that ends with this process, whatever ends this process.

    Args:
        command: the program and its arguments.
        folder: the folder that the guard removes when this process is gone.
        log: the file that gets the program's output.
        env: the program's whole environment, instead of this process's.
    """
    guard = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), str(folder)]
    log.parent.mkdir(parents=True, exist_ok=True)  # later runs prune logs, also of a live one
    with log.open("ab") as out:
        return subprocess.Popen(
            [*guard, *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,  # Ctrl-C in the terminal ends us, not the server
        )


def run_guarded(command: Sequence[str], *, folder: Path, log: Path, env: Mapping[str, str]) -> int:
    """Run a program to its end, and end its children; return its exit status.

    See :func:`guarded`.
    """
    started = guarded(command, folder=folder, log=log, env=env)
    try:
        return started.wait()
    except BaseException:  # Ctrl-C: Spark removes its temporary folders if it may end cleanly
        started.terminate()
        with suppress(subprocess.TimeoutExpired):
            started.wait(_ENDS_WITHIN_S)
        raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)  # the JVM, where the driver was killed


def tail(log: Path) -> str:
    """Return the end of a server's log."""
    if not log.exists():
        return "(no log)"
    return log.read_text(encoding="utf-8", errors="replace")[-_TAIL:]
