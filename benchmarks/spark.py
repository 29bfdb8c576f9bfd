"""Starts streaming queries of one Spark session, from Kafka to one of several sinks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from os import environ
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_eos.local import spark_jars
from airflow_eos.sinks import KafkaSink, start_exactly_once
from airflow_eos.sinks.source import tuned_source_options, tuned_spark_conf
from benchmarks.stage import Reached

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SINKS = ("noop", "callback", "python", "spark_sink", "exactly_once", "at_least_once", "librdkafka")


@dataclass(frozen=True)
class Batch:
    """One micro-batch as Spark reports it; times in ms since the epoch."""

    rows: int
    started_ms: float
    took_ms: float
    parts: Mapping[str, int]

    @property
    def ended_ms(self) -> float:
        """The time at which the batch's commit was written."""
        return self.started_ms + self.took_ms


@contextmanager
def session(
    cores: int = 2,
    jars: Sequence[Path] = (),
    *,
    master: str | None = None,
    conf: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[SparkSession]:
    """Start a Spark session on the loopback interface, with ``jars`` beside its connector's.

    Spark is local with so many ``cores``, or the one that ``master`` names. The memory in ``conf``
    takes effect only where this process has not started a JVM yet.
    """
    from pyspark.sql import SparkSession

    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # One thread a task, as the documentation advises; the default in the Arrow source's tasks.
    environ.setdefault("POLARS_MAX_THREADS", "1")
    spark = (
        SparkSession.builder.master(master or f"local[{cores}]")
        .appName("benchmarks")
        .config("spark.jars", ",".join(str(jar) for jar in (*spark_jars(), *jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config(map={**tuned_spark_conf()})
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.sql.session.timeZone", "UTC")
        .config(map={**conf})
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def read(spark: SparkSession, stage: Reached, topic: str, **options: Any) -> DataFrame:
    """Read the topic's key and value, with the source that the documentation advises."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", stage.bootstrap)
        .option("subscribe", topic)
        .options(**({"startingOffsets": "earliest"} | options))
        .load()
        .select("key", "value")
    )


def bulk(rows_a_batch: int) -> dict[str, str]:
    """Return source options for a backlog in batches of ``rows_a_batch`` rows."""
    return {"maxOffsetsPerTrigger": str(rows_a_batch), **tuned_source_options(bulk=True)}


def start(
    sink: str, rows: DataFrame, stage: Reached, name: str, output: str, trigger: Mapping[str, Any]
) -> Any:
    """Start a query that writes ``rows`` to the topic ``output`` through one of ``SINKS``."""
    checkpoint = str(stage.folder / name)
    if sink in {"exactly_once", "at_least_once", "librdkafka"}:
        return start_exactly_once(
            rows,
            KafkaSink(
                stage.bootstrap,
                topic=output,
                transactional_id_prefix=name,
                producer="librdkafka" if sink == "librdkafka" else "arrow",
            ),
            checkpoint_location=checkpoint,
            trigger=trigger,
            guarantee="at_least_once" if sink == "at_least_once" else "exactly_once",
        )
    if sink == "python":
        rows = rows.mapInArrow(_counted, "report binary")
    writer = rows.writeStream.option("checkpointLocation", checkpoint).trigger(**trigger)
    if sink == "noop":
        return writer.format("noop").start()
    if sink == "callback":
        return writer.foreachBatch(_to_nowhere).start()
    if sink == "python":
        return writer.foreachBatch(_collected).start()
    return (
        writer.format("kafka")
        .option("kafka.bootstrap.servers", stage.bootstrap)
        .option("kafka.compression.type", "lz4")
        .option("topic", output)
        .start()
    )


def _to_nowhere(rows: DataFrame, _batch: int) -> None:
    rows.write.format("noop").mode("append").save()


def _counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count rows and report: the least that a sink's task in Python does."""
    import pyarrow as pa

    count = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"report": [str(count).encode()]})


def _collected(reports: DataFrame, _batch: int) -> None:
    reports.collect()


def drained(query: Any) -> list[Batch]:
    """Wait for a query that ends by itself; return its batches."""
    query.awaitTermination()
    return batches_of(query)


def batches_of(query: Any) -> list[Batch]:
    """Return the batches of a query that had rows."""
    return [
        Batch(
            rows=progress.numInputRows,
            started_ms=datetime.fromisoformat(progress.timestamp).timestamp() * 1000,
            took_ms=progress.durationMs["triggerExecution"],
            parts=dict(progress.durationMs),
        )
        for progress in query.recentProgress
        if progress.numInputRows
    ]


def steady(batches: list[Batch], warm: int, counted: int) -> tuple[int, float, float]:
    """Return rows, start and end (ms since the epoch) of ``counted`` batches after ``warm``."""
    if len(batches) < warm + counted + 1:
        raise SystemExit(f"{len(batches)} batches: expected {warm} + {counted}, and one more")
    found = batches[warm : warm + counted]
    return sum(batch.rows for batch in found), found[0].started_ms, found[-1].ended_ms


def unchanged(rows: DataFrame) -> DataFrame:
    """Return the rows as they are, for the pass-through pipeline."""
    return rows
