"""One program of ``benchmarks.state``: its topics, its process, and its output's offsets."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from benchmarks.stage import Stage

PARTITIONS = 4
_LOOK_S = 0.005
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass
class Way:
    """One program, its topics ``in-<name>`` and ``out-<name>``, and its checkpoint."""

    stage: Stage
    name: str
    burst: int
    process: subprocess.Popen[str] | None = None
    _admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        self.stage.topic(self.input, PARTITIONS)
        self.stage.topic(self.output, PARTITIONS)
        self._admin = AdminClient({"bootstrap.servers": self.stage.bootstrap})

    @property
    def input(self) -> str:
        """Topic that the program reads."""
        return f"in-{self.name}"

    @property
    def output(self) -> str:
        """Topic that the program writes."""
        return f"out-{self.name}"

    @property
    def checkpoint(self) -> Path:
        """Folder of the program's checkpoint."""
        return self.stage.folder / self.name

    @property
    def local(self) -> Path:
        """Folder of the program's local files, as RocksDB's; removed with the stage."""
        folder = self.stage.folder / f"{self.name}.local"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def log(self) -> Path:
        """File with the program's output."""
        return self.stage.folder / f"{self.name}.log"

    def fill(self, rows: int) -> None:
        """Read the topic's ``rows`` rows; return when a reader has their counts."""
        raise NotImplementedError

    def begin(self) -> None:
        """Start the program on which the bursts are measured."""
        raise NotImplementedError

    def settle(self) -> None:
        """Make the written counts of a burst visible, where the program does not by itself."""

    def end(self) -> list[dict[str, Any]]:
        """End the program; return its own figures of each batch."""
        raise NotImplementedError

    def ends(self, *, committed: bool) -> int:
        """Sum the output's end offsets: those that read_committed readers may read to, or all."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(self.output, p): _LATEST for p in range(PARTITIONS)}
        answers = self._admin.list_offsets(asked, isolation_level=level)
        return sum(answer.result(30).offset for answer in answers.values())

    def settled(self, end: int) -> bool:
        """Whether all rows up to ``end`` are written, and no transaction is open."""
        return self.ends(committed=True) >= max(end, self.ends(committed=False))

    def wait(self, true: Callable[[], bool], what: str, within_s: float = 600) -> None:
        """Wait until ``true()``; end the benchmark where the program ends or time is up."""
        began = time.monotonic()
        while not true():
            if self.process is not None and self.process.poll() is not None:
                self._failed(f"ended with {self.process.returncode}")
            if time.monotonic() - began > within_s:
                self._failed(f"has not: {what}, within {within_s:.0f} s")
            time.sleep(_LOOK_S)

    def _failed(self, how: str) -> None:
        said = self.log.read_text(encoding="utf-8", errors="replace")[-4000:]
        raise SystemExit(f"{self.name} {how}:\n{said}")

    def kill(self) -> None:
        """Kill the program, its JVM and its workers with SIGKILL."""
        if self.process is None:
            return
        below = psutil.Process(self.process.pid).children(recursive=True)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for each in below:  # Python's workers have a group of their own
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(30)
        self.process = None

    def memory(self) -> int:
        """Return the peak memory of the program's JVM, in bytes."""
        assert self.process is not None
        found = [psutil.Process(self.process.pid)]
        found += found[0].children(recursive=True)
        return max(_peak(each.pid) for each in found if each.name() == "java")


def _peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    told = next(line for line in lines if line.startswith("VmHWM"))
    return int(told.split()[1]) * 1024
