"""The app that is submitted to clusters: as a user's, it knows Spark and ``airflow_eos.sinks``.

Rows go out as they came in; the audit names them by their value.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from airflow_eos.sinks.app import App, argument_parser, run_app


def main() -> None:
    """Run until drained, or until all is done with ``--trigger available-now``."""
    parser = argument_parser("Copy rows.", prefix="copy")
    parser.add_argument("--input-topic", required=True)
    parser.add_argument("--output-topic", required=True)
    args = parser.parse_args()
    app = App.of(args)
    spark = SparkSession.builder.appName(args.prefix).getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    rows = app.read(spark, args.input_topic).select("key", "value")
    query = app.start(rows, topic=args.output_topic, query_name=args.prefix)
    query.awaitTermination()


if __name__ == "__main__":
    run_app(main)
