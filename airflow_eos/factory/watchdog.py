"""The DAG that looks at a pipeline every minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, get_current_context, task

from airflow_eos.arguments import taken
from airflow_eos.factory.replacing import (
    being_replaced,
    brought_back,
    last_heartbeat,
    recovered_by,
    stays_down,
    store_of,
)
from airflow_eos.factory.settings import Pipeline, pinned
from airflow_eos.sensors import CheckpointProgressSensor, TransactionTimeoutSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.supervision.watch import Conclusion

_A_LOOK = timedelta(minutes=10)
"""A look that hangs would keep all later ones from looking."""
STALLED = "stalled"
"""The answer of ``progress`` that recovery goes by. There is none where the question failed."""


class StallSensor(CheckpointProgressSensor):
    """Says that a pipeline has stalled, and whether somebody who brings it back is at it.

    Done where it is well, skipped where somebody brings it back and has time left, else failed.

    Args:
        pipeline: which one.
    """

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._pipeline = pipeline

    def stalled(self, context: Context, found: Conclusion) -> None:
        """Leave the answer, and raise what the state of this task says to people."""
        from airflow_eos.checkpoint.heartbeat import driver_of

        within = taken("first_batch_within", self._pipeline.first_batch_within)
        ti, reason = context["ti"], found.error
        last = last_heartbeat(self._pipeline)
        before, run = ti.get_previous_dagrun(), context["dag_run"]
        former = ti.xcom_pull(task_ids=self.task_id, key=STALLED, include_prior_dates=True)
        begun = since(former, driver_of(last), before.run_id if before else None)
        begun = begun or run.run_after.isoformat()
        answer = {
            "reason": reason,
            "driver": driver_of(last),
            "run_id": run.run_id,
            "since": begun,
        }
        ti.xcom_push(key=STALLED, value=answer)
        # One that lives, and does not get on, nobody is about to start again.
        lives = found.value["alive"]
        who = None if lives else recovered_by(self._pipeline) or brought_back(self._pipeline)
        # Both by the scheduler's clock.
        lasts = run.run_after - datetime.fromisoformat(begun)
        if who is not None and lasts < within:
            raise AirflowSkipException(f"{reason}. {who}.")
        so_long = f"{who}, and nothing has come for {lasts.total_seconds():.0f} s."
        raise AirflowFailException(f"{reason}." if who is None else f"{reason}. {so_long}")


def since(former: dict[str, Any] | None, driver: str, run_before: str | None) -> str | None:
    """Since when a driver has stalled, as the look before said; None: it did not say so."""
    if former is None or (former["driver"], former["run_id"]) != (driver, run_before):
        return None
    return str(former["since"])


def watchdog(pipeline: Pipeline, tags: list[str]) -> DAG:
    """Does the app get on, and does a transaction run out of time? If not well, recover.

    One that has never run, or ended in order, or that a person has stopped, is left alone: to keep
    it down, drain it. A run is red where somebody may have to look: the pipeline has stalled, and
    nobody was bringing it back, or not in time; or a question got no answer, and then nothing is
    done. While a task restarts the app, or a recovery is at work, runs are green, and say who.
    """
    with DAG(
        pipeline.watchdog,
        schedule=pipeline.watchdog_schedule,
        tags=tags,
        doc_md=watchdog.__doc__,
        # It only acts on what somebody has started; paused, it sees nothing die.
        is_paused_upon_creation=False,
        **pinned(execution_timeout=_A_LOOK),
    ) as dag:
        progress = StallSensor(
            task_id="progress",
            pipeline=pipeline,
            max_age=pipeline.stall_after,
            poke_interval=5,
            timeout=_A_LOOK.total_seconds() / 2,
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
        if heartbeat is None:
            return False
        _note_look(pipeline)
        return heartbeat.phase != "stopped" or stays_down(pipeline) is None

    return should_be_running()


def _note_look(pipeline: Pipeline) -> None:
    from airflow_eos.checkpoint.heartbeat import WatchdogLook, note_look

    run_id = get_current_context()["dag_run"].run_id
    interval_ms = interval_of(pipeline.watchdog_schedule)
    look = WatchdogLook(dag_id=pipeline.watchdog, run_id=run_id, interval_ms=interval_ms)
    note_look(store_of(pipeline), look)


def interval_of(schedule: str | None) -> int | None:
    """How far two runs of a cron expression are apart, in ms; None where it is no such one."""
    from croniter import CroniterError, croniter  # type: ignore[import-untyped]

    if schedule is None:
        return None
    try:
        runs = croniter(schedule, datetime(2026, 1, 1, tzinfo=UTC), ret_type=float)
    except CroniterError:
        return None
    times = [runs.get_next() for _ in range(9)]
    # The longest pause of them: nights without a look are no missed ones.
    longest_s: float = max(after - before for before, after in pairwise(times))
    return round(1000 * longest_s)


def _needs_recovery(pipeline: Pipeline) -> Any:
    # All done: a stall fails `progress`. What failed otherwise has left no answer, and only an
    # answer counts here.
    @task.short_circuit(trigger_rule="all_done")
    def needs_recovery() -> bool:
        """Where work is at half time, or it stalls and nobody is bringing it back."""
        ti = get_current_context()["ti"]
        if recovered_by(pipeline):
            return False
        if ti.xcom_pull(task_ids="timeouts"):
            return not being_replaced(pipeline)
        if not ti.xcom_pull(task_ids="progress", key=STALLED):
            return False
        return not (stays_down(pipeline) or brought_back(pipeline))

    return needs_recovery()
