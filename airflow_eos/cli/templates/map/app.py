"""Clicks that have a page, as they came. `cleaned` is the function to change.

spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 my_pipeline.py \
        --bootstrap-servers localhost:9092 --checkpoint checkpoint
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from airflow_eos.sinks.app import App, argument_parser, run_app


def main() -> None:
    """Run until drained, or until everything is read with ``--trigger available-now``."""
    parser = argument_parser("Clean clicks.", prefix="my_pipeline")
    parser.add_argument("--input-topic", default="my_pipeline")
    parser.add_argument("--output-topic", default="my_pipeline.out")
    args = parser.parse_args()
    app = App.of(args)
    spark = (
        SparkSession.builder.appName("my_pipeline").config("spark.log.level", "WARN").getOrCreate()
    )
    rows = cleaned(app.read(spark, args.input_topic))
    app.start(rows, topic=args.output_topic, query_name="my_pipeline").awaitTermination()


def cleaned(rows: DataFrame) -> DataFrame:
    """Rows of the output topic: a value, and optionally a key."""
    has_page = "get_json_object(CAST(value AS string), '$.page') IS NOT NULL"
    return rows.where(has_page).select("key", "value")


if __name__ == "__main__":
    run_app(main)
