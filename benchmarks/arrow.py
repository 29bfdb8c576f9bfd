"""CPU of a row in all processes: Spark reading alone, its own sink, our sink, our sink in Arrow.

And of rows that ``ArrowKafkaSource`` has decoded and brings into the JVM, as for readers of SQL.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks import arrow_source, orders, rows, spark
from benchmarks.cpu import KINDS, CpuMeter
from benchmarks.plot import Chart
from benchmarks.report import Result, Table, median_ratio
from benchmarks.stage import Stage, refuse, staged

_ROWS = 6_000_000
_ROUNDS = 2
_PARTITIONS = 4
_WARM, _COUNTED, _LAST = 2, 6, 1
_LABELS = {
    "noop": "Spark reading only (noop)",
    "arrow_noop": "ArrowKafkaSource's rows brought into Spark (noop)",
    "spark_sink": "Spark's own Kafka sink, at least once",
    "exactly_once": "ours, exactly once, Spark's source",
    "arrow": "ours, exactly once, ArrowKafkaSource",
    "etl_exactly_once": "orders ETL with Polars, Spark's source",
    "etl_arrow": "orders ETL with Polars, ArrowKafkaSource",
}
_RATIOS = {
    "arrow_noop_over_noop": ("arrow_noop", "noop"),
    "arrow_over_noop": ("arrow", "noop"),
    "arrow_over_spark_sink": ("arrow", "spark_sink"),
    "arrow_over_exactly_once": ("arrow", "exactly_once"),
    "etl_arrow_over_etl_exactly_once": ("etl_arrow", "etl_exactly_once"),
}
Figures = dict[str, float]
"""CPU µs a row of each kind of process, and ``rows_per_second``."""


def run(arguments: argparse.Namespace) -> Result:
    """Run all variants in turns, in alternating order."""
    count = arguments.rows or _ROWS
    rounds = arguments.rounds or _ROUNDS
    variants = [v for v in _LABELS if v in (arguments.only or ",".join(_LABELS)).split(",")]
    found: dict[str, list[Figures]] = {variant: [] for variant in variants}
    with staged() as stage, spark.session() as session:
        stage.topic("input", _PARTITIONS)
        batch_rows = count // _COUNTED
        total = batch_rows * (_WARM + _COUNTED + _LAST)
        rows.fill(stage.bootstrap, "input", total)
        expected = {"pass": (total, stage.read("input")["sum"])}
        for number in range(rounds):
            for variant in variants if number % 2 == 0 else variants[::-1]:
                figures = _measure(
                    session, stage, variant, f"{variant}-{number}", batch_rows, expected
                )
                found[variant].append(figures)
                print(f"{variant}: {figures}", flush=True)
    return _result(count, found)


def _measure(
    session: Any, stage: Stage, variant: str, run: str, batch_rows: int, expected: dict[str, Any]
) -> Figures:
    output = stage.topic(f"out-{run}", _PARTITIONS)
    etl, sink = variant.startswith("etl_"), variant.removeprefix("etl_")
    with CpuMeter() as meter:
        query = _started(session, stage, sink, run, output, batch_rows, etl=etl)
        batches = arrow_source.drained(query)
    if not sink.endswith("noop"):
        told = stage.read(output)
        read = told["rows"], told["sum"]
        refuse(run, read, expected.setdefault("etl" if etl else "pass", read))
    stage.drop(output)
    counted, start_ms, end_ms = spark.steady(batches, _WARM, _COUNTED)
    used = meter.between(start_ms, end_ms)
    cpu = {kind: round(seconds / counted * 1e6, 3) for kind, seconds in used.items()}
    return cpu | {"rows_per_second": round(counted / (end_ms - start_ms) * 1000)}


def _started(
    session: Any, stage: Stage, sink: str, run: str, output: str, batch_rows: int, *, etl: bool
) -> Any:
    trigger = {"availableNow": True}
    if not sink.startswith("arrow"):
        source = spark.read(session, stage, "input", **spark.bulk(batch_rows))
        transformed = orders.in_arrow(source) if etl else source
        return spark.start(sink, transformed, stage, run, output, trigger)
    read = arrow_source.of(
        stage, "input", orders.clean if etl else None, max_rows_per_batch=batch_rows
    )
    if sink == "arrow_noop":
        return arrow_source.start_noop(read, session, stage, run, trigger)
    return arrow_source.start(read, stage, run, output, trigger)


def _result(count: int, found: dict[str, list[Figures]]) -> Result:
    def cpu(figures: Figures) -> float:
        return sum(figures[kind] for kind in KINDS)

    ratios = {
        f"cpu_{name}": median_ratio([cpu(f) for f in found[below]], [cpu(f) for f in found[above]])
        for name, (above, below) in _RATIOS.items()
        if {above, below} <= found.keys()
    }
    ratios |= {
        name: median_ratio(
            [f["rows_per_second"] for f in found[above]],
            [f["rows_per_second"] for f in found[below]],
        )
        for name, (above, below) in _RATIOS.items()
        if {above, below} <= found.keys()
    }
    table = Table(
        f"CPU µs a row, {count:,} rows, medians; a ratio above 1: Arrow needs less CPU",
        ("variant", "CPU", *KINDS, "rows/s"),
        [
            (
                _LABELS[variant],
                f"{statistics.median(map(cpu, each)):.2f}",
                *(f"{statistics.median(f[kind] for f in each):.2f}" for kind in KINDS),
                f"{statistics.median(f['rows_per_second'] for f in each):,.0f}",
            )
            for variant, each in found.items()
        ],
    )
    chart = Chart(
        "CPU of a row",
        "µs",
        {_LABELS[v]: {"CPU µs": statistics.median(map(cpu, each))} for v, each in found.items()},
    )
    return Result(
        "arrow",
        {"rows": count, "partitions": _PARTITIONS},
        {"figures": found},
        ratios,
        [chart],
        [table],
    )
