"""Clicks into a table on S3, a partition for each day; change `clicks`.

`outputs.json` says which table, its columns and its partitions; it is made by the first start. The
environment says how S3 is reached (AWS_ENDPOINT, AWS_ACCESS_KEY_ID, …), here and where a recovery
runs. `query.py` reads the table.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 my_pipeline.py \
        --bootstrap-servers localhost:9092 --checkpoint checkpoint --outputs outputs.json
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from airflow_eos.sinks.app import App, argument_parser, run_app


def main() -> None:
    """Run until drained, or until everything is read with ``--trigger available-now``."""
    parser = argument_parser("Clicks into a table.", prefix="my_pipeline")
    parser.add_argument("--input-topic", default="my_pipeline")
    parser.add_argument("--output-topic", default="my_pipeline.out", help="not used: a table is")
    args = parser.parse_args()
    app = App.of(args)
    spark = (
        SparkSession.builder.appName("my_pipeline")
        .config("spark.log.level", "WARN")
        .config("spark.sql.session.timeZone", "UTC")  # in which a day begins
        .getOrCreate()
    )
    rows = clicks(app.read(spark, args.input_topic))
    app.start(rows, topic=args.output_topic, query_name="my_pipeline").awaitTermination()


def clicks(rows: DataFrame) -> DataFrame:
    """Rows of the table: its columns, by name."""
    click = F.from_json(
        F.col("value").cast("string"), "id string, user string, page string, at timestamp"
    )
    return (
        rows.select(click.alias("click"))
        .select("click.*")
        .dropna()
        .withColumn("day", F.to_date("at"))
    )


if __name__ == "__main__":
    run_app(main)
