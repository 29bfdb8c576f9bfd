"""The DAG that runs the app."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, PokeReturnValue, get_current_context, task

from airflow_eos.factory.rendering import rendered
from airflow_eos.factory.replacing import last_heartbeat, overtaken
from airflow_eos.factory.settings import Pipeline
from airflow_eos.operators import SparkStreamingOperator
from airflow_eos.sensors import CheckpointProgressSensor


def running(pipeline: Pipeline, tags: list[str]) -> DAG:
    """Check what can be checked, run the app, and see it make progress.

    ``run`` lives as long as the app, and restarts it. Clearing it drains the app.
    """
    with DAG(
        pipeline.dag_id,
        schedule=None,
        max_active_runs=1,
        params=pipeline.params,
        tags=tags,
        doc_md=running.__doc__,
    ) as dag:
        run = streaming(pipeline)
        watch = CheckpointProgressSensor(
            task_id="watch",
            since="{{ dag_run.start_date.isoformat() }}",
            max_age=timedelta(seconds=pipeline.first_batch_within_s),
            poke_interval=5,
            deferrable=True,
            **pipeline.place,
        )
        checked = _preflight(pipeline)
        checked >> run
        checked >> _started(pipeline) >> watch
    return dag


def streaming(pipeline: Pipeline, **more: Any) -> SparkStreamingOperator:
    """The task ``run``, which lives as long as the app; ``more`` is of Airflow."""
    return SparkStreamingOperator(
        task_id="run",
        application=pipeline.application,
        application_args=pipeline.application_args,
        conn_id=pipeline.spark_conn_id,
        packages=None if pipeline.jars else pipeline.packages,
        jars=pipeline.jars,
        conf=pipeline.spark_conf,
        env_vars=pipeline.env,
        trigger_interval=timedelta(seconds=pipeline.trigger_s),
        batch_within=timedelta(seconds=pipeline.batch_within_s),
        recover_within=timedelta(seconds=pipeline.recover_within_s),
        transaction_timeout=timedelta(seconds=pipeline.transaction_timeout_s),
        max_restarts=pipeline.max_restarts,
        outputs=pipeline.outputs,
        transactional_id_prefix=pipeline.prefix,
        **pipeline.reached,
        **more,
    )


def _preflight(pipeline: Pipeline) -> Any:
    @task
    def preflight() -> None:
        """Fail before Spark is started: is the cluster there, and are the topics?

        Skipped, and the app with it, in a run that is to replace a driver that needs none any more:
        it may have waited for hours behind another.
        """
        if why := overtaken(pipeline):
            raise AirflowSkipException(f"There is nothing to resume any more: {why}.")
        from airflow_eos.hooks.kafka import KafkaSettingsHook
        from airflow_eos.kafka.client.wire import Wire

        here = rendered(pipeline)
        with Wire(KafkaSettingsHook(here.kafka_config_id).settings()) as wire:
            own = () if here.outputs else (here.output_topic, here.dead_letter_topic)
            for topic in filter(None, (here.input_topic, *own)):
                print(f"{topic}: {len(wire.cluster.leaders(topic))} partitions")  # noqa: T201 - the log

    return preflight()


def _started(pipeline: Pipeline) -> Any:
    @task.sensor(poke_interval=2, timeout=600)
    def started() -> PokeReturnValue:
        """Wait for the first heartbeat of this run's driver: an older one says nothing."""
        heartbeat = last_heartbeat(pipeline)
        since = get_current_context()["dag_run"].start_date
        if heartbeat is None or since is None:
            return PokeReturnValue(is_done=False)
        is_ours = heartbeat.started_at_ms >= since.timestamp() * 1000
        return PokeReturnValue(is_ours, heartbeat.application_id)

    return started()
