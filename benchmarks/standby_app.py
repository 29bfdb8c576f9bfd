"""The app that ``benchmarks.standby`` starts: copies the topic ``input`` until it is killed."""

from __future__ import annotations

from pyspark.sql import SparkSession

from airflow_eos.sinks.app import App, argument_parser, run_app


def main() -> None:
    """Copy the topic; with ``--standby``, wait until the other driver has ended."""
    parser = argument_parser("Copy.", prefix="standby")
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    app = App.of(args)
    spark = SparkSession.builder.appName("standby").getOrCreate()
    rows = app.read(spark, "input").select("key", "value")
    app.start(rows, topic=args.output, query_name="standby").awaitTermination()


if __name__ == "__main__":
    run_app(main)
