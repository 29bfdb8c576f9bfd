"""The DAG that looks at a pipeline every minute."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, get_current_context, task

from airflow_eos.factory.replacing import last_heartbeat, replacing, stays_down
from airflow_eos.factory.settings import Pipeline
from airflow_eos.sensors import CheckpointProgressSensor, TransactionTimeoutSensor


def watchdog(pipeline: Pipeline, tags: list[str]) -> DAG:
    """Does the app get on, and does a transaction run out of time? If not well, recover.

    One that has never run, or ended in order, is left alone: to keep it down, drain it. One that
    was drained because its task broke off, and its run failed, is not. A stall turns this run red.
    """
    with DAG(
        pipeline.watchdog,
        schedule=pipeline.watchdog_schedule,
        max_active_runs=1,
        catchup=False,
        tags=tags,
        doc_md=watchdog.__doc__,
    ) as dag:
        progress = CheckpointProgressSensor(
            task_id="progress",
            max_age=pipeline.stall_after,
            deferrable=False,
            **pipeline.place,
        )
        timeouts = TransactionTimeoutSensor(
            task_id="timeouts",
            part_left=0.5,
            timeout=0,  # look once: the next look is a minute away
            soft_fail=True,
            deferrable=False,
            **pipeline.transactions,
        )
        recover = TriggerDagRunOperator(task_id="recover", trigger_dag_id=pipeline.recovery)
        wanted = _needs_recovery(pipeline)
        _should_be_running(pipeline) >> [progress, timeouts] >> wanted >> recover
        progress >> EmptyOperator(task_id="well")
    return dag


def _should_be_running(pipeline: Pipeline) -> Any:
    @task.short_circuit
    def should_be_running() -> bool:
        """Whether somebody has started it, and it has not ended in order, or for no wish."""
        heartbeat = last_heartbeat(pipeline)
        return heartbeat is not None and (
            heartbeat.phase != "stopped" or stays_down(pipeline) is None
        )

    return should_be_running()


def _needs_recovery(pipeline: Pipeline) -> Any:
    @task.short_circuit(trigger_rule="all_done")
    def needs_recovery() -> bool:
        """A stall leaves no answer of ``progress``, and work at half time one: but never twice."""
        ti = get_current_context()["ti"]
        runs_out = ti.xcom_pull(task_ids="timeouts")
        stalls = not ti.xcom_pull(task_ids="progress")
        if not runs_out and (not stalls or stays_down(pipeline)):
            return False
        recovering = ti.get_dr_count(pipeline.recovery, states=["queued", "running"])
        _, resuming = replacing(pipeline, "queued", "running")
        return not recovering and not resuming

    return needs_recovery()
