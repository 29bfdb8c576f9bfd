"""A user's app, as ``airflow-eos new`` lays it out; ``--suffix`` makes another version of it."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_eos.sinks.app import App, argument_parser, run_app


def main() -> None:
    parser = argument_parser("Copy rows.", prefix="copying")
    parser.add_argument("--input-topic")
    parser.add_argument("--output-topic")
    parser.add_argument("--suffix", default="")
    args = parser.parse_args()
    app = App.of(args)
    spark = SparkSession.builder.appName("copying").getOrCreate()
    value = F.concat(F.col("value").cast("string"), F.lit(args.suffix))
    rows = app.read(spark, args.input_topic).select("key", value.alias("value"))
    app.start(rows, topic=args.output_topic, query_name="copying").awaitTermination()


if __name__ == "__main__":
    run_app(main)
