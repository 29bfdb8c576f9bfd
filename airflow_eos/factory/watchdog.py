"""The watchdog DAG, which checks a pipeline every minute, and the DAG that recovers it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, PokeReturnValue, chain, get_current_context, task

from airflow_eos.arguments import milliseconds, taken
from airflow_eos.factory.settings import Pipeline, pinned, rendered
from airflow_eos.operators import AuditOperator, PlanRecoveryOperator, RecoverTransactionsOperator
from airflow_eos.sensors import CheckpointProgressSensor, TransactionTimeoutSensor

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from airflow.sdk import Context

    from airflow_eos.checkpoint import CheckpointStore, Heartbeat
    from airflow_eos.supervision.progress import Conclusion

STARTS = 20
"""The most runs that replace one dead driver, until an app lives to write a heartbeat."""
ASKED_BY = "eos_asked_by"
"""The key in a run's configuration of the person who wants the app to run, even if drained."""
UNDER_WAY = ("queued", "running")
"""The states of a run that has not ended."""
RESUME = "resume__"
"""The prefix of the run id of a resumption."""

_LOOK_S = 1.0
_MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


def last_heartbeat(pipeline: Pipeline) -> Heartbeat | None:
    """Read the newest heartbeat of the pipeline's driver, in a task."""
    from airflow_eos.checkpoint import read_heartbeat

    return read_heartbeat(store_of(pipeline))


def resumption(pipeline: Pipeline) -> str:
    """Return the name of the run that is to replace the last driver (driver, number), in a task.

    The number of runs that began is in the checkpoint, so that it does not begin at 0 again once
    Airflow's rows are deleted.

    Raises:
        AirflowFailException: so many runs have failed that no other one is to begin.
    """
    from airflow_eos.checkpoint.heartbeat import driver_of, next_start, resumption_of

    last, ti = last_heartbeat(pipeline), get_current_context()["ti"]
    driver = driver_of(last)

    def has_failed(number: int) -> bool | None:
        run_ids = [f"{RESUME}{driver}__{number}"]
        if ti.get_dr_count(pipeline.dag_id, run_ids=run_ids, states=["failed"]):
            return True
        kept = ti.get_dr_count(pipeline.dag_id, run_ids=run_ids, states=[*UNDER_WAY, "success"])
        return False if kept else None

    number = next_start(resumption_of(store_of(pipeline), last), has_failed, STARTS)
    if number is None:
        raise AirflowFailException(
            f"Nobody brings the pipeline back any more: {STARTS} runs of {pipeline.dag_id} in the "
            f"place of driver {driver} have failed. The log of the last says why; once that is "
            f"mended, trigger {pipeline.dag_id} by hand."
        )
    return f"{driver}__{number}"


def note_that_it_begins(pipeline: Pipeline) -> None:
    """Count this run in the checkpoint where it is to replace a driver, in a task."""
    from airflow_eos.checkpoint.heartbeat import Replacement, note_resumption

    if (replaces := _replaces()) is None:
        return
    driver, number = replaces
    by = f"run {RESUME}{driver}__{number} of {pipeline.dag_id}"
    counted = Replacement(driver=driver, number=number + 1, limit=STARTS, by=by)
    note_resumption(store_of(pipeline), counted)


def refusal_is_noted(pipeline: Pipeline) -> AbstractContextManager[None]:
    """Note in the checkpoint where this run is refused for good, in a task."""
    from airflow_eos.checkpoint.heartbeat import refusals_noted

    run = get_current_context()["dag_run"]
    return refusals_noted(store_of(pipeline), dag_id=pipeline.dag_id, run_id=run.run_id)


def stays_down(pipeline: Pipeline) -> str | None:
    """Return why the last driver is not to be replaced, in a task; None where it is, if dead.

    A failure that no restart heals is for a person. A person who asked the driver to stop wants it
    down, however it ended. Airflow asks in the name of a task that ended, and does not say why: a
    success was marked by a person, as a stopped task never is one by itself, and is noted in the
    checkpoint, where it lasts. Whatever else became of the task or its rows, nobody wants it down.

    Raises:
        AirflowFailException: Airflow stopped what another DAG had started, which has ended since.
    """
    from airflow_eos.checkpoint import drain_of
    from airflow_eos.checkpoint.heartbeat import BY_AIRFLOW, NOT_FOR_GOOD, refusal_of, who_asked

    last = last_heartbeat(pipeline)
    if refusal := refusal_of(store_of(pipeline), last):
        return str(refusal)
    if last is None:
        return None
    asked_by = who_asked(last, drain_of(store_of(pipeline), last, known=True))
    if people := asked_by - NOT_FOR_GOOD:
        how = "stopped" if last.phase == "stopped" else "died"
        return f"{min(people)} asked the app to stop, and it {how}"
    if BY_AIRFLOW in asked_by:
        return _marked_as_success(pipeline, last)
    if asked_by:
        return None  # the driver was to hand over, and no standby has taken over
    if last.phase == "failed" and last.restart_heals is False:
        return f"no restart heals what it ended with: {last.reason}"
    return "it ended in order" if last.phase == "stopped" else None


def recovered_by(pipeline: Pipeline) -> str | None:
    """Name the recovery that is under way, in a task; None where none is."""
    count = get_current_context()["ti"].get_dr_count
    found = count(pipeline.recovery, states=list(UNDER_WAY))
    return f"a run of {pipeline.recovery} is under way" if found else None


def restart_in_progress(pipeline: Pipeline, besides: str | None = None) -> str | None:
    """Name the standby, or run of the app's DAG, that brings the pipeline back, in a task.

    None where there is neither.

    Args:
        pipeline: the pipeline.
        besides: the id of a run that does not count.
    """
    from airflow_eos.checkpoint.heartbeat import brought_back_by
    from airflow_eos.checkpoint.standby import living_standbys

    if living := living_standbys(store_of(pipeline)):
        return f"{living[0]} stands by"
    count, states = get_current_context()["ti"].get_dr_count, list(UNDER_WAY)
    found = count(pipeline.dag_id, states=states)
    if besides is not None:
        found -= count(pipeline.dag_id, run_ids=[besides], states=states)
    if not found:
        return None
    said = brought_back_by(store_of(pipeline), last_heartbeat(pipeline))
    return f"a run of {pipeline.dag_id} is under way" + (f": {said}" if said else "")


def is_alive(pipeline: Pipeline) -> str | None:
    """Return how the last driver was seen to live, in a task; None where it is dead.

    Waits until the answer is known: for three of the driver's intervals where it is dead.
    """
    from airflow_eos.checkpoint import StartedBy
    from airflow_eos.supervision.exit_status import NextAction, choose
    from airflow_eos.supervision.heartbeat_monitor import Pulse

    nobody = StartedBy(dag_id="", task_id="", run_id="", map_index=-1, submission="")
    pulse = Pulse(store_of(pipeline), every_s=_LOOK_S)
    while True:
        seen = pulse.look_if_it_answers(refused=True)
        choice = None if seen is None else choose(seen, nobody, None)
        if choice is not None and choice.action is not NextAction.LOOK:
            return choice.reason if choice.action is NextAction.REFUSE else None
        time.sleep(_LOOK_S)


def overtaken(pipeline: Pipeline) -> str | None:
    """Return why this run, which is to replace a driver, need not any more, in a task; or None."""
    from airflow_eos.checkpoint.heartbeat import driver_of, refusal_of

    run = get_current_context()["dag_run"]
    if (replaces := _replaces()) is None:
        return None
    last = last_heartbeat(pipeline)
    if last is not None and last.started_by is not None and last.started_by.run_id == run.run_id:
        return None  # this run's own driver: somebody has cleared this run
    refusal = refusal_of(store_of(pipeline), last)
    if refusal is not None and refusal.run_id == run.run_id:
        return None  # this run's own refusal: no other run starts the app again
    if driver_of(last) != replaces[0]:
        return f"driver {driver_of(last)} has come since"
    return None if (run.conf or {}).get(ASKED_BY) else stays_down(pipeline)


def _replaces() -> tuple[str, int] | None:
    """Return the driver that this run is to replace, and the run's number; None: another kind."""
    run_id = get_current_context()["dag_run"].run_id
    driver, _, number = run_id.removeprefix(RESUME).rpartition("__")
    if not run_id.startswith(RESUME) or not number.isdecimal():
        return None
    return driver, int(number)


def _marked_as_success(pipeline: Pipeline, last: Heartbeat) -> str | None:
    """Return that a person marked the stopped driver's task as a success, and note it; or None."""
    from airflow_eos.checkpoint import request_drain

    us = last.started_by
    if us is None:
        return None
    ti = get_current_context()["ti"]
    map_index = None if us.map_index < 0 else us.map_index
    told = ti.get_task_states(
        us.dag_id, map_index=map_index, task_ids=[us.task_id], run_ids=[us.run_id]
    )
    states = set(told.get(us.run_id, {}).values())  # a row that is gone is no state
    if states == {"success"}:
        by = f"the person who marked {us} as a success"
        request_drain(store_of(pipeline), requested_by=by, reason="marked", term=last.term)
        return f"{us} was marked as a success"
    if us.dag_id == pipeline.dag_id:
        return None
    if ti.get_dr_count(us.dag_id, run_ids=[us.run_id], states=list(UNDER_WAY)):
        return f"{us} is under way, and brings it back"
    raise AirflowFailException(
        f"Airflow stopped the app that {us} had started, and no run of that DAG is under way. "
        f"Whether it is to run is not known here: nothing is started. Trigger {pipeline.dag_id} to "
        "start it, or `airflow-eos drain` the checkpoint to keep it down."
    )


def store_of(pipeline: Pipeline) -> CheckpointStore:
    """Open the pipeline's checkpoint, in a task."""
    from airflow_eos.hooks.store import CheckpointStoreHook

    here = rendered(pipeline)
    return CheckpointStoreHook(here.storage_conn_id).open(here.checkpoint)


# --- watchdog -------------------------------------------------------------------------------------


_A_LOOK = timedelta(minutes=10)
"""The least timeout of a watchdog task: one that hangs would keep all later runs from starting."""
_BESIDES = timedelta(minutes=1)
"""The time of a look beside the trigger interval for which it holds a suspicion."""
SEEN = "seen"
"""The XCom with the open work that ``timeouts`` has seen, and since when."""
WANTED = "wanted"
"""The XCom with the location of a pipeline that is to run; None: the pipeline is to be down."""
STALLED = "stalled"
"""The XCom with the stall that ``progress`` found, by which recovery starts; absent on an error."""
IN_VAIN = "in_vain"
"""The XCom with since when, and for how many drivers, no look has found batches to advance."""

_DRIVERS_IN_VAIN = 3
"""The number of drivers, one after another, that are no accident: the first may have been well."""


class StallSensor(CheckpointProgressSensor):
    """Reports a stalled pipeline, and whether a run or a standby is bringing it back.

    Done where the pipeline is well, skipped where one does and has time left, else failed. Failed,
    too, where drivers come and go: each is young for a while, and then about to be replaced.

    Args:
        pipeline: the pipeline.
    """

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._pipeline = pipeline

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at the checkpoint, and compare with the looks before where a driver is at work.

        Raises:
            AirflowFailException: the pipeline has stalled, or drivers come and go in vain.
            AirflowSkipException: it has stalled, and is being brought back.
        """
        from airflow_eos.supervision.progress import Health

        found = super().poke(context)
        seen = cast("Mapping[str, Any]", found.xcom_value)
        if seen["health"] == Health.WORKING.value and (why := self._in_vain(context, seen)):
            raise AirflowFailException(f"{seen['reason']}; {why}.")
        return found

    def stalled(self, context: Context, found: Conclusion) -> None:
        """Push the stall as an XCom, and skip or fail the task, with the reason for people."""
        from airflow_eos.checkpoint.heartbeat import driver_of, refusal_of

        ti, reason, run = context["ti"], found.error, context["dag_run"]
        last = last_heartbeat(self._pipeline)
        former = self._left_by_the_run_before(context, STALLED)
        begun = since(former, driver_of(last)) or run.run_after.isoformat()
        answer = {"reason": reason, "driver": driver_of(last), "since": begun}
        ti.xcom_push(key=STALLED, value=answer)
        # A driver that lives and makes no progress is not about to be started again.
        lives = found.value["alive"]
        who = None if lives else recovered_by(self._pipeline) or restart_in_progress(self._pipeline)
        refusal = None if lives else refusal_of(store_of(self._pipeline), last)
        vain = self._in_vain(context, found.value)
        # Both times are by the scheduler's clock.
        lasts = run.run_after - datetime.fromisoformat(begun)
        if who is not None and lasts < self._within and vain is None:
            raise AirflowSkipException(f"{reason}. {who}.")
        so_long = f"{who}, and nothing has come for {lasts.total_seconds():.0f} s."
        why = "; ".join(str(each) for each in (reason, refusal, vain) if each)
        raise AirflowFailException(f"{why}." if who is None else f"{why}. {so_long}")

    @property
    def _within(self) -> timedelta:
        within: timedelta = taken("first_batch_within", self._pipeline.first_batch_within)
        return within

    def _in_vain(self, context: Context, seen: Mapping[str, Any]) -> str | None:
        """Return that drivers come and go and no batch is settled; None: that was not seen, yet.

        Remembered from run to run, as long as none finds another batch, or the pipeline idle.
        """
        from airflow_eos.checkpoint.heartbeat import driver_of

        driver, run = driver_of(last_heartbeat(self._pipeline)), context["dag_run"]
        told = self._left_by_the_run_before(context, IN_VAIN)
        if told is None or told["batch"] != seen["batch_id"]:
            begun = run.run_after.isoformat()
            told = {"batch": seen["batch_id"], "since": begun, "driver": driver, "drivers": 1}
        drivers = told["drivers"] + (told["driver"] != driver)
        context["ti"].xcom_push(key=IN_VAIN, value=told | {"driver": driver, "drivers": drivers})
        lasts = run.run_after - datetime.fromisoformat(told["since"])
        if drivers < _DRIVERS_IN_VAIN or lasts < self._within:
            return None
        return f"{drivers} drivers came within {lasts.total_seconds():.0f} s, and settled no batch"

    def _left_by_the_run_before(self, context: Context, key: str) -> Any:
        """Return what this task has pushed in the run before; None: nothing, or there was none."""
        before = context["ti"].get_previous_dagrun()
        if before is None:
            return None
        return context["ti"].xcom_pull(
            task_ids=self.task_id,
            key=key,
            run_id=before.run_id,
            map_indexes=-1,  # one value: of several runs Airflow gives a list
        )


def keep_for_later_runs(
    context: Mapping[str, Any], schedule: str | None, key: str, value: object
) -> None:
    """Push ``value`` as an XCom for the looks of later runs.

    Not from a run by hand of a scheduled DAG: it has no logical date, and PostgreSQL sorts such a
    run as the newest for ever.
    """
    if schedule is None or context["dag_run"].logical_date is not None:
        context["ti"].xcom_push(key=key, value=value)


def kept_by_earlier_run(ti: Any, task_id: str, key: str) -> Any:
    """Return the newest run's XCom; without a map index ``xcom_pull`` lists those of all runs."""
    return ti.xcom_pull(task_ids=task_id, key=key, include_prior_dates=True, map_indexes=-1)


class OpenWorkSensor(TransactionTimeoutSensor):
    """Looks once a run, and keeps the open work it saw from run to run, by the scheduler's clock.

    Skipped where nothing runs out of time: ``soft_fail`` would also skip a look without an answer.

    Args:
        schedule: of the DAG.
    """

    def __init__(self, *, schedule: str | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._schedule = schedule

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at the open work, and date it by the looks of the runs before."""
        from airflow_eos.supervision.progress import SeenOpen

        ti, now_s = context["ti"], context["dag_run"].run_after.timestamp()
        # The age of work that no look has seen begins here, at 0, and triggers nothing.
        before = self._remembered(ti)
        self.seen = SeenOpen(lambda: now_s, before if before is not None else {})
        found = super().poke(context)
        keep_for_later_runs(context, self._schedule, SEEN, self.seen.since)
        if not found.is_done:
            raise AirflowSkipException("Nothing runs out of time.")
        return found

    def _remembered(self, ti: Any) -> Mapping[str, float] | None:
        """Read the open work that earlier looks saw; None: none, or it cannot be read any more.

        An XCom backend may have lost the value while its row stands: each look would fail by it.
        """
        try:
            before = kept_by_earlier_run(ti, self.task_id, SEEN)
            return None if before is None else {name: float(at) for name, at in before.items()}
        except Exception:
            self.log.exception("What looks before have seen cannot be read: it is seen anew")
            return None


def since(former: dict[str, Any] | None, driver: str) -> str | None:
    """Return since when a driver has stalled, by the look before; None where that saw no stall."""
    if former is None or former["driver"] != driver:
        return None
    return str(former["since"])


def watchdog(pipeline: Pipeline, tags: list[str]) -> DAG:
    """Check whether the app makes progress and no transaction runs out of time; recover if not.

    An app that has never run, or ended in order, or that a person has stopped, is left alone: to
    keep it down, drain it. A run is red where somebody may have to look: the pipeline has stalled,
    and nobody was bringing it back, or not in time; drivers come and go, and none settles a batch;
    or a question got no answer, and then nothing is done. While a task restarts the app, or a
    recovery is at work, runs are green, and say who.
    """
    look = max(_A_LOOK, 2 * (pipeline.trigger_interval + _BESIDES))
    with DAG(
        pipeline.watchdog,
        schedule=pipeline.watchdog_schedule,
        tags=tags,
        doc_md=watchdog.__doc__,
        # It only acts on a pipeline that somebody has started; paused, it sees no driver die.
        is_paused_upon_creation=False,
        **pinned(execution_timeout=look),
    ) as dag:
        progress = StallSensor(
            task_id="progress",
            pipeline=pipeline,
            max_age=pipeline.stall_after,
            poke_interval=5,
            timeout=look.total_seconds() / 2,
            deferrable=False,
            **pipeline.place,
        )
        timeouts = OpenWorkSensor(
            task_id="timeouts",
            schedule=pipeline.watchdog_schedule,
            part_left=0.5,
            deferrable=False,
            **pipeline.transactions,
        )
        recover = TriggerDagRunOperator(task_id="recover", trigger_dag_id=pipeline.recovery)
        wanted = _needs_recovery(pipeline)
        _should_be_running(pipeline) >> [progress, timeouts] >> wanted >> recover
        progress >> EmptyOperator(task_id="well")
    return dag


def _should_be_running(pipeline: Pipeline) -> Any:
    from airflow_eos.checkpoint import newest_term
    from airflow_eos.checkpoint.heartbeat import WatchdogLook, note_look

    @task.short_circuit
    def should_be_running() -> bool:
        """Whether a person has started the app, and it has not ended in order or by request.

        A heartbeat that is gone does not say that no driver has run: a term says that one did.
        """
        heartbeat, store = last_heartbeat(pipeline), store_of(pipeline)
        if heartbeat is None and newest_term(store) == 0:
            _require_never_wanted(pipeline, store.location)
            return False
        interval_ms = interval_of(pipeline.watchdog_schedule)
        run_id = get_current_context()["dag_run"].run_id
        note_look(
            store, WatchdogLook(dag_id=pipeline.watchdog, run_id=run_id, interval_ms=interval_ms)
        )
        ended = heartbeat is not None and heartbeat.phase == "stopped"
        is_wanted = not ended or stays_down(pipeline) is None
        wanted = store.location if is_wanted else None
        keep_for_later_runs(get_current_context(), pipeline.watchdog_schedule, WANTED, wanted)
        return is_wanted

    return should_be_running()


def _require_never_wanted(pipeline: Pipeline, location: str) -> None:
    """Refuse an empty folder where an earlier look has seen a pipeline that is to run."""
    if seen := kept_by_earlier_run(get_current_context()["ti"], "should_be_running", WANTED):
        raise AirflowFailException(
            f"No driver has ever run at {location}, and a look before has seen one at {seen} that "
            "is to run: a disk that is not mounted, a checkpoint that was deleted, or a setting "
            f"that has changed. Nothing is started. Bring it back, or trigger {pipeline.dag_id} "
            "to begin anew there; pause this DAG where it is to stay down."
        )


def interval_of(schedule: object) -> int | None:
    """Return the longest time between two runs, in ms; None for a schedule without one (assets)."""
    from croniter import CroniterError, croniter  # type: ignore[import-untyped]

    if isinstance(schedule, timedelta):
        return milliseconds(schedule)
    if not isinstance(schedule, str):
        return None
    # The longest pause around any hour of a week: nights without a look are no missed ones.
    week = (_MONDAY + timedelta(hours=n, seconds=1) for n in range(7 * 24))
    try:
        around = [croniter(schedule, each, ret_type=float) for each in week]
    except CroniterError:
        return None
    longest_s: float = max(each.get_next() - each.get_prev() for each in around)
    return round(1000 * longest_s)


def _needs_recovery(pipeline: Pipeline) -> Any:
    # all_done: a stall fails `progress`. Other failures leave no XCom, and only an XCom counts.
    @task.short_circuit(trigger_rule="all_done")
    def needs_recovery() -> bool:
        """Whether work is at half time, or the app stalls and nobody is bringing it back."""
        from airflow_eos.checkpoint.heartbeat import driver_of

        ti = get_current_context()["ti"]
        if recovered_by(pipeline):
            return False
        if ti.xcom_pull(task_ids="timeouts"):  # unless a run that replaces the driver is at it
            driver = driver_of(last_heartbeat(pipeline))
            run_ids = [f"{RESUME}{driver}__{n}" for n in range(STARTS)]
            return not ti.get_dr_count(pipeline.dag_id, run_ids=run_ids, states=list(UNDER_WAY))
        if not ti.xcom_pull(task_ids="progress", key=STALLED):
            return False
        return not (stays_down(pipeline) or restart_in_progress(pipeline))

    return needs_recovery()


# --- recovery -------------------------------------------------------------------------------------


COMMITTED = "Readers have the rows that nobody can tell of"
ABORTED = "Readers do not have them: deliver them again"
ORPHANS = "Abort what no checkpoint knows"
LEAVE = "Leave all that alone"
_CHOSEN = "((ti.xcom_pull(task_ids='ask') or {}).get('chosen_options') or [])"


class CertainFirst(RecoverTransactionsOperator):
    """Ends the transactions that need no person, before one is asked: they might time out else."""

    def execute(self, context: Context) -> Any:
        """Execute the plan; steps left for a person are no failure: the next task asks one."""
        try:
            return super().execute(context)
        except AirflowFailException as left:
            self.log.warning("Left to the person who is asked: %s", left)
        return None


def recovery(pipeline: Pipeline, tags: list[str], notifiers: Sequence[Any] = ()) -> DAG:
    """Bring a dead pipeline back: plan, ask if need be, execute, audit, resume.

    Harmless at any time. A pipeline that is alive is refused. Steps that only a person may decide
    wait for one, once all others are done; unanswered they are left alone, and fail ``execute``.
    """
    with DAG(
        pipeline.recovery,
        schedule=None,
        tags=tags,
        doc_md=recovery.__doc__,
        # It only acts on a pipeline that somebody has started; paused, a dead one waits for ever.
        is_paused_upon_creation=False,
        **pinned(),
    ) as dag:
        plan = PlanRecoveryOperator(task_id="plan", **pipeline.transactions)
        planned = "{{ ti.xcom_pull(task_ids='plan') | tojson }}"
        certain = CertainFirst(task_id="certain", plan=planned, **pipeline.transactions)
        ask = HITLOperator(
            task_id="ask",
            subject=f"{pipeline.dag_id}: what recovery may not decide",
            body="{{ ti.xcom_pull(task_ids='who_decides', key='words') }}",
            options=[COMMITTED, ABORTED, ORPHANS, LEAVE],
            defaults=[LEAVE],
            multiple=True,
            response_timeout=taken("ask_within", pipeline.ask_within),
            notifiers=list(notifiers),
        )
        execute = RecoverTransactionsOperator(
            task_id="execute",
            plan=planned,
            assume=_RULED,
            allowed_actions=["commit", "abort", f"{{{{ {_ruling(ORPHANS)} or 'abort' }}}}"],
            trigger_rule="none_failed_min_one_success",
            **pipeline.transactions,
        )
        resume = TriggerDagRunOperator(
            task_id="resume",
            trigger_dag_id=pipeline.dag_id,
            # Each dead driver is replaced once; again where its successor gave no sign of life.
            trigger_run_id=RESUME + "{{ ti.xcom_pull(task_ids='verdict') }}",
            skip_when_already_exists=True,
        )
        asked = who_decides()
        chain(plan, asked, certain, ask, execute)
        asked >> execute
        steps: list[Any] = [execute]
        if audited := pipeline.order_id if pipeline.audit and not pipeline.outputs else None:
            audit = AuditOperator(
                task_id="audit",
                input_topic=pipeline.input_topic,
                output_topic=pipeline.output_topic,
                dead_letter_topic=pipeline.dead_letter_topic,
                id_expression=audited,
                fail_on_violation=False,  # rows that the app has yet to read are no loss
                **pipeline.place,
            )
            steps.append(audit)
        chain(*steps, _verdict(pipeline, audited=bool(audited)), resume)
    return dag


def _ruling(option: str) -> str:
    """Return a template expression for the operator's argument; '' where it was not chosen."""
    meaning = {COMMITTED: "committed", ABORTED: "aborted", ORPHANS: "orphan"}[option]
    return f"({meaning!r} if {option!r} in {_CHOSEN} else '')"


_LEFT = f"(' leave' if {LEAVE!r} in {_CHOSEN} and {_CHOSEN}[1:] else '')"
# Answers that contradict each other are refused: their words joined are no known argument.
_RULED = f"{{{{ {_ruling(COMMITTED)} ~ {_ruling(ABORTED)} ~ {_LEFT} }}}}"


@task.branch
def who_decides() -> str:
    """Choose ``certain`` (all else, then a person decides) for ASK or ORPHAN; else ``execute``."""
    import json

    from airflow_eos.notifications import plan_in_words
    from airflow_eos.recovery import Plan

    ti = get_current_context()["ti"]
    plan = Plan.from_json(json.dumps(ti.xcom_pull(task_ids="plan")))
    ti.xcom_push(key="words", value=plan_in_words(plan))
    return "certain" if plan.needs_person else "execute"


def _require_nothing_wrong(report: Mapping[str, Any] | None) -> None:
    """Refuse an audit with errors that unread rows cannot explain, or that has judged no row.

    Some rows unjudged (behind retention) hold nobody up; no row judged means no answer to give.
    """
    if report is None:
        raise AirflowFailException(
            "The audit has no report: whether rows came twice is not known. Clear the task audit."
        )
    never = ("duplicated", "reordered", "visible_undecided", "unexpected")
    if wrong := {name: report[name] for name in never if report[name]}:
        raise AirflowFailException(f"The audit found {wrong}: {report['offenders'][:3]}")
    if any(report["rows_out"].values()) and not report["matched"] and report["rows_in"]:
        raise AirflowFailException(
            f"The audit could judge no row: {report['unjudged'][0]['why']}. Correct order_id of "
            "this pipeline, or take audit=False where its rows have no counterpart."
        )


def _verdict(pipeline: Pipeline, *, audited: bool) -> Any:
    @task
    def verdict() -> str:
        """Fail on a wrong audit; else return the name of the resumption: dead driver and number.

        Skipped, and the resumption with it, where the driver lives, or is to stay down, or a run or
        a standby brings the pipeline back already.
        """
        if audited:
            _require_nothing_wrong(get_current_context()["ti"].xcom_pull(task_ids="audit"))
        if why := stays_down(pipeline) or is_alive(pipeline):
            raise AirflowSkipException(
                f"The app is not resumed: {why}. What was left open is ended; {pipeline.dag_id} "
                "starts the app where it is to run all the same."
            )
        named = resumption(pipeline)
        if why := restart_in_progress(pipeline, besides=f"{RESUME}{named}"):
            raise AirflowSkipException(f"The app is not resumed: {why}.")
        return named

    return verdict()
