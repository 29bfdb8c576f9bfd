"""One program of ``benchmarks.state``: its topics, its process, and what its readers can see."""

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
        """Topic that it reads."""
        return f"in-{self.name}"

    @property
    def output(self) -> str:
        """Topic that it writes."""
        return f"out-{self.name}"

    @property
    def checkpoint(self) -> Path:
        """Folder of its checkpoint."""
        return self.stage.folder / self.name

    @property
    def local(self) -> Path:
        """Folder of what it keeps for itself, as RocksDB's files; it ends with the stage."""
        folder = self.stage.folder / f"{self.name}.local"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def log(self) -> Path:
        """What it said."""
        return self.stage.folder / f"{self.name}.log"

    def fill(self, rows: int) -> None:
        """Read all that is there, so many rows; return when a reader has their counts."""
        raise NotImplementedError

    def begin(self) -> None:
        """Start what the bursts are measured on."""
        raise NotImplementedError

    def settle(self) -> None:
        """All counts of a burst are written: whatever makes them visible, if that is ours to do."""

    def end(self) -> list[dict[str, Any]]:
        """End in order; what the program itself tells of each batch."""
        raise NotImplementedError

    def ends(self, *, committed: bool) -> int:
        """Offsets of the output, over all partitions: those that readers are let to, or all."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(self.output, p): _LATEST for p in range(PARTITIONS)}
        answers = self._admin.list_offsets(asked, isolation_level=level)
        return sum(answer.result(30).offset for answer in answers.values())

    def settled(self, end: int) -> bool:
        """All up to ``end`` is written, and nothing stands in an open transaction."""
        return self.ends(committed=True) >= max(end, self.ends(committed=False))

    def wait(self, true: Callable[[], bool], what: str, within_s: float = 600) -> None:
        """Until something is true; the benchmark ends where the program does, or the time."""
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
        """SIGKILL to the program, its JVM and its workers."""
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
        """The most that its JVM has had in memory, bytes."""
        assert self.process is not None
        found = [psutil.Process(self.process.pid)]
        found += found[0].children(recursive=True)
        return max(_peak(each.pid) for each in found if each.name() == "java")


def _peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    told = next(line for line in lines if line.startswith("VmHWM"))
    return int(told.split()[1]) * 1024
