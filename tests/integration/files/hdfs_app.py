"""A query whose tasks run in executors of their own, from JSON files to files on HDFS."""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession

from airflow_eos.sinks import FileSink, start_exactly_once


def main(source: str, url: str) -> None:
    """Deliver what is there, and print the numbers that Spark reads back."""
    settings: dict[str, Any] = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    builder = SparkSession.builder.master("local-cluster[2,1,600]").config(map=settings)
    spark = builder.config("spark.executor.memory", "512m").getOrCreate()
    read = spark.readStream.schema("id long, day string").option("maxFilesPerTrigger", 1)
    query = start_exactly_once(
        read.json(source).repartition(4),
        FileSink(f"{url}/out", "parquet", ["day"], name="orders"),
        checkpoint_location=f"{url}/checkpoint",
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    found = sorted(row.id for row in spark.read.parquet(f"{url}/out").collect())
    sys.stdout.write(f"read {found}\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
