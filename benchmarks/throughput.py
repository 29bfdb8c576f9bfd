"""Throughput of Kafka → Spark → Kafka in steady state, against Spark's own sink and Flink's."""

from __future__ import annotations

import argparse
import bisect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos.arrow.records import kernels as loops
from benchmarks import arrow_source, flink, orders, rows, spark
from benchmarks.cpu import CpuMeter
from benchmarks.stage import Stage, refuse, staged
from benchmarks.throughput_told import LABELS, Figures, Found, result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.report import Result

_ROWS = 12_000_000
_ROUNDS = 3
_PARTITIONS = 4
_WARM, _BATCHES, _LAST = 3, 6, 1
"""Batches of warm-up, batches that count, and a last one: at the end of a topic a source waits for
more (``fetch.min.bytes``), which a steady stream does not. Flink has the same shares of rows."""
_FLINK = {
    "parallelism": 2,
    "checkpoint_ms": 2000,
    # Java's default is batches of 16 kB; 4 MB, and a checkpoint every 5 s, took no less CPU.
    "producer": {"batch.size": "1000000", "linger.ms": "20"},
    # Less CPU than Java's own choice, G1, in each of three pairs of runs beside other work.
    "java": "-XX:+UseParallelGC",
}
_IN_ARROW = {"pass": None, "etl": orders.clean}
"""Transformations of the variant ``arrow``; it has none in SQL."""
_PIPELINES = {"pass": spark.unchanged, "etl": orders.in_arrow, "etl_sql": orders.in_sql}


@dataclass
class _Bench:
    spark: SparkSession
    stage: Stage
    batch_rows: int
    expected: dict[str, Any]

    @property
    def rows(self) -> int:
        """The number of rows in the input topic."""
        return (_WARM + _BATCHES + _LAST) * self.batch_rows

    def measure(self, pipeline: str, variant: str, run: str) -> Figures:
        """Measure one run of one variant, its output checked."""
        output = self.stage.topic(f"out-{run}", _PARTITIONS)
        if variant in ("flink", "flink_one"):
            one = {"parallelism": 1} if variant == "flink_one" else {}
            figures = self._flink(pipeline, run, output, {**_FLINK, **one})
        elif variant == "arrow":
            figures = self._arrow(pipeline, run, output)
        else:
            figures = self._spark(pipeline, variant, run, output)
        self.stage.drop(output)
        return figures

    def _spark(self, pipeline: str, sink: str, run: str, output: str) -> Figures:
        source = spark.read(self.spark, self.stage, "input", **spark.bulk(self.batch_rows))
        transformed = _PIPELINES[pipeline](source)
        with CpuMeter() as meter:
            trigger = {"availableNow": True}
            query = spark.start(sink, transformed, self.stage, run, output, trigger)
            found = spark.drained(query)
        refuse(f"{run} read", sum(batch.rows for batch in found), self.rows)
        if sink != "noop":
            self._check(pipeline, run, self.stage.read(output))
        return _figures(meter, *spark.steady(found, _WARM, _BATCHES))

    def _arrow(self, pipeline: str, run: str, output: str) -> Figures:
        with CpuMeter() as meter:
            source = arrow_source.of(
                self.stage, "input", _IN_ARROW[pipeline], max_rows_per_batch=self.batch_rows
            )
            query = arrow_source.start(source, self.stage, run, output, {"availableNow": True})
            found = arrow_source.drained(query)
        refuse(f"{run} read", sum(batch.rows for batch in found), self.rows)
        self._check(pipeline, run, self.stage.read(output))
        return _figures(meter, *spark.steady(found, _WARM, _BATCHES))

    def _flink(self, pipeline: str, run: str, output: str, settings: dict[str, Any]) -> Figures:
        with CpuMeter() as meter:
            flink.run(
                bootstrap=self.stage.bootstrap,
                input="input",
                output=output,
                prefix=run,
                etl=pipeline != "pass",
                checkpoints=str(self.stage.folder / run),
                **settings,
            )
        found = self.stage.read(output)
        self._check(pipeline, run, found)
        kept = found["rows"] / self.rows
        first = _WARM * self.batch_rows * kept
        last = (_WARM + _BATCHES) * self.batch_rows * kept
        written, start, end = _appended(found["appended"], first, last)
        return _figures(meter, written / kept, start, end)

    def _check(self, pipeline: str, run: str, found: dict[str, Any]) -> None:
        """Refuse an output unlike the input (pass-through) or unlike the first engine's (ETL)."""
        read = found["rows"], found["sum"]
        kind = "pass" if pipeline == "pass" else "etl"
        refuse(run, read, self.expected.setdefault(kind, read))


def _appended(appended: list[list[int]], first: float, last: float) -> tuple[int, float, float]:
    """Return the number of rows from about ``first`` to ``last``, and when they were appended."""
    there = [0, *itertools.accumulate(count for _, count in appended)]
    start = bisect.bisect_left(there, first)
    end = bisect.bisect_left(there, last)
    return there[end] - there[start], appended[start - 1][0], appended[end - 1][0]


def _figures(meter: CpuMeter, rows_read: float, start_ms: float, end_ms: float) -> Figures:
    cpu = {
        kind: round(seconds / rows_read * 1e6, 3)
        for kind, seconds in meter.between(start_ms, end_ms).items()
    }
    return Figures(round(rows_read / (end_ms - start_ms) * 1000), cpu)


def run(arguments: argparse.Namespace) -> Result:
    """Run all variants of all pipelines in turns."""
    count = arguments.rows or _ROWS
    rounds = arguments.rounds or _ROUNDS
    only = arguments.only.split(",") if arguments.only else list(LABELS)
    pipelines = [p for p in _PIPELINES if p in only] or list(_PIPELINES)
    variants = [v for v in LABELS if v in only] or list(LABELS)
    with staged() as stage, spark.session() as session:
        stage.topic("input", _PARTITIONS)
        bench = _Bench(session, stage, count // _BATCHES, {})
        rows.fill(stage.bootstrap, "input", bench.rows)
        found = stage.read("input")
        refuse("input", found["rows"], bench.rows)
        bench.expected["pass"] = bench.rows, found["sum"]
        bench.measure("pass", "exactly_once", "warm-up")  # warms the broker and Spark's JVM
        if "arrow" in variants:
            loops.warm(wait=True)  # compiles the loops where they are not cached yet
            bench.measure("pass", "arrow", "warm-up-arrow")  # warms the workers that use the loops
        figures = _measure(bench.measure, pipelines, variants, rounds)
    settings = {
        "rows": count,
        "partitions": _PARTITIONS,
        "batches": {"warm_up": _WARM, "counted": _BATCHES, "last": _LAST},
        "flink": {"version": flink.VERSION, "connector": flink.CONNECTOR, **_FLINK},
    }
    return result(figures, settings)


def _measure(
    measure: Callable[[str, str, str], Figures],
    pipelines: list[str],
    variants: list[str],
    rounds: int,
) -> Found:
    figures: Found = {
        p: {v: [] for v in variants if v != "arrow" or p in _IN_ARROW} for p in pipelines
    }
    for number in range(rounds):
        for pipeline in pipelines:
            # In alternating order, so that a drift of the machine falls on all alike.
            for variant in variants if number % 2 == 0 else variants[::-1]:
                if variant not in figures[pipeline]:
                    continue
                found = measure(pipeline, variant, f"{pipeline}-{variant}-{number}")
                figures[pipeline][variant].append(found)
                print(f"{pipeline} {variant}: {found}", flush=True)
    return figures
