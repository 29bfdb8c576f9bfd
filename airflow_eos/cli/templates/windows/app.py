"""Clicks of each page in windows of ten seconds, to two outputs; change `counted`.

A window is written once, when the watermark has passed its end. `outputs.json` says where the rows
go: every window to one topic, the busy ones also to a second. A batch is delivered to both, or to
neither.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 my_pipeline.py \
        --bootstrap-servers localhost:9092 --checkpoint checkpoint --outputs outputs.json
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from airflow_eos.sinks.app import App, argument_parser, run_app
from airflow_eos.sinks.source import stateful_spark_conf


def main() -> None:
    """Run until drained, or until everything is read with ``--trigger available-now``."""
    parser = argument_parser("Count clicks in windows.", prefix="my_pipeline")
    parser.add_argument("--input-topic", default="my_pipeline")
    parser.add_argument("--output-topic", default="my_pipeline.out", help="without --outputs")
    args = parser.parse_args()
    app = App.of(args)
    spark = (
        SparkSession.builder.appName("my_pipeline")
        .config("spark.log.level", "WARN")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 2)  # fixed by the first start of a checkpoint
        .config(map={**stateful_spark_conf()})
        .getOrCreate()
    )
    rows = counted(app.read(spark, args.input_topic))
    app.start(rows, topic=args.output_topic, query_name="my_pipeline").awaitTermination()


def counted(rows: DataFrame) -> DataFrame:
    """One row for each page and window, keyed by the page."""
    click = F.from_json(F.col("value").cast("string"), "page string, at timestamp")
    windows = (
        rows.select(click["page"].alias("page"), click["at"].alias("at"))
        .dropna()
        .withWatermark("at", "10 seconds")
        .groupBy(F.window("at", "10 seconds"), "page")
        .count()
    )
    value = F.struct("page", F.col("window.start").alias("start"), F.col("count").alias("clicks"))
    return windows.select(F.col("page").alias("key"), F.to_json(value).alias("value"))


if __name__ == "__main__":
    run_app(main)
