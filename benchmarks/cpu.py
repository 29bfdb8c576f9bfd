"""CPU that this process and all that it started used, over time.

On a machine whose cores are all busy, rows per second depend on rows per CPU second. CPU varies
less than wall clock where other programs run beside a benchmark, but it does vary.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from typing import Self

import numpy as np
import psutil
from numpy.typing import NDArray

_EVERY_S = 0.25
KINDS = ("broker", "Java", "Python")
"""Kinds of processes: the broker and other servers, the JVM of Spark or Flink, and Python."""
DATABASE = "PostgreSQL"
"""A further kind, in the benchmarks that have one."""
_SERVERS = re.compile(r"kafka\.Kafka$|/s3proxy-|\.ServeIcebergCatalog$")


class CpuMeter:
    """Samples CPU while the block runs; ``between`` returns the CPU used between two moments."""

    def __init__(self) -> None:
        self._at: list[float] = []
        self._used: list[list[float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def between(self, start_ms: float, end_ms: float) -> dict[str, float]:
        """Return CPU seconds by kind of process between two moments, in ms since the epoch."""
        grown = self._grown()
        ends = [np.interp([start_ms, end_ms], self._at, used) for used in grown.T]
        kinds = (*KINDS, DATABASE)
        return {kind: float(b - a) for kind, (a, b) in zip(kinds, ends, strict=True)}

    def total(self) -> float:
        """Return the CPU seconds of all kinds over the whole block."""
        return float(self._grown()[-1].sum())

    def _grown(self) -> NDArray[np.float64]:
        """Return the CPU used until each sample, including that of processes killed since."""
        steps = np.diff(np.array(self._used), axis=0, prepend=self._used[:1])
        return np.cumsum(steps.clip(min=0), axis=0)

    def _run(self) -> None:
        while True:
            self._sample()
            if self._ended.wait(_EVERY_S):
                self._sample()
                return

    def _sample(self) -> None:
        """Record the CPU seconds of this process and of all that it started, ended or not."""
        used = dict.fromkeys((*KINDS, DATABASE), 0.0)
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used[_kind(process)] += sum(
                    (times.user, times.system, times.children_user, times.children_system)
                )
        self._at.append(time.time() * 1000)
        self._used.append(list(used.values()))


def _kind(process: psutil.Process) -> str:
    if process.name() != "java":
        return DATABASE if process.name() == "postgres" else "Python"
    return "broker" if any(map(_SERVERS.search, process.cmdline())) else "Java"
