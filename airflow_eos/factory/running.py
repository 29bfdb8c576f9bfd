"""The DAG that runs the app."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import DAG, PokeReturnValue, get_current_context, task

from airflow_eos.factory.rendering import rendered
from airflow_eos.factory.replacing import last_heartbeat, overtaken, store_of
from airflow_eos.factory.settings import Pipeline
from airflow_eos.operators import SparkStreamingOperator
from airflow_eos.sensors import CheckpointProgressSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

RUN = "run"
"""The task that lives as long as the app."""

_RETRY_DELAY = timedelta(seconds=30)
"""Airflow's own is five minutes, in which nobody would be in charge of the app."""


class FirstBatchSensor(CheckpointProgressSensor):
    """Waits for a run's first batch while the run has somebody who can bring it."""

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at the checkpoint, then at who is waited for.

        Raises:
            AirflowFailException: the pipeline has stalled, or the run's app will never come.
        """
        found = super().poke(context)
        if not found.is_done:
            require_run_goes_on(context)
        return found


def require_run_goes_on(context: Context) -> None:
    """Raise ``AirflowFailException`` where ``run`` of this DAG run has failed, retries and all."""
    ti = context["ti"]
    found = ti.get_task_states(ti.dag_id, task_ids=[RUN], run_ids=[ti.run_id])
    state = found.get(ti.run_id, {}).get(RUN)
    if state in {"failed", "upstream_failed", "skipped"}:
        raise AirflowFailException(
            f"Nothing comes any more: the task {RUN} is {state}. Its log says why; the watchdog's "
            "recovery, or clearing it, starts the app again."
        )


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
        run = streaming(pipeline, retry_delay=_RETRY_DELAY)
        watch = FirstBatchSensor(
            task_id="watch",
            since="{{ dag_run.start_date.isoformat() }}",
            max_age=timedelta(seconds=pipeline.first_batch_within_s),
            poke_interval=5,
            deferrable=False,  # a trigger knows nothing of the task that it waits for
            **pipeline.place,
        )
        checked = _preflight(pipeline)
        checked >> run
        checked >> _started(pipeline) >> watch
    return dag


def streaming(pipeline: Pipeline, **more: Any) -> SparkStreamingOperator:
    """The task ``run``, which lives as long as the app; ``more`` is of Airflow."""
    return SparkStreamingOperator(
        task_id=RUN,
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
        retries=pipeline.retries,
        outputs=pipeline.outputs,
        consumer_group=pipeline.consumer_group,
        transactional_id_prefix=pipeline.prefix,
        **pipeline.reached,
        **more,
    )


def _preflight(pipeline: Pipeline) -> Any:
    @task
    def preflight() -> None:
        """Fail before Spark is started: are cluster and topics there, and is the prefix ours?

        Skipped, and the app with it, in a run that is to replace a driver that needs none any more:
        it may have waited for hours behind another.
        """
        if why := overtaken(pipeline):
            raise AirflowSkipException(f"There is nothing to resume any more: {why}.")
        from airflow_eos.hooks.failures import no_retry_where_useless
        from airflow_eos.hooks.kafka import KafkaSettingsHook
        from airflow_eos.kafka.client.wire import Wire
        from airflow_eos.supervision.preflight import require_prefix_free

        here = rendered(pipeline)
        kafka = KafkaSettingsHook(here.kafka_config_id).settings()
        with no_retry_where_useless(), Wire(kafka) as wire:
            own = () if here.outputs else (here.output_topic, here.dead_letter_topic)
            for topic in filter(None, (here.input_topic, *own)):
                print(f"{topic}: {len(wire.cluster.leaders(topic))} partitions")  # noqa: T201 - the log
            if not here.outputs:  # else the app's own configuration names who is asked
                require_prefix_free(kafka, here.prefix, store_of(pipeline))

    return preflight()


def _started(pipeline: Pipeline) -> Any:
    @task.sensor(poke_interval=2, timeout=600)
    def started() -> PokeReturnValue:
        """Wait for the first heartbeat of this run's driver: an older one says nothing."""
        heartbeat, context = last_heartbeat(pipeline), get_current_context()
        since = context["dag_run"].start_date
        if heartbeat and since and heartbeat.started_at_ms >= since.timestamp() * 1000:
            return PokeReturnValue(is_done=True, xcom_value=heartbeat.application_id)
        require_run_goes_on(context)
        return PokeReturnValue(is_done=False)

    return started()
