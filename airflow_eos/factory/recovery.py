"""The DAG that brings a dead pipeline back: plan, ask a person, recover, audit, resume."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, chain, get_current_context, task

from airflow_eos.factory.settings import Pipeline, pinned
from airflow_eos.factory.watchdog import (
    RESUME,
    is_alive,
    restart_in_progress,
    resumption,
    stays_down,
)
from airflow_eos.hooks.answers import answered
from airflow_eos.hooks.runs import why_it_stands
from airflow_eos.operators import AuditOperator, PlanRecoveryOperator, RecoverTransactionsOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

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
            response_timeout=cast("timedelta", pipeline.ask_within),
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
                **pipeline.location,
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
    from airflow_eos.notifications import plan_in_words
    from airflow_eos.recovery import Plan

    ti = get_current_context()["ti"]
    plan = Plan.from_json(json.dumps(answered(ti.xcom_pull, task_ids="plan")))
    answered(ti.xcom_push, key="words", value=plan_in_words(plan))
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
            pull = get_current_context()["ti"].xcom_pull
            _require_nothing_wrong(answered(pull, task_ids="audit"))
        if why := stays_down(pipeline) or is_alive(pipeline):
            raise AirflowSkipException(
                f"The app is not resumed: {why}. What was left open is ended; {pipeline.dag_id} "
                "starts the app where it is to run all the same."
            )
        named = resumption(pipeline)
        if found := restart_in_progress(pipeline, except_run=f"{RESUME}{named}"):
            kind = AirflowFailException if found.stands else AirflowSkipException
            raise kind(f"The app is not resumed: {found}.")
        if stands := why_it_stands(get_current_context()["ti"], pipeline.dag_id):
            raise AirflowFailException(f"The app is not resumed: {stands}.")
        return named

    return verdict()
