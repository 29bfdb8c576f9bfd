"""The DAGs that look after a pipeline: one looks at it every minute, one brings it back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

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
"""In the place of one dead driver, until an app lives to give a heartbeat."""
ASKED_BY = "eos_asked_by"
"""In the configuration of a run: the person who wants the app to run, whoever wanted it to stop."""
UNDER_WAY = ("queued", "running")
"""The states of a run that has not ended."""
RESUME = "resume__"
"""Before what names a resumption: the id of its run."""

_LOOK_S = 1.0
_MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


def last_heartbeat(pipeline: Pipeline) -> Heartbeat | None:
    """What the pipeline's driver said last, in a task."""
    from airflow_eos.checkpoint import read_heartbeat

    return read_heartbeat(store_of(pipeline))


def resumption(pipeline: Pipeline) -> str:
    """What names the run that is to replace the last driver, in a task: the driver, and a number.

    The number of those that began is in the checkpoint, so that it does not begin at 0 again once
    Airflow's rows are deleted.

    Raises:
        AirflowFailException: so many have failed that no other one is to begin.
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
    """Count this run, where it is to replace a driver, in a task."""
    from airflow_eos.checkpoint.heartbeat import Replacement, note_resumption

    if (replaces := _replaces()) is None:
        return
    driver, number = replaces
    by = f"run {RESUME}{driver}__{number} of {pipeline.dag_id}"
    counted = Replacement(driver=driver, number=number + 1, limit=STARTS, by=by)
    note_resumption(store_of(pipeline), counted)


def refusal_is_noted(pipeline: Pipeline) -> AbstractContextManager[None]:
    """Leave in the checkpoint that this run was refused for good, where it was, in a task."""
    from airflow_eos.checkpoint.heartbeat import refusals_noted

    run = get_current_context()["dag_run"]
    return refusals_noted(store_of(pipeline), dag_id=pipeline.dag_id, run_id=run.run_id)


def stays_down(pipeline: Pipeline) -> str | None:
    """Why the last driver is not to be replaced, in a task; None where it is, should it be dead.

    What no restart heals is for a person. One who asked it to stop wants that, however it ended.
    Airflow asks in the name of a task that ended, and does not say why: a success was marked by a
    person, as a task that was stopped never is one by itself, and is noted in the checkpoint, where
    it lasts. Whatever else became of the task, or of its rows, nobody has wished the app to end.

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
        return None  # it was to be handed over, and nobody has gone on
    if last.phase == "failed" and last.restart_heals is False:
        return f"no restart heals what it ended with: {last.reason}"
    return "it ended in order" if last.phase == "stopped" else None


def recovered_by(pipeline: Pipeline) -> str | None:
    """Which recovery is under way, in a task; None: none is."""
    count = get_current_context()["ti"].get_dr_count
    found = count(pipeline.recovery, states=list(UNDER_WAY))
    return f"a run of {pipeline.recovery} is under way" if found else None


def brought_back(pipeline: Pipeline, besides: str | None = None) -> str | None:
    """Who brings the pipeline back, in a task: a driver that stands by, or a run of the app's DAG.

    None: nobody does.

    Args:
        pipeline: which one.
        besides: the id of a run that is left out.
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
    """How the last driver was seen to live, in a task; None where it is dead.

    Waits until it shows: for three of its intervals where it is dead.
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
    """Why this run, which is to replace a driver, has nothing to replace any more, in a task."""
    from airflow_eos.checkpoint.heartbeat import driver_of, refusal_of

    run = get_current_context()["dag_run"]
    if (replaces := _replaces()) is None:
        return None
    last = last_heartbeat(pipeline)
    if last is not None and last.started_by is not None and last.started_by.run_id == run.run_id:
        return None  # its own: somebody has cleared this run
    refusal = refusal_of(store_of(pipeline), last)
    if refusal is not None and refusal.run_id == run.run_id:
        return None  # likewise: nobody else runs it again
    if driver_of(last) != replaces[0]:
        return f"driver {driver_of(last)} has come since"
    return None if (run.conf or {}).get(ASKED_BY) else stays_down(pipeline)


def _replaces() -> tuple[str, int] | None:
    """The driver that this run is to replace, and its number; None: it is another kind of run."""
    run_id = get_current_context()["dag_run"].run_id
    driver, _, number = run_id.removeprefix(RESUME).rpartition("__")
    if not run_id.startswith(RESUME) or not number.isdecimal():
        return None
    return driver, int(number)


def _marked_as_success(pipeline: Pipeline, last: Heartbeat) -> str | None:
    """Whether a person has marked the task of this driver, which Airflow stopped; noted then."""
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
    """The pipeline's checkpoint, in a task."""
    from airflow_eos.hooks.store import CheckpointStoreHook

    here = rendered(pipeline)
    return CheckpointStoreHook(here.storage_conn_id).open(here.checkpoint)


# --- watchdog -------------------------------------------------------------------------------------


_A_LOOK = timedelta(minutes=10)
"""A look that hangs would keep all later ones from looking."""
SEEN = "seen"
"""The open work that a look has seen, and since when."""
WANTED = "wanted"
"""Where a look has seen a pipeline that is to run; None: it is to be down."""
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
        from airflow_eos.checkpoint.heartbeat import driver_of, refusal_of

        within = taken("first_batch_within", self._pipeline.first_batch_within)
        ti, reason = context["ti"], found.error
        last = last_heartbeat(self._pipeline)
        before, run = ti.get_previous_dagrun(), context["dag_run"]
        former = None
        if before is not None:
            former = ti.xcom_pull(
                task_ids=self.task_id,
                key=STALLED,
                run_id=before.run_id,
                map_indexes=-1,  # one value: of several runs Airflow gives a list
            )
        begun = since(former, driver_of(last)) or run.run_after.isoformat()
        answer = {"reason": reason, "driver": driver_of(last), "since": begun}
        ti.xcom_push(key=STALLED, value=answer)
        # One that lives, and does not get on, nobody is about to start again.
        lives = found.value["alive"]
        who = None if lives else recovered_by(self._pipeline) or brought_back(self._pipeline)
        refusal = None if lives else refusal_of(store_of(self._pipeline), last)
        # Both by the scheduler's clock.
        lasts = run.run_after - datetime.fromisoformat(begun)
        if who is not None and lasts < within:
            raise AirflowSkipException(f"{reason}. {who}.")
        so_long = f"{who}, and nothing has come for {lasts.total_seconds():.0f} s."
        why = f"{reason}; {refusal}" if refusal else reason
        raise AirflowFailException(f"{why}." if who is None else f"{why}. {so_long}")


def leave(context: Mapping[str, Any], schedule: str | None, key: str, value: object) -> None:
    """Leave it for later looks, in a task.

    A run by hand has no logical date, and PostgreSQL sorts it as the newest for ever: beside those
    of a schedule it leaves nothing.
    """
    if schedule is None or context["dag_run"].logical_date is not None:
        context["ti"].xcom_push(key=key, value=value)


def left_before(ti: Any, task_id: str, key: str) -> Any:
    """What the newest look has left that left anything: without a map index it is a list of all."""
    return ti.xcom_pull(task_ids=task_id, key=key, include_prior_dates=True, map_indexes=-1)


class OpenWorkSensor(TransactionTimeoutSensor):
    """Looks once a run, and remembers from run to run what it saw, by the scheduler's clock.

    Skipped where nothing runs out of time: ``soft_fail`` would also skip what could not be asked.

    Args:
        schedule: of the DAG.
    """

    def __init__(self, *, schedule: str | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._schedule = schedule

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at the open work, as all looks before would have, had they been this one."""
        from airflow_eos.supervision.progress import SeenOpen

        ti, now_s = context["ti"], context["dag_run"].run_after.timestamp()
        # What is not remembered was not seen: its age begins here, and acts on nothing.
        before = self._remembered(ti)
        self.seen = SeenOpen(lambda: now_s, before if before is not None else {})
        found = super().poke(context)
        leave(context, self._schedule, SEEN, self.seen.since)
        if not found.is_done:
            raise AirflowSkipException("Nothing runs out of time.")
        return found

    def _remembered(self, ti: Any) -> Mapping[str, float] | None:
        """What looks before have seen; None: none has, or what it left cannot be read any more.

        A backend may have lost it while its row still stands: each look would fail by that row.
        """
        try:
            before = left_before(ti, self.task_id, SEEN)
            return None if before is None else {name: float(at) for name, at in before.items()}
        except Exception:
            self.log.exception("What looks before have seen cannot be read: it is seen anew")
            return None


def since(former: dict[str, Any] | None, driver: str) -> str | None:
    """Since when a driver has stalled, as the look before said; None: it did not say so."""
    if former is None or former["driver"] != driver:
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
        """Whether somebody has started it, and it has not ended in order, or for no wish.

        A heartbeat that is gone does not say that nobody has: a term says that somebody did.
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
        leave(get_current_context(), pipeline.watchdog_schedule, WANTED, wanted)
        return is_wanted

    return should_be_running()


def _require_never_wanted(pipeline: Pipeline, location: str) -> None:
    """Refuse to take an empty folder for a pipeline that nobody has started, where one was seen."""
    if seen := left_before(get_current_context()["ti"], "should_be_running", WANTED):
        raise AirflowFailException(
            f"No driver has ever run at {location}, and a look before has seen one at {seen} that "
            "is to run: a disk that is not mounted, a checkpoint that was deleted, or a setting "
            f"that has changed. Nothing is started. Bring it back, or trigger {pipeline.dag_id} "
            "to begin anew there; pause this DAG where it is to stay down."
        )


def interval_of(schedule: object) -> int | None:
    """How far two runs are apart, in ms; None where a schedule does not say: an asset's, say."""
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
    # All done: a stall fails `progress`. What failed otherwise has left no answer, and only an
    # answer counts here.
    @task.short_circuit(trigger_rule="all_done")
    def needs_recovery() -> bool:
        """Where work is at half time, or it stalls and nobody is bringing it back."""
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
        return not (stays_down(pipeline) or brought_back(pipeline))

    return needs_recovery()


# --- recovery -------------------------------------------------------------------------------------


COMMITTED = "Readers have the rows that nobody can tell of"
ABORTED = "Readers do not have them: deliver them again"
ORPHANS = "Abort what no checkpoint knows"
LEAVE = "Leave all that alone"
_CHOSEN = "((ti.xcom_pull(task_ids='ask') or {}).get('chosen_options') or [])"


class CertainFirst(RecoverTransactionsOperator):
    """Ends what is certain before a person is asked: what is promised would time out meanwhile."""

    def execute(self, context: Context) -> Any:
        """As its base, but that what only a person can decide is no failure: he is asked next."""
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
        # It only acts on what somebody has started; paused, a dead pipeline waits for ever.
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
            # Each dead driver is replaced once; again where who replaced it gave no sign of life.
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
    """A template's expression: what the answer means to the operator; '' where it was not given."""
    meaning = {COMMITTED: "committed", ABORTED: "aborted", ORPHANS: "orphan"}[option]
    return f"({meaning!r} if {option!r} in {_CHOSEN} else '')"


_LEFT = f"(' leave' if {LEAVE!r} in {_CHOSEN} and {_CHOSEN}[1:] else '')"
# Of two answers that contradict each other none is taken: their words together are no known one.
_RULED = f"{{{{ {_ruling(COMMITTED)} ~ {_ruling(ABORTED)} ~ {_LEFT} }}}}"


@task.branch
def who_decides() -> str:
    """A person, once all else is done, where the plan has steps of ASK or ORPHAN; else nobody."""
    import json

    from airflow_eos.notifications import plan_in_words
    from airflow_eos.recovery import Plan

    ti = get_current_context()["ti"]
    plan = Plan.from_json(json.dumps(ti.xcom_pull(task_ids="plan")))
    ti.xcom_push(key="words", value=plan_in_words(plan))
    return "certain" if plan.needs_person else "execute"


def _require_nothing_wrong(report: Mapping[str, Any] | None) -> None:
    """Refuse what can never be right, of an app that may have rows to read yet.

    Behind retention not all can be judged, which holds nobody up; an audit that has judged no row
    at all has no answer to give.
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
        """Fail on what can never be right; else name the driver that died, and the try.

        Skipped, and the resumption with it, where the driver lives, or nobody wants another one, or
        somebody brings it back already.
        """
        if audited:
            _require_nothing_wrong(get_current_context()["ti"].xcom_pull(task_ids="audit"))
        if why := stays_down(pipeline) or is_alive(pipeline):
            raise AirflowSkipException(
                f"The app is not resumed: {why}. What was left open is ended; {pipeline.dag_id} "
                "starts the app where it is to run all the same."
            )
        named = resumption(pipeline)
        if why := brought_back(pipeline, besides=f"{RESUME}{named}"):
            raise AirflowSkipException(f"The app is not resumed: {why}.")
        return named

    return verdict()
