"""Streaming queries over ``ArrowKafkaSource``, beside those of :mod:`benchmarks.spark`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.sinks import KafkaSink, start_exactly_once
from airflow_eos.sources import ArrowKafkaSource
from benchmarks import spark
from benchmarks.spark import Batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_eos.arrow.source.task import Transformation
    from benchmarks.stage import Reached


def of(
    stage: Reached, topic: str, transformation: Transformation | None = None, **how: Any
) -> ArrowKafkaSource:
    """Return a source of the topic's key and value, transformed or as they are."""
    source = ArrowKafkaSource(stage.bootstrap, topic, **how).select("key", "value")
    return source if transformation is None else source.map(transformation)


def start(
    source: ArrowKafkaSource, stage: Reached, name: str, output: str, trigger: Mapping[str, Any]
) -> Any:
    """Start a query that writes the source's rows to the topic ``output``, exactly once."""
    return start_exactly_once(
        source,
        KafkaSink(stage.bootstrap, topic=output, transactional_id_prefix=name),
        checkpoint_location=str(stage.folder / name),
        trigger=trigger,
    )


def start_noop(
    source: ArrowKafkaSource,
    session: SparkSession,
    stage: Reached,
    name: str,
    trigger: Mapping[str, Any],
) -> Any:
    """Start a query that brings the rows into the JVM, as a reader of SQL would, and drops them."""
    checkpoint = str(stage.folder / name)
    frame = source.connected(session, CheckpointStore.open(checkpoint)).frame
    writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    return writer.trigger(**trigger).start()


def drained(query: Any) -> list[Batch]:
    """Wait for a query that ends by itself; return its batches, with rows counted by offsets.

    What Spark counts as rows of this source are ranges, or tasks.
    """
    query.awaitTermination()
    found = []
    for progress, batch in zip(
        [each for each in query.recentProgress if each.numInputRows],
        spark.batches_of(query),
        strict=True,
    ):
        (source,) = progress.sources
        read = _total(source.endOffset) - _total(source.startOffset)
        found.append(Batch(read, batch.started_ms, batch.took_ms, batch.parts))
    return found


def _total(offset: str | None) -> int:
    """Sum the offsets; the first batch's start is None, so 0, where the input begins."""
    topics = json.loads(offset or "null") or {}
    return sum(sum(partitions.values()) for topic, partitions in topics.items() if topic[:1] != "/")
