"""The app that ``benchmarks.starting`` starts: copies the topic ``input``, and ends.

Arguments: the way, the checkpoint, the broker, the output. The operator passes checkpoint and
broker by the environment.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def _alone(checkpoint: str, bootstrap: str, output: str) -> None:
    """Copy with Spark alone, without an import of this package."""
    spark = SparkSession.builder.appName("alone").getOrCreate()
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("startingOffsets", "earliest")
        .option("subscribe", "input")
        .load()
    )
    query = (
        rows.select("key", "value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", output)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _ours(told: list[str], output: str) -> None:
    from airflow_eos.sinks.app import App, argument_parser

    app = App.of(argument_parser("Copy.", prefix=output).parse_args(told))
    spark = SparkSession.builder.appName("ours").getOrCreate()
    rows = app.read(spark, "input").select("key", "value")
    app.start(rows, topic=output, query_name="ours").awaitTermination()


if __name__ == "__main__":
    way, checkpoint, bootstrap, output = sys.argv[1:]
    if way == "alone":
        _alone(checkpoint, bootstrap, output)
    else:
        there = ["--checkpoint", checkpoint, "--bootstrap-servers", bootstrap]
        _ours(["--trigger", "available-now", *(there if bootstrap else [])], output)
