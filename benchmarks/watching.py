"""``python -m benchmarks.watching``: many apps watched by the triggers of one event loop.

Their drivers are played by another process, which beats for all of them every two seconds and, at
the end, lets each of them stop. Measured are the CPU of the process that watches, in parts of one
core, and how long after a driver wrote that it stopped its trigger has said so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from airflow_eos.checkpoint import CheckpointStore, Heartbeat, StartedBy, take_term, write_heartbeat

_INTERVAL_S = 2.0


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


def main() -> None:
    """Measure, and print a line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watching", description=__doc__)
    parser.add_argument("--apps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=5.0, help="poke_interval, in seconds")
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.drive is not None:
        drive(asked.drive, asked.apps, asked.seconds)
        return
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for number in range(asked.apps):
            store = CheckpointStore.open(_folder(root, number))
            take_term(store, taken_by="played")
            _beat(store, number)
        command = [sys.executable, "-m", "benchmarks.watching", "--drive", name]
        command += ["--apps", str(asked.apps), "--seconds", str(asked.seconds)]
        import airflow_eos.triggers.app  # noqa: F401 - before the clock runs

        with subprocess.Popen(command) as drivers:
            before, began = _cpu_s(), time.monotonic()
            late = sorted(asyncio.run(watch(root, asked.apps, asked.every)))
            cpu_s, wall_s = _cpu_s() - before, time.monotonic() - began
            drivers.wait()
    found: dict[str, Any] = {
        "apps": asked.apps,
        "every_s": asked.every,
        "wall_s": round(wall_s, 1),
        "cores": round(cpu_s / wall_s, 3),
        "late_p50_s": round(late[len(late) // 2], 2),
        "late_max_s": round(late[-1], 2),
    }
    sys.stdout.write(json.dumps(found) + "\n")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
