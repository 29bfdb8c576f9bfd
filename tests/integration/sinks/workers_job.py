"""What ``KafkaSink.check`` says of each interpreter: ``python workers_job.py ROOT PYTHON...``.

A driver that has the package, by ROOT, and workers that may have nothing.
"""

from __future__ import annotations

import json
import sys
import time

sys.path.insert(0, sys.argv[1])

from pyspark.sql import SparkSession

from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.sink import PRODUCERS, KafkaSink

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)


def said(python: str) -> str:
    spark.sparkContext.pythonExec = python  # PYSPARK_PYTHON, as the context took it
    try:
        for producer in PRODUCERS:
            before = time.monotonic()
            KafkaSink("127.0.0.1:1", "out", "etl", producer=producer).check(spark)
            sys.stderr.write(f"{producer}: {time.monotonic() - before:.2f} s\n")
    except ConfigurationError as refused:
        return str(refused)
    warm = spark.range(2, numPartitions=2).mapInArrow(_loaded, "id string").collect()
    return "fine, and " + " or ".join({row.id for row in warm})


def _loaded(batches):
    """Whether an Arrow function, as a task is one, finds the tasks' modules loaded, and whose."""
    import os
    import sys
    from pathlib import Path

    import pyarrow as pa
    import pyspark

    for batch in batches:
        loaded = "airflow_eos.arrow.producer.writer" in sys.modules
        daemon = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")[2]
        package = "a zip" if "pyspark.zip" in pyspark.__file__ else "the installed pyspark"
        said = f"{'warm' if loaded else 'cold'}: {daemon} with {package}"
        yield pa.RecordBatch.from_pydict({"id": [said] * batch.num_rows})


try:
    sys.stdout.write(json.dumps({python: said(python) for python in sys.argv[2:]}) + "\n")
finally:
    spark.stop()
