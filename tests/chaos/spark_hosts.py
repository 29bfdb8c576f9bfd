"""An app of Spark as a process of a history, and the JVMs that outlive the drivers in them."""

from __future__ import annotations

import queue
import signal
import subprocess
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import psutil

from tests.chaos.processes import Process, running
from tests.chaos.settings import DriverSettings
from tests.support.host import Host
from tests.support.stores import Where

_USES = 15
"""Histories after which a pair is started anew: what dead drivers leave adds up."""


@dataclass
class Pair:
    """The two of one history at a time."""

    one: Host
    other: Host
    uses: int = 0

    def door(self, name: str) -> dict[str, str]:
        """What tells the driver of this name where to go."""
        return self._of(name).door()

    def lose(self, name: str) -> None:
        """End what the driver of this name has left there."""
        self._of(name).rest()

    def rest(self) -> None:
        """End whatever goes on in them."""
        self.one.rest()
        self.other.rest()

    def _of(self, name: str) -> Host:
        return self.one if name.startswith(("driver", "final")) else self.other


class Hosts:
    """A context manager: as many pairs as there are histories at a time."""

    def __init__(self, pairs: int, where: Where) -> None:
        self._pairs = pairs
        self._where = where
        self._free: queue.Queue[Pair] = queue.Queue()
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        for _ in range(self._pairs):
            self._free.put(self._started())
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def take(self) -> Pair:
        return self._free.get()

    def give_back(self, pair: Pair) -> None:
        """Once it rests; one that cannot, or was used often, is replaced."""
        pair.uses += 1
        try:
            pair.rest()
        except (OSError, AssertionError):
            pair.uses = _USES
        if pair.uses >= _USES:
            for host in (pair.one, pair.other):
                host.close()
            pair = self._started()
        self._free.put(pair)

    def _started(self) -> Pair:
        return Pair(self._host(), self._host())

    def _host(self) -> Host:
        made = Host(jars=self._where.jars, conf=self._where.spark_conf)
        return self._resources.enter_context(closing(made))


# --- spark process --------------------------------------------------------------------------------
# An app of Spark as a process of a history, with the JVM that it started.


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
