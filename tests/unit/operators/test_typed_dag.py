"""A user's DAG under ``mypy --strict``, which reads this file with all of the tests'."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_eos.factory import eos_pipeline
from airflow_eos.operators import (
    AuditOperator,
    PlanRecoveryOperator,
    RecoverTransactionsOperator,
    SparkStreamingOperator,
)
from airflow_eos.sensors import CheckpointProgressSensor, TransactionTimeoutSensor


def test_the_public_names_are_typed_as_a_dag_uses_them() -> None:
    with DAG("user", schedule=None, start_date=datetime(2026, 1, 1)) as dag:  # noqa: DTZ001 - as users do
        plan = PlanRecoveryOperator(task_id="plan", checkpoint_location="/data/a")
        recover = RecoverTransactionsOperator(
            task_id="recover", checkpoint_location="/data/a", plan=plan.output, patience=30
        )
        run = SparkStreamingOperator(
            task_id="run",
            application="a.py",
            checkpoint_location=plan.output,
            conf={"spark.x": "1"},
            retries=3,
            deferrable=True,
            cancel="leave",
            application_args=["--a", plan.output],
            num_executors=2,
            participant_conn_ids={"a": "b"},
            execution_timeout=timedelta(days=1),
            trigger_interval="10 seconds",
            drain_timeout=timedelta(minutes=1),
        )
        progress = CheckpointProgressSensor(
            task_id="p", checkpoint_location="/data/a", since_batch=plan.output, max_age="5 minutes"
        )
        left = TransactionTimeoutSensor(task_id="t", checkpoint_location=plan.output, max_age=600)
        audit = AuditOperator(task_id="a", input_topic=plan.output, output_topic="o")
        mapped = SparkStreamingOperator.partial(task_id="many", application="a.py").expand(
            checkpoint_location=["/a", "/b"]
        )
        plan >> recover >> run >> progress >> [left, audit, mapped]
    etl, recovery, watchdog = eos_pipeline(
        dag_id="e",
        application="a.py",
        checkpoint="/d",
        prefix="p",
        input_topic="i",
        output_topic="o",
        stall_after=timedelta(minutes=2),
    )
    assert run.upstream_task_ids == {"plan", "recover"}
    assert len({dag.dag_id, etl.dag_id, recovery.dag_id, watchdog.dag_id}) == 4
