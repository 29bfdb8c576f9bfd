"""One streaming pipeline in three DAGs. Copy this file for a pipeline of your own.

``eos_orders_etl`` runs it, ``eos_watchdog`` looks at it every minute, ``eos_recovery`` brings it
back. Change the defaults of ``Pipeline``, or put what differs into the Airflow variable
``eos_orders_etl`` as JSON, for example ``{"checkpoint": "/mnt/lake/orders-etl"}``; on S3 see
docs/airflow.md. Secrets belong into the connections that are named here, never into this file or
the variable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import PokeReturnValue, Variable, chain, dag, get_current_context, task

from airflow_eos.operators import (
    AuditOperator,
    PlanRecoveryOperator,
    RecoverTransactionsOperator,
    SparkStreamingOperator,
)
from airflow_eos.sensors import CheckpointProgressSensor, TransactionTimeoutSensor
from airflow_eos.sinks.source import tuned_spark_conf


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What the three DAGs share. Times are in seconds, as JSON has no other.

    Attributes:
        checkpoint: Spark's checkpoint location, seen by the driver and by Airflow's workers.
        storage_conn_id: connection of its object store; None leaves it to the environment.
        prefix: of the transactional ids; no other pipeline may use it.
        outputs, participant_conn_ids: "Outputs by configuration" in docs/sinks.md; no audit then.
        order_id: what names an order in all three topics, for the audit.
        packages, jars, env: Spark's Kafka connector (jars win); the driver's environment.
        trigger: between two batches, or ``available-now``: stop when everything has been read.
        transaction_timeout_s: covers ``trigger_s`` + ``batch_within_s`` + ``recover_within_s``.
        max_restarts: of the app by its own task, before a recovery is needed at all.
        first_batch_within_s: after a start; the first batch may have rows to replay.
        stall_after_s: no commit for this long, with rows to read, is a stall.
    """

    checkpoint: str = "/data/checkpoints/orders-etl"
    prefix: str = "orders-etl"
    outputs: list[dict[str, Any]] | None = None
    participant_conn_ids: dict[str, str] | None = None
    input_topic: str = "orders"
    output_topic: str = "orders.clean"
    dead_letter_topic: str = "orders.rejected"
    order_id: str = "headers.order-id"
    kafka_config_id: str = "kafka_default"
    spark_conn_id: str = "spark_default"
    storage_conn_id: str | None = None
    application: str = str(Path(__file__).parents[1] / "spark_apps" / "orders_etl.py")
    packages: str = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
    jars: str | None = None
    spark_conf: dict[str, str] = field(default_factory=tuned_spark_conf)
    env: dict[str, str] = field(default_factory=dict)
    trigger: str = "1 second"
    max_offsets_per_trigger: int | None = None
    trigger_s: float = 1
    batch_within_s: float = 60
    recover_within_s: float = 300
    transaction_timeout_s: float = 900
    max_restarts: int = 3
    first_batch_within_s: float = 300
    stall_after_s: float = 120
    watchdog_schedule: str | None = "* * * * *"

    @property
    def application_args(self) -> list[str]:
        """What the app does not find in the environment that the operator prepares."""
        limit = self.max_offsets_per_trigger
        return [
            *("--input-topic", self.input_topic),
            *("--output-topic", self.output_topic),
            *("--dead-letter-topic", self.dead_letter_topic),
            *("--trigger", self.trigger),
            *(() if limit is None else ("--max-offsets-per-trigger", str(limit))),
        ]


# Read while the file is parsed. A misspelt name in the variable is an import error that names it.
PIPELINE = Pipeline(**Variable.get("eos_orders_etl", default={}, deserialize_json=True))

CHECKPOINT: dict[str, Any] = {
    "checkpoint_location": PIPELINE.checkpoint,
    "kafka_config_id": PIPELINE.kafka_config_id,
    "storage_conn_id": PIPELINE.storage_conn_id,
}
REACHED = {**CHECKPOINT, "participant_conn_ids": PIPELINE.participant_conn_ids}
# Of outputs the checkpoint alone says whether one of them uses the prefix.
TRANSACTIONS = REACHED | {"transactional_id_prefix": None if PIPELINE.outputs else PIPELINE.prefix}
STARTS = 20  # in the place of one dead driver, until an app lives to give a heartbeat


def last_heartbeat() -> Any:
    """What the pipeline's driver said last, in a task."""
    from airflow_eos.checkpoint import CheckpointStore, read_heartbeat
    from airflow_eos.hooks.store import CheckpointStoreHook

    options = CheckpointStoreHook(PIPELINE.storage_conn_id).options()
    return read_heartbeat(CheckpointStore.open(PIPELINE.checkpoint, storage_options=options))


def replacing(*states: str) -> tuple[str, int]:
    """The last driver, and how many of the runs to replace it are in these states, in a task."""
    heartbeat, ti = last_heartbeat(), get_current_context()["ti"]
    driver = heartbeat.application_id if heartbeat else "first"
    run_ids = [f"resume__{driver}__{n}" for n in range(STARTS)]
    return driver, ti.get_dr_count("eos_orders_etl", run_ids=run_ids, states=list(states))


@dag(schedule=None, max_active_runs=1, tags=["airflow-eos"])
def eos_orders_etl() -> None:
    """Check what can be checked, run the app, and see it make progress.

    ``run`` lives as long as the app, and restarts it. Clearing it drains the app.
    """

    @task
    def preflight() -> None:
        """Fail before Spark is started: is the cluster there, and are the topics?"""
        from airflow_eos.hooks.kafka import KafkaSettingsHook
        from airflow_eos.kafka.client.wire import Wire

        with Wire(KafkaSettingsHook(PIPELINE.kafka_config_id).settings()) as wire:
            own = () if PIPELINE.outputs else (PIPELINE.output_topic, PIPELINE.dead_letter_topic)
            for topic in (PIPELINE.input_topic, *own):
                print(f"{topic}: {len(wire.cluster.leaders(topic))} partitions")  # noqa: T201 - the log

    @task.sensor(poke_interval=2, timeout=600)
    def started() -> PokeReturnValue:
        """Wait for the first heartbeat of this run's driver: an older one says nothing."""
        heartbeat = last_heartbeat()
        since = get_current_context()["dag_run"].start_date
        if heartbeat is None or since is None:
            return PokeReturnValue(is_done=False)
        is_ours = heartbeat.started_at_ms >= since.timestamp() * 1000
        return PokeReturnValue(is_ours, heartbeat.application_id)

    run = SparkStreamingOperator(
        task_id="run",
        application=PIPELINE.application,
        application_args=PIPELINE.application_args,
        conn_id=PIPELINE.spark_conn_id,
        packages=None if PIPELINE.jars else PIPELINE.packages,
        jars=PIPELINE.jars,
        conf=PIPELINE.spark_conf,
        env_vars=PIPELINE.env,
        trigger_interval=timedelta(seconds=PIPELINE.trigger_s),
        batch_within=timedelta(seconds=PIPELINE.batch_within_s),
        recover_within=timedelta(seconds=PIPELINE.recover_within_s),
        transaction_timeout=timedelta(seconds=PIPELINE.transaction_timeout_s),
        max_restarts=PIPELINE.max_restarts,
        outputs=PIPELINE.outputs,
        transactional_id_prefix=PIPELINE.prefix,
        **REACHED,
    )
    watch = CheckpointProgressSensor(
        task_id="watch",
        since="{{ dag_run.start_date.isoformat() }}",
        max_age=timedelta(seconds=PIPELINE.first_batch_within_s),
        poke_interval=5,
        deferrable=True,
        **CHECKPOINT,
    )
    checked = preflight()
    checked >> run
    checked >> started() >> watch


@dag(schedule=None, max_active_runs=1, tags=["airflow-eos"])
def eos_recovery() -> None:
    """Bring a dead pipeline back: plan, execute, audit, resume. Harmless at any time.

    A pipeline that is alive is refused. Steps that only a person may decide fail ``execute``.
    """
    plan = PlanRecoveryOperator(task_id="plan", **TRANSACTIONS)
    execute = RecoverTransactionsOperator(
        task_id="execute", plan="{{ ti.xcom_pull(task_ids='plan') | tojson }}", **TRANSACTIONS
    )

    @task
    def verdict() -> str:
        """Fail on what can never be right; else name the driver that died, and the try."""
        report = get_current_context()["ti"].xcom_pull(task_ids="audit") or {}  # none: outputs
        never = ["duplicated", "reordered", "visible_undecided"]
        if not report.get("input_cut_off"):
            never.append("unexpected")
        if wrong := {name: report[name] for name in never if report.get(name)}:
            raise AirflowFailException(f"The audit found {wrong}: {report['offenders'][:3]}")
        driver, failed = replacing("failed")
        return f"{driver}__{min(failed, STARTS - 1)}"

    resume = TriggerDagRunOperator(
        task_id="resume",
        trigger_dag_id="eos_orders_etl",
        # Each dead driver is replaced once, or again where who replaced it gave no sign of life.
        trigger_run_id="resume__{{ ti.xcom_pull(task_ids='verdict') }}",
        skip_when_already_exists=True,
    )
    steps: list[Any] = [plan, execute]
    if not PIPELINE.outputs:
        audit = AuditOperator(
            task_id="audit",
            input_topic=PIPELINE.input_topic,
            output_topic=PIPELINE.output_topic,
            dead_letter_topic=PIPELINE.dead_letter_topic,
            id_expression=PIPELINE.order_id,
            fail_on_violation=False,  # rows that the app has yet to read are no loss
            **CHECKPOINT,
        )
        steps.append(audit)
    chain(*steps, verdict(), resume)


@dag(schedule=PIPELINE.watchdog_schedule, max_active_runs=1, catchup=False, tags=["airflow-eos"])
def eos_watchdog() -> None:
    """Does the app get on, and does a transaction run out of time? If not well, recover.

    One that has never run, or ended in order, is left alone. A stall turns this run red.
    """

    @task.short_circuit
    def should_be_running() -> bool:
        """Whether somebody has started it, and it has not ended in order."""
        heartbeat = last_heartbeat()
        return heartbeat is not None and heartbeat.phase != "stopped"

    progress = CheckpointProgressSensor(
        task_id="progress", max_age=timedelta(seconds=PIPELINE.stall_after_s), **CHECKPOINT
    )
    timeouts = TransactionTimeoutSensor(
        task_id="timeouts",
        part_left=0.5,
        timeout=0,  # look once: the next look is a minute away
        soft_fail=True,
        **TRANSACTIONS,
    )

    @task.short_circuit(trigger_rule="all_done")
    def needs_recovery() -> bool:
        """A stall leaves no answer of ``progress``, and work at half time one: but never twice."""
        ti = get_current_context()["ti"]
        if ti.xcom_pull(task_ids="progress") and not ti.xcom_pull(task_ids="timeouts"):
            return False
        recovering = ti.get_dr_count("eos_recovery", states=["queued", "running"])
        _, resuming = replacing("queued", "running")
        return not recovering and not resuming

    recover = TriggerDagRunOperator(task_id="recover", trigger_dag_id="eos_recovery")
    should_be_running() >> [progress, timeouts] >> needs_recovery() >> recover
    progress >> EmptyOperator(task_id="well")


eos_orders_etl()
eos_recovery()
eos_watchdog()
