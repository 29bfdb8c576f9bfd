"""Time and size of a state of ten million keys: ours on RocksDB or Spark's default, and Flink's.

The query counts by key. All keys are read in; then bursts come, each with a row for some keys, none
twice. Measured are a burst's time, from sending its first row until a ``read_committed`` reader has
all its counts, and the bytes of the checkpoint's new files. At the end our driver is killed in a
batch, and the counts after its restart must be exact.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.report import Result
from benchmarks.stage import refuse, staged
from benchmarks.state_keys import Counted, Keys, send
from benchmarks.state_told import LABELS, Found, result
from benchmarks.state_way import PARTITIONS, Way
from benchmarks.state_ways import (
    FLINK_HEAP,
    FLINK_MANAGED,
    HEAP,
    TASKS,
    FlinkWay,
    SparkWay,
)

_KEYS = 10_000_000
_PART = 200
"""Ratio of all keys to the keys of a burst: 50,000 of ten million come."""
_WARM, _BURSTS = 8, 30
_PACE_S = 2.0
"""Seconds from the start of a burst to the next: a minute for all, so that it includes the
background maintenance that Spark's stores have once a minute."""
_REST_S = 0.3


def run(arguments: argparse.Namespace) -> Result:
    """Measure one way after the other, each in a process of its own."""
    keys, bursts = arguments.rows or _KEYS, arguments.rounds or _BURSTS
    only = arguments.only.split(",") if arguments.only else list(LABELS)
    found: dict[str, Found] = {}
    killed: dict[str, float] = {}
    with staged() as stage:
        for name in (each for each in LABELS if each in only):
            way: Way = (FlinkWay if name == "flink" else SparkWay)(stage, name, keys // _PART)
            try:
                counted = Counted(keys)
                found[name] = _measure(way, counted, bursts)
                if isinstance(way, SparkWay) and name == "rocksdb":
                    killed = _killed(way, counted)
            finally:
                way.kill()
            stage.drop(way.input, way.output)
    settings = {
        "keys": keys,
        "keys_a_burst": keys // _PART,
        "bursts": {"warm_up": _WARM, "counted": bursts, "pace_s": _PACE_S},
        "partitions": PARTITIONS,
        "tasks": TASKS,
        "heap": HEAP,
        "flink": {"heap": FLINK_HEAP, "managed": FLINK_MANAGED},
    }
    return result(found, killed, settings)


def _measure(way: Way, counted: Counted, bursts: int) -> Found:
    """Read all keys in, then measure bursts; refuse figures where the output is wrong."""
    send(way.stage.bootstrap, way.input, counted.every())
    began = time.monotonic()
    way.fill(counted.rows)
    filled_s = time.monotonic() - began
    print(f"{way.name}: {counted.rows:,} keys in after {filled_s:.0f} s", flush=True)
    way.begin()
    times, written = [], []
    before = files(way.checkpoint)
    for number in range(_WARM + bursts):
        began = time.monotonic()
        keys = counted.some(way.burst)
        times.append(_burst(way, keys))
        # Files written after readers have their rows, as commits/N, count to this burst.
        time.sleep(max(_REST_S, _PACE_S - (time.monotonic() - began)))
        after = files(way.checkpoint)
        written.append(sum(after[new] for new in after.keys() - before.keys()))
        before = after
        print(f"{way.name} {number}: {times[-1]:.0f} ms, {written[-1]:,} bytes", flush=True)
    memory = way.memory()
    told = way.end()
    _check(way, counted)
    return Found(
        filled_s=filled_s,
        ms=times[_WARM:],
        written=written[_WARM:],
        size=sum(before.values()),
        memory=memory,
        told=told[-bursts:],
    )


def _burst(way: Way, keys: Keys) -> float:
    """Return the ms from sending a burst's first row until readers have its counts."""
    end = way.ends(committed=False) + len(keys)
    began = time.monotonic()
    send(way.stage.bootstrap, way.input, keys)
    way.wait(lambda: way.ends(committed=False) >= end, "written the counts of a burst")
    way.settle()
    way.wait(lambda: way.settled(end), "made the counts of a burst visible")
    return (time.monotonic() - began) * 1000


def _killed(way: SparkWay, counted: Counted) -> dict[str, float]:
    """SIGKILL the driver while transactions are open, send its keys again, check all counts."""
    Path(str(way.checkpoint) + ".stop").unlink()
    way.begin()
    _burst(way, counted.some(way.burst))
    end = way.ends(committed=False)
    keys = counted.some(way.burst)
    send(way.stage.bootstrap, way.input, keys)
    way.wait(lambda: way.ends(committed=False) > end, "begun to write")
    way.kill()
    unseen = way.ends(committed=False) - way.ends(committed=True)
    if unseen <= 0:
        raise SystemExit("killed too late: the batch was settled. Run it again.")
    send(way.stage.bootstrap, way.input, counted.again(keys))
    began = time.monotonic()
    way.drain(most=way.burst)
    resumed_s = time.monotonic() - began
    _check(way, counted)
    print(f"killed with {unseen:,} rows in open transactions: exact", flush=True)
    return {"unseen_rows": unseen, "resumed_s": round(resumed_s, 1)}


def _check(way: Way, counted: Counted) -> None:
    """Refuse the figures unless each count of each key is in the output once."""
    read = way.stage.read(way.output)
    refuse(way.name, (read["rows"], read["sum"]), counted.expected())


def files(folder: Path) -> dict[tuple[str, int], int]:
    """Return the bytes of each finished file below a folder, by name and time."""
    found: dict[tuple[str, int], int] = {}
    for parent, _, names in os.walk(folder):
        for name in itertools.filterfalse(lambda each: each.startswith("."), names):
            with suppress(FileNotFoundError):  # the file was pruned meanwhile
                status = (Path(parent) / name).stat()
                found[f"{parent}/{name}", status.st_mtime_ns] = status.st_size
    return found
