"""The app of a drill: rows go through as they are. Nobody imports it; ``spark-submit`` runs it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from airflow_eos.sinks.app import App, argument_parser, run_app


def main() -> None:
    """Read the input topic, and deliver its rows unchanged to the output topic."""
    parser = argument_parser("Rows as they are, for a drill.", prefix="eos-drill")
    parser.add_argument("--input-topic", required=True)
    parser.add_argument("--output-topic", required=True)
    args = parser.parse_args()
    app = App.of(args)
    spark = SparkSession.builder.appName("eos_drill").getOrCreate()
    rows = app.read(spark, args.input_topic).select("key", "value")
    app.start(rows, topic=args.output_topic, query_name="eos_drill").awaitTermination()


if __name__ == "__main__":
    run_app(main)
