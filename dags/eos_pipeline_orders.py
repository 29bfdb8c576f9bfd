"""A declarative pipeline each hour, exactly once: ``spark_apps/pipeline_orders.py``.

A run recovers by itself before it reads. Where a run has failed for good, ``recover`` shows readers
what was promised, so that they need not wait for the next one; the run stays failed. Where the
server itself dies, Spark's client asks for it ten minutes long before a try fails. The connection
``spark_connect`` is of the type of that name (docs/howto/connect.md).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.apache.spark.operators.spark_pipelines import SparkPipelinesOperator
from airflow.sdk import DAG

from airflow_eos.operators import RecoverTransactionsOperator

with DAG(
    "eos_pipeline_orders",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["airflow-eos"],
) as eos_pipeline_orders:
    run = SparkPipelinesOperator(
        task_id="run",
        conn_id="spark_connect",
        pipeline_spec="/opt/pipelines/orders/spark-pipeline.yml",
        retries=3,
        retry_delay=timedelta(seconds=30),
    )
    recover = RecoverTransactionsOperator(
        task_id="recover",
        checkpoint_location="s3://lake/pipelines/orders/_checkpoints/orders_clean/cleaned/0",
    ).as_teardown()  # or a failed run would be green, once it is recovered
    run >> recover
