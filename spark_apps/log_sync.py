"""Writes log lines from Kafka to Parquet files, in a folder for each day, exactly once.

In: ``{"at": "2026-11-23T10:15:30Z", "host": "web-1", ...}``, or any text. Out, under
``day=2026-11-23/``: time, host, the line as it came, and its place in the topic. A line that has no
time gets the time that Kafka has for it, so no line is dropped.

A stream of logs usually leaves many small files. Here rows are put together before they are
published, not compacted afterwards: ``repartition("day")`` brings all lines of a day to one task,
and a task writes one file for each day that it has. So a batch is one file a day, and ``--trigger``
says how many batches there are: "10 minutes" is six files an hour.
"""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from airflow_eos.sinks.app import App, argument_parser, run_app


def main() -> None:
    """Run until drained, or with ``--trigger available-now`` until all input is done."""
    parser = argument_parser("Keep log lines in files, by day.", prefix="log-sync")
    parser.add_argument("--input-topic", default="logs")
    parser.add_argument("--folder", default="/data/logs", help="or the URL of a bucket")
    parser.add_argument("--tasks", type=int, default=2, help="days that are written at a time")
    args = parser.parse_args()
    args.outputs = args.outputs or outputs(args.folder)
    app = App.of(args)
    spark = (
        SparkSession.builder.appName("log-sync")
        # A day is a day in UTC wherever the executors stand.
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    query = app.start(
        log_lines(app.read(spark, args.input_topic)).repartition(args.tasks, "day"),
        topic=args.input_topic,
        query_name="log-sync",
    )
    query.awaitTermination()


def outputs(folder: str) -> str:
    """Return the app's outputs as JSON, which configuration may replace."""
    return json.dumps(
        [{"name": "logs", "kind": "files", "folder": folder, "partition_by": ["day"]}]
    )


def log_lines(rows: DataFrame) -> DataFrame:
    """Return one log line with its day for each row of the input."""
    line = F.col("value").cast("string")
    told = F.from_json(line, "at string, host string")
    return rows.select(
        F.coalesce(F.try_to_timestamp(told["at"]), F.col("timestamp")).alias("at"),
        told["host"].alias("host"),
        line.alias("line"),
        "partition",
        "offset",
    ).withColumn("day", F.date_format("at", "yyyy-MM-dd"))


if __name__ == "__main__":
    run_app(main)
