"""The DAGs of one pipeline: run, recover and watch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.exceptions import AirflowRescheduleException
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import DAG, PokeReturnValue, get_current_context, task

from airflow_eos.core.arguments import arguments_of, require_known, taken
from airflow_eos.core.settings import SETTINGS
from airflow_eos.factory.recovery import recovery
from airflow_eos.factory.settings import Pipeline, pinned, rendered
from airflow_eos.factory.watchdog import (
    last_heartbeat,
    note_that_it_begins,
    overtaken,
    refusal_is_noted,
    store_of,
    watchdog,
)
from airflow_eos.hooks.arguments import no_retry_where_useless, own_arguments
from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.hooks.runs import task_state
from airflow_eos.hooks.store import checkpoint_of
from airflow_eos.operators import SparkStreamingOperator
from airflow_eos.sensors import CheckpointProgressSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.core.checkpoint import Heartbeat
    from airflow_eos.core.checkpoint.standby import Standby
    from airflow_eos.ops.supervision.progress import Conclusion

RUN = "run"
"""The id of the task that lives as long as the app."""

_BEFORE_WHO_WAITS = 10
"""The priority by which the app gets a pool's last free slot before a sensor that waits for it."""

WAITS = timedelta(days=7)
"""The timeout of sensors that wait for a driver; they fail before where none comes any more."""


class FirstBatchSensor(CheckpointProgressSensor):
    """Waits for a run's first batch as long as the task ``run`` can still bring it.

    Done as well once the app has read everything: with ``available-now`` there may be no batch.
    """

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at the checkpoint, then at the task ``run``.

        Raises:
            AirflowFailException: the pipeline has stalled, or the run's app will never come.
            AirflowRescheduleException: ``run`` waits for a slot; see :func:`leave_the_slot`.
        """
        found = super().poke(context)
        if not found.is_done:
            state = state_of_task(context, RUN)
            require_run_goes_on(state)
            if self._has_read_everything(context):
                return PokeReturnValue(is_done=True)
            leave_the_slot(state)
        return found

    def stalled(self, context: Context, found: Conclusion) -> None:
        """Fail where the driver hangs; go on where none lives, as ``run`` may start one again."""
        state = state_of_task(context, RUN)
        require_run_goes_on(state)
        if self._has_read_everything(context):
            return
        if found.value["alive"] or state == "success":
            super().stalled(context, found)

    def _has_read_everything(self, context: Context) -> bool:
        from airflow_eos.core.checkpoint import read_heartbeat

        last = read_heartbeat(checkpoint_of(self))
        return last is not None and last.end == "finished" and is_of(context, last, RUN)


def state_of_task(context: Context, task_id: str) -> str | None:
    """Return the state of a task of this DAG run; None: it has none yet, or is not known."""
    ti = context["ti"]
    return task_state(ti, ti.dag_id, ti.run_id, task_id)


def is_of(context: Mapping[str, Any], started: Heartbeat | Standby | None, task_id: str) -> bool:
    """Whether task ``task_id`` of this DAG run has started the driver or standby."""
    us = None if started is None else started.started_by
    ti = context["ti"]
    return us is not None and (us.dag_id, us.run_id, us.task_id) == (ti.dag_id, ti.run_id, task_id)


NO_MORE = frozenset({"failed", "upstream_failed", "skipped"})
"""The states of a task that ended without success, so that no driver comes of it."""


def require_run_goes_on(state: str | None) -> None:
    """Raise ``AirflowFailException`` where ``run`` has failed, retries and all, by its state."""
    if state in NO_MORE:
        raise AirflowFailException(
            f"Nothing comes any more: the task {RUN} is {state}. Its log says why; the watchdog's "
            "recovery, or clearing it, starts the app again."
        )


_AT_WORK = frozenset({"queued", "running", "deferred", "success"})
_AWAY = timedelta(seconds=5)


def leave_the_slot(state: str | None) -> None:
    """Give this task's slot back for a moment while ``run`` has none, as before its next try.

    In a pool with one slot each would wait for the other. Else a sensor keeps its slot: to come
    back takes a process of its own, which would slow the app's start on a small machine.

    Raises:
        AirflowRescheduleException: ``run``, by its state, is neither at work nor over.
    """
    if state not in _AT_WORK:
        back_at = datetime.now(UTC) + _AWAY
        raise AirflowRescheduleException(back_at)  # type: ignore[no-untyped-call]


def running(pipeline: Pipeline, tags: list[str]) -> DAG:
    """Check what can be checked, run the app, and see it make progress.

    ``run`` lives as long as the app, and restarts it. Clearing it drains the app.
    """
    with DAG(
        pipeline.dag_id,
        schedule=None,
        params=pipeline.params,
        tags=tags,
        doc_md=running.__doc__,
        **pinned(),
    ) as dag:
        run = streaming(pipeline)
        watch = FirstBatchSensor(
            task_id="watch",
            since_batch="{{ ti.xcom_pull(task_ids='preflight') }}",
            max_age=pipeline.first_batch_within,
            poke_interval=5,
            timeout=WAITS.total_seconds(),
            retries=pipeline.retries,
            deferrable=False,  # a trigger cannot look at the state of the task ``run``
            **pipeline.location,
        )
        checked = _preflight(pipeline)
        checked >> run
        checked >> _started(pipeline) >> watch
    return dag


def streaming(pipeline: Pipeline, **more: Any) -> SparkStreamingOperator:
    """Make the task ``run``, which lives as long as the app; ``more`` overrides the settings."""
    return SparkStreamingOperator(
        **{
            "task_id": RUN,
            "max_restarts": pipeline.max_restarts,
            "retries": pipeline.retries,
            "priority_weight": _BEFORE_WHO_WAITS,
            **app_arguments(pipeline),
            **more,
        }
    )


def app_arguments(pipeline: Pipeline) -> dict[str, Any]:
    """Return the operator arguments with which the pipeline's app is submitted."""
    takes, has = own_arguments(SparkStreamingOperator), arguments_of(Pipeline)
    shared = [each for name, each in SETTINGS.items() if name in takes and each.short in has]
    return {
        **{each.name: getattr(pipeline, each.short) for each in shared},
        "trigger_interval": pipeline.trigger_interval,
        "application": pipeline.application,
        "application_args": pipeline.application_args,
        "conf": pipeline.conf,
        "jars": pipeline.jars,
        "conn_id": pipeline.spark_conn_id,
        "packages": None if pipeline.jars else pipeline.packages,
        "env_vars": pipeline.env,
        **pipeline.reached,
    }


def _preflight(pipeline: Pipeline) -> Any:
    @task
    def preflight() -> int:
        """Fail before Spark's start where cluster or topics are missing, or the prefix is not ours.

        Returns the newest committed batch, or -1: the run's first batch comes after it.

        Skipped, and the app with it, in a run that is to replace a driver that needs none any more:
        it may have waited for hours behind another.
        """
        if why := overtaken(pipeline):
            raise AirflowSkipException(f"There is nothing to resume any more: {why}.")
        note_that_it_begins(pipeline)
        from airflow_eos.core.checkpoint import read_state
        from airflow_eos.kafka.client.connection import ConnectionPool
        from airflow_eos.ops.supervision.preflight import require_prefix_free

        here = rendered(pipeline)
        kafka = KafkaSettingsHook(here.kafka_config_id).settings()
        store = store_of(pipeline)
        with no_retry_where_useless(), refusal_is_noted(pipeline), ConnectionPool(kafka) as wire:
            own = () if here.outputs else (here.output_topic, here.dead_letter_topic)
            for topic in filter(None, (here.input_topic, *own)):
                print(f"{topic}: {len(wire.cluster.leaders(topic))} partitions")  # noqa: T201 - the log
            if not here.outputs:  # else the app's own configuration names who is asked
                require_prefix_free(kafka, here.prefix, store)
        committed = read_state(store).latest_commit
        return -1 if committed is None else committed

    return preflight()


def _started(pipeline: Pipeline) -> Any:
    # Its try may be lost: a supervisor that Airflow's server does not answer for a minute ends it.
    @task.sensor(poke_interval=2, timeout=WAITS.total_seconds(), retries=pipeline.retries)
    def started() -> PokeReturnValue:
        """Wait for the first heartbeat of a driver that this run has started.

        The heartbeat names the run that started its driver; its times are of another machine.
        """
        context = get_current_context()
        state = state_of_task(context, RUN)  # before the heartbeat: that tells of no later one
        heartbeat = last_heartbeat(pipeline)
        if heartbeat is not None and is_of(context, heartbeat, RUN):
            return PokeReturnValue(is_done=True, xcom_value=heartbeat.application_id)
        if state == "success":
            raise AirflowFailException(
                f"The task {RUN} has ended, and its driver is not the last one here: it never "
                "came, or another one has followed. Nothing is left to wait for."
            )
        require_run_goes_on(state)
        leave_the_slot(state)
        return PokeReturnValue(is_done=False)

    return started()


def eos_pipeline(
    pipeline: Pipeline | None = None,
    /,
    *,
    tags: Sequence[str] = ("airflow-eos",),
    notifiers: Sequence[Any] = (),
    **settings: Any,
) -> tuple[DAG, DAG, DAG]:
    """Make the DAGs that run, recover and watch a pipeline; bind them to a name of the DAG file.

    Args:
        pipeline: the settings; or give them one by one, which overrides those of ``pipeline``.
        tags: tags of all DAGs.
        notifiers: called when a recovery waits for a person.
        settings: the fields of :class:`Pipeline`.

    Raises:
        ConfigurationError: an unknown setting, or a value that is not valid.
        TypeError: a setting is missing.
    """
    require_known("eos_pipeline", settings, arguments_of(Pipeline))
    chosen = Pipeline(**settings) if pipeline is None else replace(pipeline, **settings)
    dag_tags = taken(eos_pipeline, {"tags": tags})["tags"]
    return (
        running(chosen, dag_tags),
        recovery(chosen, dag_tags, notifiers),
        watchdog(chosen, dag_tags),
    )
