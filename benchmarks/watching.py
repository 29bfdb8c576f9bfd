"""Many apps watched by the triggers of one event loop: ``--rows`` apps, for ``--seconds``.

Their drivers are played by another process, which beats for all of them every two seconds and, at
the end, lets each of them stop. Measured are the CPU of the process that watches, in parts of one
core, and how long after a driver wrote that it stopped its trigger has said so.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from airflow_eos.checkpoint import CheckpointStore, Heartbeat, StartedBy, take_term, write_heartbeat
from benchmarks.plot import Chart
from benchmarks.report import ROOT, Result, Table

_INTERVAL_S = 2.0
_APPS, _SECONDS, _EVERY_S = 200, 30.0, 5.0


def _folder(root: Path, number: int) -> Path:
    return root / str(number)


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


def drive(root: Path, apps: int, seconds: float) -> None:
    """Beat for all, then let one after the other stop."""
    stores = [CheckpointStore.open(_folder(root, number)) for number in range(apps)]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        for number, store in enumerate(stores):
            _beat(store, number)
        time.sleep(max(0.0, _INTERVAL_S - (time.monotonic() - began)))
    for number, store in enumerate(stores):
        _beat(store, number, stopped=True)


async def watch(root: Path, apps: int, every_s: float) -> list[float]:
    """Run a trigger for each; returns how late, in seconds, each has said that its app stopped."""
    from airflow_eos.supervision.watch_app import AppWatch
    from airflow_eos.triggers.app import AppTrigger

    async def one(number: int) -> float:
        location = str(_folder(root, number))
        seen = AppWatch(location, str(number), (), 0.0, 60.0, "drain")
        await asyncio.sleep(every_s * number / apps)  # tasks do not defer in one moment
        event = await anext(AppTrigger(watch=seen.as_dict(), poke_interval=every_s).run())
        late_s = time.time() - (_folder(root, number) / "eos/driver.json").stat().st_mtime
        if event.payload["end"] != "SUCCEEDED":
            raise AssertionError(event.payload)
        return late_s

    return await asyncio.gather(*[one(number) for number in range(apps)])


def run(arguments: argparse.Namespace) -> Result:
    """Watch them all, and then their ends; see the module."""
    apps, seconds = arguments.rows or _APPS, arguments.seconds or _SECONDS
    import airflow_eos.triggers.app  # noqa: F401 - before the clock runs

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for number in range(apps):
            store = CheckpointStore.open(_folder(root, number))
            take_term(store, taken_by="played")
            _beat(store, number)
        command = [sys.executable, "-m", __name__, name, str(apps), str(seconds)]
        with subprocess.Popen(command, cwd=ROOT) as drivers:
            try:
                before, began = _cpu_s(), time.monotonic()
                late = asyncio.run(watch(root, apps, _EVERY_S))
                cpu_s, wall_s = _cpu_s() - before, time.monotonic() - began
            except BaseException:
                drivers.kill()
                raise
    return _result(sorted(late), cpu_s, wall_s, seconds)


def _result(late: list[float], cpu_s: float, wall_s: float, seconds: float) -> Result:
    cores, median, most = cpu_s / wall_s, late[len(late) // 2], late[-1]
    row = (f"{len(late):,}", f"{_EVERY_S:g}", f"{cores:.3f}", f"{median:.1f}", f"{most:.1f}")
    heads = ("apps", "a look every, s", "cores", "told after, s, p50", "most")
    title = "Apps watched by the triggers of one event loop"
    return Result(
        name="watching",
        settings={"apps": len(late), "seconds": seconds, "every_s": _EVERY_S},
        raw={"late_s": late, "cpu_s": cpu_s, "wall_s": wall_s},
        ratios={
            "watching_cores": cores,
            "told_after_p50_over_interval": median / _EVERY_S,
            "told_after_most_over_interval": most / _EVERY_S,
        },
        charts=[Chart(title, "s", {"told after": {"p50": median, "most": most}})],
        tables=[Table(title, heads, [row])],
    )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    drive(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
