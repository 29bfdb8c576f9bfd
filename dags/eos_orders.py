"""One streaming pipeline in four DAGs. Copy this file for a pipeline of your own.

``eos_orders_etl`` runs the pipeline, ``eos_watchdog`` checks it every minute, ``eos_recovery``
recovers and resumes it, and asks where only a person may decide; ``eos_orders_etl_upgrade`` starts
a new version, and the former one where that fails. All settings are fields of
``airflow_eos.factory.Pipeline``: change them here; on S3 see docs/airflow.md. A value that is known
only at run time is a Jinja template, as ``"{{ var.value.lake }}/orders-etl"``. A single run may be
started with another trigger. Secrets belong in the connections named here, never in this file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airflow_eos.factory import Pipeline, eos_pipeline, eos_upgrade

DEFAULTS: dict[str, Any] = {
    "dag_id": "eos_orders_etl",
    "recovery_dag_id": "eos_recovery",
    "watchdog_dag_id": "eos_watchdog",
    "application": str(Path(__file__).parents[1] / "spark_apps" / "orders_etl.py"),
    "checkpoint": "/data/checkpoints/orders-etl",
    "prefix": "orders-etl",
    "input_topic": "orders",
    "output_topic": "orders.clean",
    "dead_letter_topic": "orders.rejected",
    "order_id": "headers.order-id",  # the app writes it; the audit tells rows by it
    "packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
}
# Changed settings, for the demo and the tests, which share this file: your copy needs none. From
# the environment, since Airflow parses the file again and again, and must not ask its database.
HERE = json.loads(os.environ.get("EOS_ORDERS_ETL", "{}"))
PIPELINE = Pipeline(**(DEFAULTS | HERE))

eos_orders_etl, eos_recovery, eos_watchdog = eos_pipeline(PIPELINE)
eos_orders_etl_upgrade = eos_upgrade(PIPELINE)
