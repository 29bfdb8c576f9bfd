"""Passes on each row with a unique id once, however often its producer has sent it.

A source that has no offsets of its own (a device, a web hook, a producer without idempotence) sends
a row again when it is not sure. So each row has a unique id, and the ids that were seen are kept in
Spark's state, with the offsets that belong to them: a second copy is dropped in the same batch, in
a later one, and after any crash.

In: ``{"id": "m-1", "at": "2026-11-23T10:15:30Z", ...}``. An id is kept until the watermark, which
is the newest time seen less ``--remember``, has passed the id's time: a copy that comes later is a
late row and is dropped as such, where its own time is late too. A row without an id is never taken
for another's copy: its place in the topic is its id.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from airflow_eos.sinks.app import App, argument_parser, run_app
from airflow_eos.sinks.source import stateful_spark_conf


def main() -> None:
    """Run until drained, or with ``--trigger available-now`` until all input is done."""
    parser = argument_parser("Pass on each id once.", prefix="deduplicate")
    parser.add_argument("--input-topic", default="messages")
    parser.add_argument("--output-topic", default="messages.unique")
    parser.add_argument("--remember", default="1 hour", help="how long a copy can come later")
    parser.add_argument("--state-partitions", type=int, default=4, help="fixed by the first start")
    args = parser.parse_args()
    app = App.of(args)
    spark = (
        SparkSession.builder.appName("deduplicate")
        .config("spark.sql.session.timeZone", "UTC")
        # Spark's 200 would open 200 transactions a batch.
        .config("spark.sql.shuffle.partitions", args.state_partitions)
        .config(map={**stateful_spark_conf()})
        .getOrCreate()
    )
    query = app.start(
        unique_rows(app.read(spark, args.input_topic), remember=args.remember),
        topic=args.output_topic,
        query_name="deduplicate",
    )
    query.awaitTermination()


def unique_rows(rows: DataFrame, *, remember: str) -> DataFrame:
    """Select the first row of each id."""
    told = F.from_json(F.col("value").cast("string"), "id string, at string")
    position = F.concat_ws(" ", "topic", "partition", "offset")
    named = rows.withColumn("id", F.coalesce(told["id"], position)).withColumn(
        "at", F.coalesce(F.try_to_timestamp(told["at"]), F.col("timestamp"))
    )
    once = named.withWatermark("at", remember).dropDuplicatesWithinWatermark(["id"])
    return once.select("key", "value", "headers")


if __name__ == "__main__":
    run_app(main)
