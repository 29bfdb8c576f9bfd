"""An app of Spark as a process of a history, with the JVM that it started."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import IO

import psutil

from tests.chaos.processes import Process, running
from tests.chaos.settings import DriverSettings

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class SparkProcess(Process):
    """The app and its JVM; Python workers are children of the JVM."""

    def __init__(
        self, process: subprocess.Popen[str], settings: DriverSettings, log: IO[str]
    ) -> None:
        self.settings = settings
        self.pid = process.pid
        self._process = process
        self._log = log
        running.add(self)

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def signal(self, name: str, *, group: bool) -> None:
        number = signal.Signals[f"SIG{name}"]
        if not group:
            self._process.send_signal(number)  # nothing where it has ended
            return
        for process in self._family():
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def executors(self) -> list[psutil.Process]:
        """JVMs of a local cluster."""
        return [each for each in self._family() if _EXECUTOR in _command(each)]

    def end(self) -> None:
        super().end()
        self._log.close()

    def _family(self) -> list[psutil.Process]:
        """All of its session: the JVM outlives an app that is killed, for a moment."""
        return [each for each in psutil.process_iter() if _session(each.pid) == self.pid]


def _session(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, ValueError):
        return 0


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
