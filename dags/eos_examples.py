"""A DAG for each example app: ``eos_word_count`` runs ``spark_apps/word_count.py``, and so on.

Each DAG has one task, which runs as long as the app, restarts it after a failure, and drains it
when the task is cleared. ``eos_orders.py`` shows what production needs besides: a watchdog and a
recovery. Change your settings in ``EXAMPLES``. Most of them may be Jinja templates, which the task
renders when it runs: ``checkpoint="{{ var.value.lake }}/word-count"``.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_eos.operators import SparkStreamingOperator
from airflow_eos.sinks.source import tuned_spark_conf

APPS = Path(__file__).parents[1] / "spark_apps"
KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
AVRO = "org.apache.spark:spark-avro_2.13:4.2.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """The settings of one app's DAG.

    Attributes:
        arguments: the app's arguments; see its ``--help``.
        checkpoint: Spark's checkpoint location; a folder of the app's name where None.
        outputs: outputs instead of the app's own; see docs/sinks.md.
        participant_conn_ids: by name of an output, the connection with its settings.
        packages, jars: what Spark needs beside itself; jars win.
        env: environment variables for the app's driver.
        restart_delay: time between a failure and the restart.
    """

    arguments: list[str] = field(default_factory=list)
    checkpoint: str | None = None
    outputs: list[dict[str, Any]] | None = None
    participant_conn_ids: dict[str, str] = field(default_factory=dict)
    kafka_config_id: str = "kafka_default"
    spark_conn_id: str = "spark_default"
    packages: str = KAFKA
    jars: str | None = None
    conf: dict[str, str] = field(default_factory=tuned_spark_conf)
    env: dict[str, str] = field(default_factory=dict)
    max_restarts: int = 3
    restart_delay: str = "10 seconds"


EXAMPLES = {
    "avro_windows": Example(
        arguments=["--registry", "http://localhost:8081"], packages=f"{KAFKA},{AVRO}"
    ),
    "deduplicate": Example(),
    "log_sync": Example(arguments=["--folder", "/data/logs", "--trigger", "10 minutes"]),
    "page_views": Example(),
    "sensors": Example(),
    "transfers": Example(participant_conn_ids={"books": "postgres_books"}),
    "word_count": Example(),
}


def dag_of(app: str, example: Example) -> DAG:
    """Make a DAG that runs the app until it is drained."""
    with DAG(f"eos_{app}", schedule=None, max_active_runs=1, tags=["airflow-eos"]) as dag:
        SparkStreamingOperator(
            task_id="run",
            application=str(APPS / f"{app}.py"),
            checkpoint_location=example.checkpoint or f"/data/checkpoints/{app}",
            # No prefix: the checkpoint has it, with all participants that the app writes to.
            application_args=example.arguments,
            outputs=example.outputs,
            participant_conn_ids=example.participant_conn_ids,
            conn_id=example.spark_conn_id,
            kafka_config_id=example.kafka_config_id,
            packages=None if example.jars else example.packages,
            jars=example.jars,
            conf=example.conf,
            env_vars=example.env,
            max_restarts=example.max_restarts,
            restart_delay=example.restart_delay,
        )
    return dag


# Changed settings, by the app's name, for the tests, which share this file: your copy needs none.
# From the environment: Airflow parses the file again and again, and must not ask its database.
CHANGES = json.loads(os.environ.get("EOS_EXAMPLES", "{}"))
EXAMPLES |= {app: replace(EXAMPLES[app], **changed) for app, changed in CHANGES.items()}
DAGS = {app: dag_of(app, example) for app, example in EXAMPLES.items()}
globals().update({dag.dag_id: dag for dag in DAGS.values()})
