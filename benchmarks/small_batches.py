"""The time of a small batch in each sink, for which a row waits until readers have it.

The time of a small batch is that of its *steps*: Spark's planning and its logs, preparing, the
decision, making visible. It is Spark's own figure, from the trigger to the end of its commit.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from itertools import chain

from benchmarks.compared import ALONE
from benchmarks.plot import Chart
from benchmarks.report import Result, Table
from benchmarks.sinks import asked_for, benched, filled
from benchmarks.targets import PARTITIONS
from benchmarks.ways import WAYS

_BATCH_ROWS = 200
_BATCHES = 20
_WARM = 5
_ROUNDS = 3


def run(arguments: argparse.Namespace) -> Result:
    """Run all ways in turns, in alternating order, and return the times of a batch."""
    ways, rounds = asked_for(arguments), arguments.rounds or _ROUNDS
    times: dict[str, list[list[float]]] = defaultdict(list)
    with benched() as (session, stage, server):
        bench = filled(session, stage, server.dsn, "input", _WARM + _BATCHES, _BATCH_ROWS)
        for number in range(-1, rounds):  # the first is warm-up: Java compiles what all ways share
            for way in ways if number % 2 == 0 else ways[::-1]:
                found, _ = bench.deliver(way, f"{way}-{number + 1}".replace("_", "-"))
                if number < 0:
                    continue
                times[way].append([batch.took_ms for batch in found[_WARM:]])
                print(f"{WAYS[way].label}: {statistics.median(times[way][-1]):.0f} ms", flush=True)
    return _result({way: times[way] for way in ways}, rounds)


def _result(times: dict[str, list[list[float]]], rounds: int) -> Result:
    medians = {way: [statistics.median(each) for each in found] for way, found in times.items()}
    beside = medians.get("noop")
    ratios = {
        f"small_batch_{way}_over_noop": statistics.median(
            ours / theirs for ours, theirs in zip(found, beside, strict=True)
        )
        for way, found in medians.items()
        if beside is not None and way != "noop"
    }
    title = f"Time of a batch of {_BATCH_ROWS} rows in {PARTITIONS} tasks"
    alone = [medians[way] for way in ALONE if way in medians]
    if len(alone) == len(ALONE) and "several" in medians:
        ratios["small_batch_several_over_slowest"] = statistics.median(
            ours / max(theirs) for ours, *theirs in zip(medians["several"], *alone, strict=True)
        )
    rows = [
        (
            WAYS[way].label,
            f"{statistics.median(medians[way]):.0f}",
            f"{statistics.quantiles(chain(*found), n=10)[-1]:.0f}",
            f"{ratios[name]:.2f}" if (name := f"small_batch_{way}_over_noop") in ratios else "",
        )
        for way, found in times.items()
    ]
    return Result(
        name="small_batches",
        settings={"batch_rows": _BATCH_ROWS, "batches": _BATCHES, "rounds": rounds},
        raw={"p50_ms_of_each_round": medians},
        ratios=ratios,
        charts=[
            Chart(
                title, "ms", {WAYS[w].label: {"p50": statistics.median(medians[w])} for w in times}
            )
        ],
        tables=[Table(title, ("way", "p50, ms", "p90, ms", "÷ Spark reading only"), rows)],
    )
