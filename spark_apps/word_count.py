"""Counts words in Spark's state, and writes changed counts to Kafka: exact through any crash.

In: lines of text. Out, keyed by word: ``{"word": "once", "count": 7}`` whenever a count has changed
in a batch; a word that comes twice in one batch is written once, with its new count. On a compacted
topic the last row of a word is its count.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from airflow_eos.sinks.app import App, argument_parser, run_app
from airflow_eos.sinks.source import stateful_spark_conf

NO_WORD = r"[^\p{L}\p{N}]+"


def main() -> None:
    """Run until drained, or with ``--trigger available-now`` until all input is done."""
    parser = argument_parser("Count words.", prefix="word-count")
    parser.add_argument("--input-topic", default="lines")
    parser.add_argument("--output-topic", default="words.counts")
    parser.add_argument("--state-partitions", type=int, default=4, help="fixed by the first start")
    args = parser.parse_args()
    app = App.of(args)
    spark = (
        SparkSession.builder.appName("word-count")
        # Spark's 200 would open 200 transactions a batch.
        .config("spark.sql.shuffle.partitions", args.state_partitions)
        .config(map={**stateful_spark_conf()})
        .getOrCreate()
    )
    query = app.start(
        count_words(app.read(spark, args.input_topic)),
        topic=args.output_topic,
        output_mode="update",
        query_name="word-count",
    )
    query.awaitTermination()


def count_words(rows: DataFrame) -> DataFrame:
    """Count each word, in small letters."""
    words = F.split(F.lower(F.col("value").cast("string")), NO_WORD)
    counts = rows.select(F.explode(words).alias("word")).where("word <> ''").groupBy("word").count()
    return counts.select(
        F.col("word").alias("key"), F.to_json(F.struct("word", "count")).alias("value")
    )


if __name__ == "__main__":
    run_app(main)
