"""CPU and delay of one triggerer that watches many apps: ``--rows`` apps, for ``--seconds``.

The triggers run once alone in one event loop, and once in ``airflow triggerer``, which adds its own
work. Another process plays the drivers: it writes a heartbeat for each every two seconds and, at
the end, lets one after the other stop. Measured are the CPU of the watching process, in parts of
one core, and the delay from a driver's last heartbeat to the report of its end (an event, or the
task that Airflow resumes).
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    Heartbeat,
    StartedBy,
    take_term,
    write_heartbeat,
)
from benchmarks.plot import Chart
from benchmarks.report import ROOT, Result, Table
from benchmarks.stage import refuse
from benchmarks.triggerer import Triggerer, triggerer

if TYPE_CHECKING:
    from airflow_eos.triggers.app import AppTrigger

_INTERVAL_S = 2.0
_APPS, _SECONDS, _EVERY_S = 200, 30.0, 5.0
_SETTLING_S, _TOLD_WITHIN_S = 15.0, 60.0


def _folder(root: Path, number: int) -> Path:
    return root / str(number)


def _enough(root: Path) -> Path:
    """Return the path of the file whose existence stops all drivers."""
    return root / "enough"


def _beat(store: CheckpointStore, number: int, *, stopped: bool = False) -> None:
    us = StartedBy(dag_id="d", task_id="t", run_id="r", map_index=-1, submission=str(number))
    write_heartbeat(
        store,
        Heartbeat(
            term=1,
            started_by=us,
            application_id=f"app-{number}",
            host="h",
            pid=1,
            batch_id=7,
            phase="stopped" if stopped else "waiting",
            end="finished" if stopped else None,
            beat_at_ms=time.time_ns() // 1_000_000,
            interval_ms=int(_INTERVAL_S * 1000),
            trigger_ms=1000,
            started_at_ms=0,
        ),
    )


def drive(root: Path, apps: int) -> None:
    """Write heartbeats for all drivers until the file exists, then stop one after the other."""
    stores = [CheckpointStore.open(_folder(root, number)) for number in range(apps)]
    while not _enough(root).exists():
        began = time.monotonic()
        for number, store in enumerate(stores):
            _beat(store, number)
        time.sleep(max(0.0, _INTERVAL_S - (time.monotonic() - began)))
    for number, store in enumerate(stores):
        # Spread, since a triggerer that took all triggers at once looks at all apps at once.
        time.sleep(2 * _EVERY_S / apps)
        _beat(store, number, stopped=True)


@contextmanager
def _driven(apps: int) -> Iterator[Path]:
    """Make a folder with the checkpoints of so many apps, whose drivers write heartbeats."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for number in range(apps):
            store = CheckpointStore.open(_folder(root, number))
            take_term(store, taken_by="played")
            _beat(store, number)
        command = [sys.executable, "-m", __name__, name, str(apps)]
        with subprocess.Popen(command, cwd=ROOT) as drivers:
            try:
                yield root
            except BaseException:
                drivers.kill()
                raise


@dataclass(frozen=True)
class Watched:
    """The CPU of watching, in parts of one core, and each end's delay, in seconds."""

    cores: float
    late_s: list[float]


def _trigger(root: Path, number: int) -> AppTrigger:
    from airflow_eos.ops.supervision.trigger_watch import TriggerPoll
    from airflow_eos.triggers.app import AppTrigger

    seen = TriggerPoll(str(_folder(root, number)), str(number), (), 0.0, 60.0, "drain")
    return AppTrigger(watch=seen.as_dict(), poke_interval=_EVERY_S)


def _stopped_at(root: Path, number: int) -> float:
    """Return when the driver wrote its last heartbeat; asked after its end was reported."""
    return (_folder(root, number) / "eos/driver.json").stat().st_mtime


async def _in_a_loop(root: Path, apps: int, seconds: float) -> Watched:
    async def one(number: int) -> float:
        await asyncio.sleep(_EVERY_S * number / apps)  # real tasks do not defer in one moment
        event = await anext(_trigger(root, number).run())
        late_s = time.time() - _stopped_at(root, number)
        if event.payload["end"] != "SUCCEEDED":
            raise AssertionError(event.payload)
        return late_s

    watching = asyncio.gather(*[one(number) for number in range(apps)])
    await asyncio.sleep(_EVERY_S)
    before = _cpu_s()
    await asyncio.sleep(seconds)
    cores = (_cpu_s() - before) / seconds
    _enough(root).touch()
    return Watched(cores, sorted(await watching))


def _by_a_triggerer(root: Path, apps: int, seconds: float) -> tuple[float, Watched]:
    """Measure a triggerer's CPU with nothing to watch, and its figures with all apps."""
    with triggerer(root / "airflow", apps) as (running, defer):
        time.sleep(_SETTLING_S)
        idle = _cores(running, seconds)
        defer([_trigger(root, number) for number in range(apps)])
        running.wait_until_all_watch()
        time.sleep(_SETTLING_S)
        cores = _cores(running, seconds)
        _enough(root).touch()
        deadline = time.monotonic() + _TOLD_WITHIN_S
        while len(told := running.resumed()) < apps and time.monotonic() < deadline:
            time.sleep(0.5)
        refuse("ends that were told", len(told), apps)
        late_s = sorted(at - _stopped_at(root, number) for number, at in told.items())
        refuse("ends that were told before they were", [s for s in late_s if s < 0], [])
    return idle, Watched(cores, late_s)


def _cores(running: Triggerer, seconds: float) -> float:
    before = running.cpu_s()
    time.sleep(seconds)
    return (running.cpu_s() - before) / seconds


def run(arguments: argparse.Namespace) -> Result:
    """Watch all apps and their ends, in a loop and by a triggerer."""
    apps, seconds = arguments.rows or _APPS, arguments.seconds or _SECONDS
    import airflow_eos.triggers.app  # noqa: F401 - before the clock runs

    with _driven(apps) as root:
        alone = asyncio.run(_in_a_loop(root, apps, seconds))
    with _driven(apps) as root:
        idle, real = _by_a_triggerer(root, apps, seconds)
    return _result({"one event loop": alone, "airflow triggerer": real}, idle, seconds)


def _result(found: dict[str, Watched], idle: float, seconds: float) -> Result:
    heads = ("watched by", "apps", "cores", "told after, s, p50", "most")
    title = f"Apps watched, a look at each every {_EVERY_S:g} s"
    rows = [("airflow triggerer", "0", f"{idle:.3f}", "", "")]
    ratios = {"triggerer_idle_cores": idle}
    for name, part in (("one event loop", ""), ("airflow triggerer", "triggerer_")):
        each = found[name]
        late, most = statistics.median(each.late_s), each.late_s[-1]
        rows.append(
            (name, f"{len(each.late_s):,}", f"{each.cores:.3f}", f"{late:.1f}", f"{most:.1f}")
        )
        ratios |= {
            f"{part}watching_cores": each.cores,
            f"{part}told_after_p50_over_interval": late / _EVERY_S,
            f"{part}told_after_most_over_interval": most / _EVERY_S,
        }
    bars = {
        name: {"p50": statistics.median(each.late_s), "most": each.late_s[-1]}
        for name, each in found.items()
    }
    return Result(
        name="watching",
        settings={"seconds": seconds, "every_s": _EVERY_S},
        raw={"late_s": {name: each.late_s for name, each in found.items()}},
        ratios=ratios,
        charts=[Chart("An end is told after", "s", bars)],
        tables=[Table(title, heads, rows)],
    )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    drive(Path(sys.argv[1]), int(sys.argv[2]))
