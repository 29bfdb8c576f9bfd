"""Latency: of a row until a ``read_committed`` reader has it, and of a small batch alone."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_eos.sinks.source import tuned_source_options
from benchmarks import arrow_source, flink, probe, rows, spark
from benchmarks.plot import Chart
from benchmarks.report import Result, Table, median_ratio
from benchmarks.stage import Stage, refuse, staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARTITIONS = 4
_TASKS = 2
"""One task for each core, as Flink's parallelism: fewer tasks make fewer transactions."""
_RATE = 1000
_SECONDS = 30.0
_WARM_S = 60.0
_ROUNDS = 3
_SMALL_ROWS = 1000
_SMALL_BATCHES = 60
_SMALL_WARM = 15
_WARM_ROUNDS = 2
"""Rounds not counted: for some minutes each sink finds a warmer JVM than the one before."""
_SMALL_SINKS = (
    "noop",
    "spark_sink",
    "callback",
    "python",
    "at_least_once",
    "exactly_once",
    "arrow",
)
_WRITES_NOTHING = ("noop", "callback", "python")
_FLINK_MS = (1000, 500, 100)
_LABELS = {
    "noop": "Spark reading only (noop)",
    "callback": "the same in a function of foreachBatch",
    "python": "the same in tasks in Python, whose reports that function collects",
    "spark_sink": "Spark's own Kafka sink, at least once",
    "exactly_once": "ours, exactly once",
    "arrow": "ours, exactly once, ArrowKafkaSource",
    "at_least_once": "ours, at least once",
    "flink_1000": "Flink, checkpoint every 1 s",
    "flink_500": "Flink, checkpoint every 500 ms",
    "flink_100": "Flink, checkpoint every 100 ms",
}
_RATIOS = {
    "row_p50_over_spark_sink": "spark_sink",
    "row_p50_over_flink_1s": "flink_1000",
    "row_p50_over_flink_500ms": "flink_500",
    "row_p50_over_flink_100ms": "flink_100",
}
_PARTS = {
    "offset and commit log": ("walCommit", "commitOffsets"),
    "planning": ("queryPlanning",),
    "sink": ("addBatch",),
}
"""The parts of a batch, by the names in Spark's ``StreamingQueryProgress.durationMs``."""
_PERCENTILES = (50, 90, 99)
_AT_ONCE, _ALWAYS = {"availableNow": True}, {"processingTime": "0 seconds"}


def run(arguments: argparse.Namespace) -> Result:
    """Measure small batches first, then the latency of rows."""
    rounds = arguments.rounds or _ROUNDS
    seconds = arguments.seconds or _SECONDS
    ways = ["spark_sink", "exactly_once", "arrow", *(f"flink_{ms}" for ms in _FLINK_MS)]
    ways = [way for way in ways if not arguments.only or way in arguments.only.split(",")]
    with staged() as stage, spark.session() as session:
        small = _small_batches(session, stage, rounds)
        found = {way: [_rows(session, stage, way, seconds + _WARM_S)] for way in ways}
    return _result(small, found, seconds)


def _small_batches(
    session: SparkSession, stage: Stage, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Return, by sink and round, the median of each part of a batch of 1,000 rows, in ms."""
    count = _SMALL_ROWS * _SMALL_BATCHES
    stage.topic("small", _PARTITIONS)
    rows.fill(stage.bootstrap, "small", count)
    expected = stage.read("small")
    found: dict[str, list[dict[str, float]]] = {sink: [] for sink in _SMALL_SINKS}
    for number in range(_WARM_ROUNDS + rounds):
        for sink in _SMALL_SINKS if number % 2 == 0 else _SMALL_SINKS[::-1]:
            name = f"small-{sink}-{number}"
            output = stage.topic(name, _PARTITIONS)
            if sink == "arrow":
                batches = arrow_source.drained(
                    _started_arrow(stage, "small", name, output, _AT_ONCE, _SMALL_ROWS)
                )
            else:
                source = _source(session, stage, "small", maxOffsetsPerTrigger=_SMALL_ROWS)
                batches = spark.drained(spark.start(sink, source, stage, name, output, _AT_ONCE))
            refuse(f"{name} read", sum(batch.rows for batch in batches), count)
            if sink not in _WRITES_NOTHING:
                read = stage.read(output)
                refuse(name, (read["rows"], read["sum"]), (count, expected["sum"]))
            parts = [batch.parts for batch in batches[_SMALL_WARM:]]
            found[sink].append(
                {part: statistics.median(p[part] for p in parts) for part in parts[0]}
            )
            print(f"{name}: {found[sink][-1]['triggerExecution']} ms", flush=True)
    return {sink: each[_WARM_ROUNDS:] for sink, each in found.items()}


def _source(session: SparkSession, stage: Stage, topic: str, **options: Any) -> DataFrame:
    """Read the topic with the source options that we advise where latency counts."""
    advised = tuned_source_options()
    return spark.read(session, stage, topic, **advised, **options).coalesce(_TASKS)


def _started_arrow(
    stage: Stage,
    topic: str,
    name: str,
    output: str,
    trigger: Mapping[str, Any],
    most: int | None = None,
) -> Any:
    source = arrow_source.of(stage, topic, max_rows_per_batch=most, max_tasks=_TASKS)
    return arrow_source.start(source, stage, name, output, trigger)


def _rows(session: SparkSession, stage: Stage, way: str, seconds: float) -> list[float]:
    """Measure the latencies of single rows in ms, through Spark or Flink."""
    source, target = stage.topic(f"in-{way}", _PARTITIONS), stage.topic(f"out-{way}", _PARTITIONS)
    settings: dict[str, Any] = {
        "bootstrap": stage.bootstrap,
        "input": source,
        "output": target,
        "rate": _RATE,
    }
    running: Any
    if way.startswith("flink_"):
        running = flink.start(
            bootstrap=stage.bootstrap,
            input=source,
            output=target,
            prefix=way,
            etl=False,
            bounded=False,
            checkpoints=str(stage.folder / way),
            checkpoint_ms=int(way.partition("_")[2]),
            parallelism=_TASKS,
            producer={},
        )
    elif way == "arrow":
        running = _started_arrow(stage, source, way, target, _ALWAYS)
    else:
        frame = _source(session, stage, source)
        running = spark.start(way, frame, stage, way, target, _ALWAYS)
    try:
        # The first row shows that everything runs; its time is a start, not a latency.
        probe.measure(**settings | {"seconds": 1.0, "warm_s": 0.0})
        found = probe.measure(**settings | {"seconds": seconds, "warm_s": _WARM_S})
    finally:
        flink.stop(running) if way.startswith("flink_") else running.stop()
    print(f"{way}: p50 {np.percentile(found, 50):.0f} ms", flush=True)
    return found


def _result(
    small: dict[str, list[dict[str, float]]],
    found: dict[str, list[list[float]]],
    seconds: float,
) -> Result:
    whole = {sink: [parts["triggerExecution"] for parts in each] for sink, each in small.items()}
    quantiles = {
        way: {f"p{p}": float(np.percentile(runs[0], p)) for p in _PERCENTILES}
        for way, runs in found.items()
    }
    ratios = {
        "small_batch_p50_over_spark_sink": median_ratio(whole["exactly_once"], whole["spark_sink"]),
        "small_batch_p50_over_noop": median_ratio(whole["exactly_once"], whole["noop"]),
        "arrow_small_batch_p50_over_spark_sink": median_ratio(whole["arrow"], whole["spark_sink"]),
        "arrow_small_batch_p50_over_noop": median_ratio(whole["arrow"], whole["noop"]),
        "small_batch_p50_over_python": median_ratio(whole["exactly_once"], whole["python"]),
    }
    for ours, prefix in (("exactly_once", ""), ("arrow", "arrow_")):
        ratios |= {
            f"{prefix}{name}": quantiles[ours]["p50"] / quantiles[way]["p50"]
            for name, way in _RATIOS.items()
            if {ours, way} <= quantiles.keys()
        }
    return Result(
        name="latency",
        settings={
            "rows_per_second": _RATE,
            "seconds": seconds,
            "warm_up_seconds": _WARM_S,
            "small_batches": {
                "rows": _SMALL_ROWS,
                "batches": _SMALL_BATCHES,
                "warm_batches": _SMALL_WARM,
                "warm_rounds": _WARM_ROUNDS,
            },
            "tasks": _TASKS,
            "flink": {"version": flink.VERSION, "connector": flink.CONNECTOR},
        },
        raw={"small_batch_parts_ms": small, "row_latency_ms": quantiles},
        ratios=ratios,
        charts=_charts(whole, quantiles),
        tables=_tables(small, quantiles, seconds),
    )


def _part(rounds: list[dict[str, float]], names: tuple[str, ...]) -> float:
    return statistics.median(sum(parts[name] for name in names) for parts in rounds)


def _charts(whole: dict[str, list[float]], quantiles: dict[str, dict[str, float]]) -> list[Chart]:
    small = {_LABELS[sink]: {"p50": statistics.median(each)} for sink, each in whole.items()}
    charts = [Chart(f"A batch of {_SMALL_ROWS} rows, trigger to commit", "ms", small)]
    if quantiles:
        bars = {_LABELS[way]: each for way, each in quantiles.items()}
        charts.append(Chart(f"A row at {_RATE} rows/s, produced to read_committed", "ms", bars))
    return charts


def _tables(
    small: dict[str, list[dict[str, float]]],
    quantiles: dict[str, dict[str, float]],
    seconds: float,
) -> list[Table]:
    return [
        Table(
            f"A batch of {_SMALL_ROWS} rows from trigger to commit, p50 in ms",
            ("sink", "median", "rounds", *_PARTS),
            [
                (
                    _LABELS[sink],
                    f"{_part(each, ('triggerExecution',)):.0f}",
                    ", ".join(f"{parts['triggerExecution']:.0f}" for parts in each),
                    *(f"{_part(each, names):.0f}" for names in _PARTS.values()),
                )
                for sink, each in small.items()
            ],
        ),
        Table(
            f"A row at {_RATE} rows/s, produced to read by read_committed, {seconds:.0f} s, in ms",
            ("way", *(f"p{p}" for p in _PERCENTILES)),
            [
                (_LABELS[way], *(f"{v:.0f}" for v in each.values()))
                for way, each in quantiles.items()
            ],
        ),
    ]
