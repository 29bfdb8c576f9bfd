"""`clicks` runs the app, `clicks_watchdog` looks at it, `clicks_recovery` brings it back.

Unpause all three, then trigger `clicks`. Secrets belong into the connections, never into this file.
"""

from __future__ import annotations

from pathlib import Path

from airflow_eos.factory import eos_pipeline

HERE = Path(__file__).parents[1]

clicks, clicks_recovery, clicks_watchdog = eos_pipeline(
    dag_id="clicks",
    application=str(HERE / "spark_apps" / "clicks.py"),
    checkpoint=str(HERE / "checkpoints" / "clicks"),  # seen by driver, executors and workers
    prefix="clicks",
    input_topic="clicks",
    output_topic="clicks.out",
    kafka_config_id="kafka_default",
    spark_conn_id="spark_default",
    packages="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
)
