"""One task that runs a stream on a cluster, with what the test tells it: see ``by_dag.py``."""

from __future__ import annotations

import json
import os
from datetime import timedelta

from airflow.sdk import dag

from airflow_eos.operators import SparkStreamingOperator


@dag(schedule=None)
def stream() -> None:
    SparkStreamingOperator(
        task_id="run",
        batch_within=timedelta(seconds=30),
        transaction_timeout=timedelta(minutes=7),
        patience=timedelta(seconds=30),
        restart_delay=timedelta(0),
        cancel="kill",
        **json.loads(os.environ["CLUSTER_STREAM"]),
    )


stream()
