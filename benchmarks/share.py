"""Limits a machine's processes to a part of a core, by a control group (version 1).

A process that is started in the group is in the group too. A machine of two cores can so simulate
several machines, each of which adds CPU that the others cannot use.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stage import refuse

_GROUPS = Path("/sys/fs/cgroup/cpu")
_GONE_WITHIN_S = 20.0
_PERIOD_US = 20_000
"""Short, so that a process that has used up its part waits no longer than a network takes."""


@dataclass(frozen=True)
class Share:
    """A control group that limits processes to a part of the CPU."""

    folder: Path

    def hold(self, pids: Iterable[int]) -> None:
        """Put processes into the group, with all that they will start."""
        for pid in pids:
            (self.folder / "cgroup.procs").write_text(str(pid))

    def require(self, pids: Iterable[int]) -> None:
        """End the benchmark where one of the processes is not in the group."""
        outside = {pid for pid in set(pids) - self.held() if Path(f"/proc/{pid}").exists()}
        refuse("processes outside of their machine's share", outside, set())

    def held(self) -> set[int]:
        """Return the pids of the processes in the group."""
        return set(map(int, (self.folder / "cgroup.procs").read_text().split()))

    def periods(self) -> tuple[int, int]:
        """Return how many periods had a running process, and in how many the part was used up."""
        lines = (self.folder / "cpu.stat").read_text().splitlines()
        found = {name: int(value) for name, value in map(str.split, lines)}
        return found["nr_periods"], found["nr_throttled"]


@contextmanager
def share(name: str, cores: float) -> Iterator[Share]:
    """Make a group with ``cores`` of CPU; at the end, move its processes out and remove it."""
    folder = _GROUPS / f"airflow-eos-{os.getpid()}-{name}"
    try:
        folder.mkdir()
        (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (folder / "cpu.cfs_quota_us").write_text(str(round(cores * _PERIOD_US)))
    except OSError as error:
        raise SystemExit(
            f"No control group can be made in {_GROUPS} ({error.strerror}): expected cgroup "
            "version 1 with its cpu controller, writable (run as root). Without it a second "
            "machine here adds no CPU, so there would be nothing to measure."
        ) from None
    try:
        yield (made := Share(folder))
    finally:
        _remove(made)


def _remove(made: Share) -> None:
    """Remove a group; a killed process stays in it until the kernel has cleaned up."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while True:
        for pid in made.held():
            with suppress(OSError):  # the process has ended since
                (_GROUPS / "cgroup.procs").write_text(str(pid))
        try:
            return made.folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
