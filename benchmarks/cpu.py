"""CPU that this process and all that it started used, over time.

On a machine whose cores are all busy, rows per CPU second is what rows per second come down to. It
moves less than wall clock where other programs run beside a benchmark, but it does move.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

import numpy as np
import psutil

_EVERY_S = 0.25


def own_seconds() -> float:
    """CPU seconds of this process and of all that it started, ended or not."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            used = child.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total


class CpuMeter:
    """Samples while the block runs; then ``between`` tells what was used from when to when."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def between(self, start_ms: float, end_ms: float) -> float:
        """CPU seconds between two moments, in ms since the epoch."""
        before, after = np.interp([start_ms, end_ms], *self._grown())
        return float(after - before)

    def total(self) -> float:
        """CPU seconds altogether."""
        return float(self._grown()[1][-1])

    def _grown(self) -> tuple[np.ndarray, np.ndarray]:
        """Moments, and CPU until then. Who is killed takes what it used along: that is no fall."""
        at, used = np.array(self._samples).T
        return at, np.concatenate(([0.0], np.cumsum(np.maximum(np.diff(used), 0))))

    def _run(self) -> None:
        while True:
            self._samples.append((time.time() * 1000, own_seconds()))
            if self._ended.wait(_EVERY_S):
                self._samples.append((time.time() * 1000, own_seconds()))
                return
