"""People whose ``identifyNumber`` is 18 long, counted in windows of 20 seconds, to a second topic.

This is the example job that Flink's documents use. There the records are Avro through a schema
registry; here they are JSON, because decoding is not what the example is about. Spark's
``from_avro`` reads plain Avro. It knows no registry: of a registry's records cut off the first five
bytes (a zero and the schema's id), ``F.expr("substring(value, 6)")``, and give it the schema.

A window is written once, when the watermark has passed its end: late rows are dropped, and the
last windows stay in the state until newer rows arrive.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from airflow_eos.sinks.app import App, argument_parser, run_app

PERSON = "name string, identifyNumber string, seenAt timestamp"
IDENTIFY_NUMBER_LENGTH = 18


def main() -> None:
    """Run until drained, or until everything is done with ``--trigger available-now``."""
    parser = argument_parser("Keep valid identities.", prefix="identity-filter")
    parser.add_argument("--input-topic", default="people")
    parser.add_argument("--output-topic", default="people.valid")
    parser.add_argument("--state-partitions", type=int, default=4, help="fixed by the first start")
    args = parser.parse_args()
    app = App.of(args)
    spark = (
        SparkSession.builder.appName("identity-filter")
        .config("spark.sql.session.timeZone", "UTC")
        # Spark's 200 would open 200 transactions a batch.
        .config("spark.sql.shuffle.partitions", args.state_partitions)
        .getOrCreate()
    )
    query = app.start(
        valid_identities(app.read(spark, args.input_topic)),
        topic=args.output_topic,
        query_name="identity-filter",
    )
    query.awaitTermination()


def valid_identities(rows: DataFrame) -> DataFrame:
    """For each window and valid number: how often it was seen."""
    person = F.from_json(F.col("value").cast("string"), PERSON)
    people = (
        rows.select(person.alias("person"))
        .select("person.*")
        .where(F.length("identifyNumber") == IDENTIFY_NUMBER_LENGTH)
        .withWatermark("seenAt", "20 seconds")
    )
    seen = people.groupBy(F.window("seenAt", "20 seconds"), "identifyNumber").agg(
        F.count("*").alias("seen")
    )
    return seen.select(
        F.col("identifyNumber").alias("key"),
        F.to_json(F.struct("identifyNumber", "window.start", "window.end", "seen")).alias("value"),
    )


if __name__ == "__main__":
    run_app(main)
