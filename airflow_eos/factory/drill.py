"""The drill DAG: kills a scratch pipeline's driver and measures the time until the next commit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import DAG, get_current_context, task

from airflow_eos.core.arguments import PositiveDuration, arguments_of, require_known, taken
from airflow_eos.errors import EosError, KafkaUnavailableError
from airflow_eos.factory.pipeline import RUN, is_of, streaming
from airflow_eos.factory.settings import Pipeline, pinned, rendered
from airflow_eos.factory.watchdog import store_of
from airflow_eos.hooks.answers import answered

ROWS = 200
"""The number of rows written before the app's first batch, and again before the kill."""
SCRATCH: dict[str, Any] = {
    "dag_id": "eos_drill",
    "application": str(Path(__file__).with_name("drilled.py")),
    "prefix": "eos-drill",
    "input_topic": "eos-drill.in",
    "output_topic": "eos-drill.out",
    "retries": 0,  # a drill that its worker does not survive has failed
}
_SINCE = datetime(2026, 1, 1, tzinfo=UTC)


def eos_drill(
    *,
    limit: PositiveDuration = "2 minutes",
    schedule: str | None = "@weekly",
    partitions: int = 2,
    replication: int = -1,
    queue: str | None = None,
    notifiers: Sequence[Any] = (),
    tags: Sequence[str] = ("airflow-eos",),
    **settings: Any,
) -> DAG:
    """Make the DAG that kills a scratch pipeline's driver, and reports how long recovery took.

    It has a checkpoint, a prefix and topics of its own, and its app passes rows on as they are. It
    ends or drains only a driver that its own run has started. ``run`` brings the app back as any
    pipeline's does; ``drill`` measures from the kill to the next commit, and fails where that took
    too long; ``stop`` drains the app, whatever happened.

    Args:
        limit: longest time from the kill to the next commit; beyond it ``drill`` fails.
        schedule: schedule of the DAG.
        partitions: partitions of the scratch topics, where they must be made.
        replication: replication factor of these topics; -1 takes the broker's default.
        queue: queue of ``run`` and ``drill``: in deploy mode ``client`` both need one machine.
        notifiers: called with the outcome, as callbacks of ``drill``; see
            :class:`~airflow_eos.notifications.DrillNotifier`.
        tags: tags of the DAG.
        settings: fields of :class:`Pipeline`: ``checkpoint`` must be there, connections and
            ``packages`` are as of a pipeline of yours.

    Raises:
        ConfigurationError: an unknown setting, or a value that is not valid.
        TypeError: no ``checkpoint``.
        ValueError: the app may not be restarted (``max_restarts``), so that it cannot come back.
    """
    given = taken(eos_drill, {"limit": limit, "tags": tags})
    limit_s = given["limit"].total_seconds()
    require_known("eos_drill", settings, arguments_of(Pipeline))
    pipeline = Pipeline(**(SCRATCH | settings))
    if pipeline.max_restarts < 1:
        raise ValueError("max_restarts of a drill must be 1 or more: its task brings the app back.")
    within_s = _first_batch_s(pipeline) + 3 * limit_s
    placed: dict[str, Any] = {"queue": queue} if queue else {}
    with DAG(
        pipeline.dag_id,
        schedule=schedule,
        start_date=_SINCE,
        params=pipeline.params,
        tags=given["tags"],
        doc_md=eos_drill.__doc__,
        **pinned(),
    ) as dag:
        fed = _topics(pipeline, partitions, replication)
        run = streaming(pipeline, execution_timeout=timedelta(seconds=within_s + 300), **placed)
        drilled = _drill(pipeline, limit_s, list(notifiers), placed)
        fed >> [run, drilled]
        drilled >> _stop(pipeline).as_teardown(setups=fed)
    return dag


def _first_batch_s(pipeline: Pipeline) -> float:
    return cast("timedelta", pipeline.first_batch_within).total_seconds()


def _topics(pipeline: Pipeline, partitions: int, replication: int) -> Any:
    @task
    def topics() -> None:
        """Make the scratch topics, where they are not there yet."""
        from airflow.providers.apache.kafka.hooks.client import KafkaAdminClientHook

        here = rendered(pipeline)
        names = (here.input_topic, here.output_topic)
        hook = KafkaAdminClientHook(here.kafka_config_id)
        hook.create_topic([(name, partitions, replication) for name in names])

    return topics()


def _drill(pipeline: Pipeline, limit_s: float, notifiers: list[Any], placed: dict[str, Any]) -> Any:
    @task(
        on_success_callback=notifiers or None,
        on_failure_callback=notifiers or None,
        **placed,
    )
    def drill() -> dict[str, Any]:
        """Kill the driver that ``run`` has started; fail where its successor takes too long."""
        from airflow_eos.hooks.spark import SubmitTarget
        from airflow_eos.ops.supervision.drill import Drill
        from airflow_eos.ops.supervision.heartbeat_monitor import kill_elsewhere

        context = get_current_context()

        def here() -> SubmitTarget:
            return SubmitTarget.of(pipeline.spark_conn_id, deploy_mode=None, conf=pipeline.conf)

        made = Drill(
            store=store_of(pipeline),
            is_ours=lambda heartbeat: is_of(context, heartbeat, RUN),
            feed=lambda: _feed(pipeline),
            first_batch_within_s=_first_batch_s(pipeline),
            recovered_within_s=2 * limit_s,
            kill=lambda victim: kill_elsewhere(victim, here()),
        )
        try:
            report = made.run().as_json(limit_s)
        except EosError as error:
            report = {"ok": False, "why": str(error)}
            answered(context["ti"].xcom_push, key="report", value=report)
            raise AirflowFailException(str(error)) from error
        # Also where the task fails: Airflow does not keep the return value of a failed task.
        answered(context["ti"].xcom_push, key="report", value=report)
        print(  # noqa: T201 - the log
            f"{report['killed']}; {report['seconds']} s until {report['successor']} committed"
        )
        if not report["ok"]:
            raise AirflowFailException(
                f"Recovery took {report['seconds']} s, and {limit_s:g} s are allowed. Look "
                "into the log of run: how long until it saw the death, and Spark was up again?"
            )
        return report

    return drill()


def _stop(pipeline: Pipeline) -> Any:
    @task
    def stop() -> None:
        """Drain the app: ``run`` then ends in order. Skipped where another's driver is there.

        With the checkpoint of a real pipeline ``run`` is refused, and this task comes all the same:
        nobody would bring a pipeline back that was drained by request.
        """
        from airflow_eos.core.checkpoint import drain_newest, read_heartbeat

        store = store_of(pipeline)
        if not is_of(get_current_context(), read_heartbeat(store), RUN):
            raise AirflowSkipException("No driver of this run was there to be drained.")
        drain_newest(store, requested_by=pipeline.dag_id, reason="the drill is over")

    return stop()


def _feed(pipeline: Pipeline) -> None:
    """Write rows into the input topic, with the Kafka provider's own producer."""
    from airflow.providers.apache.kafka.hooks.produce import KafkaProducerHook

    here = rendered(pipeline)
    producer = KafkaProducerHook(here.kafka_config_id).get_producer()
    for number in range(ROWS):
        producer.produce(here.input_topic, key=str(number), value=f'{{"id": {number}}}')
    if left := producer.flush(60):
        raise KafkaUnavailableError(
            f"{left} of {ROWS} rows could not be written to {here.input_topic} within 60 s: "
            f"does the connection {here.kafka_config_id!r} reach the cluster?"
        )
