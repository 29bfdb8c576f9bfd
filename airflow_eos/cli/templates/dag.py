"""`my_pipeline` runs the app, its watchdog looks at it, its recovery brings it back.

Unpause all three, then trigger `my_pipeline`. Secrets belong into the connections, never into
this file.
"""

from __future__ import annotations

from pathlib import Path

from airflow_eos.factory import eos_pipeline
from airflow_eos.sinks.source import tuned_spark_conf

HERE = Path(__file__).parents[1]

my_pipeline, my_pipeline_recovery, my_pipeline_watchdog = eos_pipeline(
    dag_id="my_pipeline",
    application=str(HERE / "spark_apps" / "my_pipeline.py"),
    checkpoint=str(HERE / "checkpoints" / "my_pipeline"),  # seen by driver, executors and workers
    prefix="my_pipeline",
    input_topic="my_pipeline",
    output_topic="my_pipeline.out",
    kafka_config_id="kafka_default",
    spark_conn_id="spark_default",
    packages="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    # The first run leaves its Java's classes there (100 MB), and later ones start sooner.
    conf=tuned_spark_conf(class_archive=str(HERE / "checkpoints" / "driver.jsa")),
)
