"""How often each user has clicked: a new value replaces the former one; change `counted`.

The counts are kept in Spark's state and exact through any crash. A reader of the topic keeps the
last row of a key; `outputs` in the DAG sends the rows to PostgreSQL, MySQL, Redis or HBase instead.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 my_pipeline.py \
        --bootstrap-servers localhost:9092 --checkpoint checkpoint
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from airflow_eos.sinks.app import App, argument_parser, run_app
from airflow_eos.sinks.source import stateful_spark_conf


def main() -> None:
    """Run until drained, or until everything is read with ``--trigger available-now``."""
    parser = argument_parser("Count clicks of each user.", prefix="my_pipeline")
    parser.add_argument("--input-topic", default="my_pipeline")
    parser.add_argument("--output-topic", default="my_pipeline.out")
    args = parser.parse_args()
    app = App.of(args)
    spark = (
        SparkSession.builder.appName("my_pipeline")
        .config("spark.log.level", "WARN")
        .config("spark.sql.shuffle.partitions", 2)  # fixed by the first start of a checkpoint
        .config(map={**stateful_spark_conf()})
        .getOrCreate()
    )
    app.start(
        counted(app.read(spark, args.input_topic)),
        topic=args.output_topic,
        output_mode="update",
        query_name="my_pipeline",
    ).awaitTermination()


def counted(rows: DataFrame) -> DataFrame:
    """The running count of each user whose count has changed, keyed by the user."""
    click = F.from_json(F.col("value").cast("string"), "user string")
    counts = rows.select(click["user"].alias("user")).dropna().groupBy("user").count()
    value = F.to_json(F.struct("user", F.col("count").alias("clicks")))
    return counts.select(F.col("user").alias("key"), value.alias("value"))


if __name__ == "__main__":
    run_app(main)
