"""Throughput of Kafka → Spark → Kafka in steady state, against Spark's own sink and Flink's."""

from __future__ import annotations

import argparse
import bisect
import itertools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from benchmarks import flink, orders, rows, spark
from benchmarks.cpu import KINDS, CpuMeter
from benchmarks.plot import Chart
from benchmarks.report import Result, Table, median_ratio
from benchmarks.stage import Stage, refuse, staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 12_000_000
_ROUNDS = 3
_PARTITIONS = 4
_WARM, _BATCHES, _LAST = 3, 6, 1
"""Batches of warm-up, batches that count, and what follows them: at the end of a topic a source
waits for more (``fetch.min.bytes``), which a steady stream does not. The same shares for Flink."""
_FLINK = {
    "parallelism": 2,
    "checkpoint_ms": 2000,
    # Java's default is batches of 16 kB; other settings of Flink were not tried.
    "producer": {"batch.size": "1000000", "linger.ms": "20"},
}
_LABELS = {
    "noop": "Spark reading only (noop)",
    "spark_sink": "Spark's own Kafka sink, at least once",
    "exactly_once": "ours, exactly once",
    "at_least_once": "ours, at least once",
    "librdkafka": "ours, exactly once, through librdkafka",
    "flink": "Flink's KafkaSink, exactly once",
}
_PIPELINES = {"pass": spark.unchanged, "etl": orders.in_arrow, "etl_sql": orders.in_sql}
_TITLES = {
    "pass": "Pass-through",
    "etl": "Orders ETL: parse JSON, filter, enrich, write JSON; on Spark with Polars on Arrow",
    "etl_sql": "Orders ETL, on Spark with its own JSON functions",
}
_RATIOS = {
    "exactly_once_over_spark_sink": ("pass", "exactly_once", "spark_sink"),
    "exactly_once_over_noop": ("pass", "exactly_once", "noop"),
    "exactly_once_over_flink": ("pass", "exactly_once", "flink"),
    "exactly_once_over_at_least_once": ("pass", "exactly_once", "at_least_once"),
    "librdkafka_over_exactly_once": ("pass", "librdkafka", "exactly_once"),
    "at_least_once_over_spark_sink": ("pass", "at_least_once", "spark_sink"),
    "etl_exactly_once_over_spark_sink": ("etl", "exactly_once", "spark_sink"),
    "etl_exactly_once_over_noop": ("etl", "exactly_once", "noop"),
    "etl_exactly_once_over_flink": ("etl", "exactly_once", "flink"),
    "etl_sql_exactly_once_over_spark_sink": ("etl_sql", "exactly_once", "spark_sink"),
    "etl_sql_exactly_once_over_noop": ("etl_sql", "exactly_once", "noop"),
    "etl_sql_exactly_once_over_flink": ("etl_sql", "exactly_once", "flink"),
}
_CPU = tuple(f"{kind}, CPU µs a row" for kind in KINDS)


@dataclass(frozen=True)
class _Figures:
    """Rows read a second of wall clock, and CPU microseconds a row, of each kind of process."""

    per_second: float
    cpu: Mapping[str, float]

    @property
    def per_cpu_second(self) -> float:
        """Rows read a second of CPU: broker, engine and client together."""
        return round(1e6 / sum(self.cpu.values()))


@dataclass
class _Bench:
    spark: SparkSession
    stage: Stage
    batch_rows: int
    expected: dict[str, Any]

    @property
    def rows(self) -> int:
        """What the input topic holds."""
        return (_WARM + _BATCHES + _LAST) * self.batch_rows

    def measure(self, pipeline: str, variant: str, run: str) -> _Figures:
        """One run of one variant, its output checked."""
        output = self.stage.topic(f"out-{run}", _PARTITIONS)
        if variant == "flink":
            figures = self._flink(pipeline, run, output)
        else:
            figures = self._spark(pipeline, variant, run, output)
        self.stage.drop(output)
        return figures

    def _spark(self, pipeline: str, sink: str, run: str, output: str) -> _Figures:
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

    def _flink(self, pipeline: str, run: str, output: str) -> _Figures:
        with CpuMeter() as meter:
            flink.run(
                bootstrap=self.stage.bootstrap,
                input="input",
                output=output,
                prefix=run,
                etl=pipeline != "pass",
                checkpoints=str(self.stage.folder / run),
                **_FLINK,
            )
        found = self.stage.read(output)
        self._check(pipeline, run, found)
        kept = found["rows"] / self.rows
        first = _WARM * self.batch_rows * kept
        last = (_WARM + _BATCHES) * self.batch_rows * kept
        written, start, end = _appended(found["appended"], first, last)
        return _figures(meter, written / kept, start, end)

    def _check(self, pipeline: str, run: str, found: dict[str, Any]) -> None:
        """Pass-through: the very rows. ETL: what the first engine made of them."""
        read = found["rows"], found["sum"]
        kind = "pass" if pipeline == "pass" else "etl"
        refuse(run, read, self.expected.setdefault(kind, read))


def _appended(appended: list[list[int]], first: float, last: float) -> tuple[int, float, float]:
    """Rows ``first`` to ``last`` of a log, about, and from when to when they were appended."""
    there = [0, *itertools.accumulate(count for _, count in appended)]
    start = bisect.bisect_left(there, first)
    end = bisect.bisect_left(there, last)
    return there[end] - there[start], appended[start - 1][0], appended[end - 1][0]


def _figures(meter: CpuMeter, rows_read: float, start_ms: float, end_ms: float) -> _Figures:
    cpu = {
        kind: round(seconds / rows_read * 1e6, 3)
        for kind, seconds in meter.between(start_ms, end_ms).items()
    }
    return _Figures(round(rows_read / (end_ms - start_ms) * 1000), cpu)


def run(arguments: argparse.Namespace) -> Result:
    """Run all variants in turns; see the module."""
    count = arguments.rows or _ROWS
    rounds = arguments.rounds or _ROUNDS
    only = arguments.only.split(",") if arguments.only else list(_LABELS)
    pipelines = [p for p in _PIPELINES if p in only] or list(_PIPELINES)
    variants = [v for v in _LABELS if v in only] or list(_LABELS)
    with staged() as stage, spark.session() as session:
        stage.topic("input", _PARTITIONS)
        bench = _Bench(session, stage, count // _BATCHES, {})
        rows.fill(stage.bootstrap, "input", bench.rows)
        found = stage.read("input")
        refuse("input", found["rows"], bench.rows)
        bench.expected["pass"] = bench.rows, found["sum"]
        bench.measure("pass", "exactly_once", "warm-up")  # of the broker and of Spark's JVM
        figures = _measure(bench.measure, pipelines, variants, rounds)
    return _result(count, figures)


Found = dict[str, dict[str, list[_Figures]]]
"""Pipeline → variant → the figures of each round."""


def _measure(
    measure: Callable[[str, str, str], _Figures],
    pipelines: list[str],
    variants: list[str],
    rounds: int,
) -> Found:
    figures: Found = {p: {v: [] for v in variants} for p in pipelines}
    for number in range(rounds):
        for pipeline in pipelines:
            # To and fro, so that a drift of the machine falls on all alike.
            for variant in variants if number % 2 == 0 else variants[::-1]:
                found = measure(pipeline, variant, f"{pipeline}-{variant}-{number}")
                figures[pipeline][variant].append(found)
                print(f"{pipeline} {variant}: {found}", flush=True)
    return figures


def _ratios(figures: Found, figure: Callable[[_Figures], float]) -> dict[str, float]:
    return {
        name: median_ratio(
            [figure(each) for each in figures[pipeline][above]],
            [figure(each) for each in figures[pipeline][below]],
        )
        for name, (pipeline, above, below) in _RATIOS.items()
        if {above, below} <= figures.get(pipeline, {}).keys()
    }


def _raw(
    figures: Found, figure: Callable[[_Figures], object]
) -> dict[str, dict[str, list[object]]]:
    return {
        pipeline: {variant: [figure(each) for each in rounds] for variant, rounds in found.items()}
        for pipeline, found in figures.items()
    }


def _result(count: int, figures: Found) -> Result:
    per_second = attrgetter("per_second")
    per_cpu = attrgetter("per_cpu_second")
    ratios = _ratios(figures, per_second)
    ratios |= {f"cpu_{name}": ratio for name, ratio in _ratios(figures, per_cpu).items()}
    return Result(
        name="throughput",
        settings={
            "rows": count,
            "partitions": _PARTITIONS,
            "batches": {"warm_up": _WARM, "counted": _BATCHES, "last": _LAST},
            "flink": {"version": flink.VERSION, "connector": flink.CONNECTOR, **_FLINK},
        },
        raw={
            "rows_per_second": _raw(figures, per_second),
            "rows_per_cpu_second": _raw(figures, per_cpu),
            "cpu_microseconds_per_row": _raw(figures, attrgetter("cpu")),
        },
        ratios=ratios,
        charts=[_chart(pipeline, found) for pipeline, found in figures.items()],
        tables=[_table(count, pipeline, found) for pipeline, found in figures.items()],
    )


def _chart(pipeline: str, found: dict[str, list[_Figures]]) -> Chart:
    bars = {
        _LABELS[variant]: {"rows/s": statistics.median(each.per_second for each in rounds)}
        for variant, rounds in found.items()
    }
    return Chart(_TITLES[pipeline], "rows/s", bars)


def _table(count: int, pipeline: str, found: dict[str, list[_Figures]]) -> Table:
    return Table(
        f"{_TITLES[pipeline]}, {count:,} rows, rows read a second, medians",
        ("variant", "rows/s", "rows a CPU second", *_CPU, "rows/s of each round"),
        [
            (
                _LABELS[variant],
                f"{statistics.median(each.per_second for each in rounds):,.0f}",
                f"{statistics.median(each.per_cpu_second for each in rounds):,.0f}",
                *(f"{statistics.median(each.cpu[kind] for each in rounds):.2f}" for kind in KINDS),
                ", ".join(f"{each.per_second:,.0f}" for each in rounds),
            )
            for variant, rounds in found.items()
        ],
    )
