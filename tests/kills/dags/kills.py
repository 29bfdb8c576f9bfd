"""One task that runs a pipeline; what it runs comes with the run; two of them in other ways."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import dag

from airflow_eos.operators import SparkStreamingOperator


def etl(**other) -> None:
    SparkStreamingOperator(
        task_id="run",
        application=os.environ["KILLS_APPLICATION"],
        jars=os.environ["KILLS_JARS"],
        checkpoint_location="{{ dag_run.conf['checkpoint'] }}",
        transactional_id_prefix="{{ dag_run.conf['input'] }}",
        application_args=[
            *("--input-topic", "{{ dag_run.conf['input'] }}"),
            *("--output-topic", "{{ dag_run.conf['output'] }}"),
            *("--dead-letter-topic", "{{ dag_run.conf['rejected'] }}"),
            *("--max-offsets-per-trigger", "100"),
        ],
        conf={"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"},
        restart_delay=timedelta(seconds=1),
        patience=timedelta(seconds=10),
        drain_timeout=timedelta(seconds=60),
        retries=3,
        retry_delay=timedelta(seconds=1),
        **other,
    )


@dag(schedule=None)
def kills_attended() -> None:
    etl(deferrable=False)


@dag(schedule=None)
def kills_deferred() -> None:
    etl(deferrable=True, poke_interval=1)


@dag(schedule=None)
def kills_timed() -> None:
    etl(deferrable=False, execution_timeout=timedelta(seconds=60))


kills_attended()
kills_deferred()
kills_timed()
