"""The Spark app that ``benchmarks.state`` starts: counts by key, Kafka in and out, exactly once.

The argument is JSON: bootstrap, input, output, checkpoint, prefix, tasks, store (rocksdb or
default), heap, local (a folder), most (rows of a batch at most), least (rows that a batch waits
for), until (a file: when it exists, the app drains; none: when everything is read), batches (a file
for Spark's figures of each batch).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.sinks import KafkaSink, start_exactly_once
from airflow_eos.sinks.source import stateful_spark_conf, tuned_source_options
from benchmarks import spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def main() -> None:
    """Run the app until it is asked to drain, or to the end of the topic."""
    app: dict[str, Any] = json.loads(sys.argv[1])
    conf = {
        "spark.driver.memory": app["heap"],
        "spark.local.dir": app["local"],
        "spark.sql.shuffle.partitions": str(app["tasks"]),
        **(stateful_spark_conf() if app["store"] == "rocksdb" else {}),
    }
    with spark.session(conf=conf) as session:
        query = start_exactly_once(
            _counted(session, app),
            KafkaSink(app["bootstrap"], topic=app["output"], transactional_id_prefix=app["prefix"]),
            checkpoint_location=app["checkpoint"],
            trigger={"processingTime": "0 seconds"} if app["until"] else {"availableNow": True},
            output_mode="update",
        )
        if app["until"]:
            while not (Path(app["until"]).exists() or query.awaitTermination(1)):
                pass
            query.drain()
        query.awaitTermination()
        told = [dict(batch.parts) | {"rows": batch.rows} for batch in spark.batches_of(query)]
        Path(app["batches"]).write_text(json.dumps(told), encoding="utf-8")


def _counted(session: SparkSession, app: dict[str, Any]) -> DataFrame:
    """Count each key; the key keeps the bytes that it came in."""
    options = tuned_source_options(bulk=not app["until"])
    if app["most"]:
        options["maxOffsetsPerTrigger"] = str(app["most"])
    if app["least"]:
        options["minOffsetsPerTrigger"] = str(app["least"])
    return (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", app["bootstrap"])
        .option("subscribe", app["input"])
        .options(startingOffsets="earliest", **options)
        .load()
        .selectExpr("cast(conv(hex(key), 16, 10) AS bigint) AS k")
        .groupBy("k")
        .count()
        .selectExpr(
            "unhex(lpad(hex(k), 16, '0')) AS key", "cast(cast(count AS string) AS binary) AS value"
        )
    )


if __name__ == "__main__":
    main()
