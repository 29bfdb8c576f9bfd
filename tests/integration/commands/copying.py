"""A pipeline of files: it copies ``FOLDER/in`` to ``FOLDER/out``; ``standby``: until drained."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from airflow_eos.sinks import FileSink, Output, start_exactly_once

folder, *options = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
rows = spark.readStream.schema("key string, value string").json(f"{folder}/in")
query = start_exactly_once(
    rows,
    [Output("rows", FileSink(f"{folder}/out", "json"))],
    checkpoint_location=os.environ.get("EOS_CHECKPOINT_LOCATION", f"{folder}/checkpoint"),
    standby="standby" in options,
    trigger={"processingTime": "1 second"} if options else {"availableNow": True},
)
query.awaitTermination()
