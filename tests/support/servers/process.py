"""A server of the tests that is one process: a time to come up, kills, and its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.process import Embedded, guarded, tail

_READY_SECONDS = 60.0  # on a machine that stands still for a while now and then
_POLL = 0.05


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
        # A second one would die at the first one's port, and the first one answer in its place.
        assert self._process is None or self._process.poll() is not None, "it runs already"
        log = folder / "log"
        self._process = guarded(command, folder=folder, log=log)
        called = Path(command[0]).name
        try:
            wait_until_ready(self._process, answers, called=called, log=log, seconds=seconds)
        except BaseException:  # Ctrl-C too must leave nothing behind
            self.kill()
            raise


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
