"""Counts page views (PV) for each app in Spark's state, exact through any crash.

The worked example: checkpoint 100 holds the offsets read so far, (0, 10,000) and (1, 10,005), *and*
the count that belongs to them, 20,005. The driver is killed in batch 101, which has read three more
views and counted to 20,008. The next driver starts from checkpoint 100: it reads the same three
again and counts to 20,008. No checkpoint has 20,008 at the offsets of 20,005, which would count the
three twice, and no reader sees a count twice: a batch becomes visible as a whole, once, and the
state of a batch that does not become visible is thrown away with it.

In: ``{"app": "shop", ...}``. Out, keyed by app: ``{"app": "shop", "views": 20005}`` whenever the
count of an app has changed in a batch.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from airflow_eos.sinks.app import App, argument_parser, run_app
from airflow_eos.sinks.source import stateful_spark_conf


def main() -> None:
    """Run until drained, or with ``--trigger available-now`` until all input is done."""
    parser = argument_parser("Count page views for each app.", prefix="page-views")
    parser.add_argument("--input-topic", default="page_views")
    parser.add_argument("--output-topic", default="page_views.counts")
    parser.add_argument("--state-partitions", type=int, default=4, help="fixed by the first start")
    args = parser.parse_args()
    app = App.of(args)
    spark = (
        SparkSession.builder.appName("page-views")
        # Spark's 200 would open 200 transactions a batch.
        .config("spark.sql.shuffle.partitions", args.state_partitions)
        .config(map={**stateful_spark_conf()})
        .getOrCreate()
    )
    query = app.start(
        count_views(app.read(spark, args.input_topic)),
        topic=args.output_topic,
        output_mode="update",
        query_name="page-views",
    )
    query.awaitTermination()


def count_views(rows: DataFrame) -> DataFrame:
    """Count the views of each app; rows that name no app are not views."""
    view = F.from_json(F.col("value").cast("string"), "app string")
    counts = rows.select(view["app"].alias("app")).dropna().groupBy("app").count()
    return counts.select(
        F.col("app").alias("key"),
        F.to_json(F.struct("app", F.col("count").alias("views"))).alias("value"),
    )


if __name__ == "__main__":
    run_app(main)
