"""The DAG that upgrades an app: rehearse, approve, hand over, watch, or go back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import msgspec
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import DAG, Param, PokeReturnValue, chain, get_current_context, task

from airflow_eos.core.arguments import is_template, taken
from airflow_eos.errors import EosError
from airflow_eos.factory.pipeline import (
    NO_MORE,
    WAITS,
    app_arguments,
    is_of,
    state_of_task,
    streaming,
)
from airflow_eos.factory.settings import Pipeline, pinned
from airflow_eos.factory.watchdog import last_heartbeat, store_of
from airflow_eos.hooks.answers import answered
from airflow_eos.hooks.arguments import no_retry_where_useless
from airflow_eos.operators import RehearseOperator
from airflow_eos.ops.packaging import content_of
from airflow_eos.sensors import CheckpointProgressSensor

if TYPE_CHECKING:
    from airflow.sdk import Context


APPROVE = "Let the new version deliver"
KEEP = "Keep the version that runs"
NEW, FORMER = "new", "former"
"""The ids of the tasks that run the two versions."""
_CONTENT = "{{{{ ti.xcom_pull(task_ids='versions')['{}'] }}}}"
_ASKED = "asked"
"""The XCom with the term of the driver that this try of the task has asked to hand over."""


def eos_upgrade(
    pipeline: Pipeline,
    *,
    tags: Sequence[str] = ("airflow-eos",),
    notifiers: Sequence[Any] = (),
) -> DAG:
    """Bring a new version of the app in, and the former one back where it fails.

    Start a run with ``application``, the file of the new version. It evaluates the newest
    ``batches`` batches into nothing; where its rows are not the same, a person approves them, or
    the run ends. It then stands by, and the driver hands over to it. When it has delivered
    ``watched_batches`` batches the upgrade is done; where it fails before, or stalls, the former
    version goes on by the same way. What was delivered stays delivered.

    The run goes on as long as the version that it has started. See docs/upgrade.md.

    Args:
        pipeline: the pipeline to upgrade; its other DAGs are those of ``eos_pipeline``.
        tags: tags of the DAG.
        notifiers: called when a person is asked.
    """
    with DAG(
        pipeline.upgrade,
        schedule=None,
        tags=taken(eos_upgrade, {"tags": tags})["tags"],
        doc_md=eos_upgrade.__doc__,
        is_paused_upon_creation=False,
        params={
            **pipeline.params,
            "application": Param(type="string", description="file of the new version"),
            "former_application": Param(
                pipeline.application, type="string", description="what to go back to"
            ),
            "batches": Param(20, type="integer", minimum=1, description="to rehearse"),
            "watched_batches": Param(5, type="integer", minimum=1, description="of the new one"),
        },
        # The former run goes on until its version has handed over to that of the next one.
        **pinned() | {"max_active_runs": 2},
    ) as dag:
        chosen, approved = _versions(pipeline), _approved(pipeline)
        _asked(pipeline, chosen, approved, notifiers)
        new = streaming(
            pipeline,
            task_id=NEW,
            application="{{ params.application }}",
            content=_CONTENT.format(NEW),
            standby=True,
            # A failed new version is not started again: it would stand by behind the former one.
            max_restarts=0,
            retries=0,
        )
        former = streaming(
            pipeline,
            task_id=FORMER,
            application="{{ params.former_application }}",
            content=_CONTENT.format(FORMER),
            standby=True,
        )
        watched = NewVersionSensor(
            task_id="watched",
            batch_id="{{ ti.xcom_pull(task_ids='hand_over') + params.watched_batches }}",
            pipeline=pipeline,
            max_age=pipeline.first_batch_within,
            poke_interval=5,
            timeout=WAITS.total_seconds(),
            retries=pipeline.retries,
            deferrable=False,
            silent_fail=True,  # a store that is away for a moment does not speak against it
            **pipeline.location,
        )
        undo = _must_go_back(pipeline)
        approved >> new
        chain(approved, _handed_over(pipeline, NEW, "hand_over"), watched, undo, former)
        undo >> _handed_over(pipeline, FORMER, "hand_back")
    return dag


def _asked(pipeline: Pipeline, chosen: Any, approved: Any, notifiers: Sequence[Any]) -> None:
    """Make the tasks that rehearse the new version, and ask a person where need be."""
    rehearse = RehearseOperator(
        task_id="rehearse",
        batches="{{ params.batches }}",
        scratch=pipeline.scratch,
        fail_on_difference=False,
        content=_CONTENT.format(NEW),
        **app_arguments(pipeline) | {"application": "{{ params.application }}"},
    )
    ask = HITLOperator(
        task_id="ask",
        subject=f"{pipeline.dag_id}: is the new version to deliver?",
        body="{{ ti.xcom_pull(task_ids='who_approves', key='words') }}",
        options=[APPROVE, KEEP],
        defaults=[KEEP],
        response_timeout=cast("timedelta", pipeline.ask_within),
        notifiers=list(notifiers),
    )
    asked = who_approves()
    chain(chosen, rehearse, asked, ask, approved)
    asked >> approved


def _versions(pipeline: Pipeline) -> Any:
    @task
    def versions() -> dict[str, str]:
        """Return digests of both versions' files: of these alone one starts, at each start."""
        params = get_current_context()["params"]
        files = {NEW: params["application"], FORMER: params["former_application"]}
        held = {name: _held(pipeline, path) for name, path in files.items()}
        new, former = (next(iter(json.loads(held[name]).values())) for name in files)  # the app's
        if new == former:
            raise AirflowFailException(
                f"{files[NEW]} holds the same as {files[FORMER]}: expected a new version in a file "
                "of its own, and the former one where it was, since going back starts that. "
                "Nothing was started."
            )
        return held

    return versions()


def _held(pipeline: Pipeline, application: str) -> str:
    """Return the digests of a version's files."""
    given: dict[str, Any] = {"conf": pipeline.conf, "jars": pipeline.jars}
    if is_template(str(given)):  # as the operators render them
        context = get_current_context()
        given = context["task"].render_template(given, context)
    with no_retry_where_useless():
        return content_of(application, **given)


@task.branch
def who_approves() -> str:
    """Choose the task ``ask``, unless nothing differs; fail where the new version has failed."""
    from airflow_eos.core.checkpoint.rehearsal import RehearsalReport
    from airflow_eos.ops.rehearsal import report_view, sentence
    from airflow_eos.ops.tables import as_text

    context = get_current_context()
    ti, params = context["ti"], context["params"]
    told = dict(answered(ti.xcom_pull, task_ids="rehearse"))
    told.pop("verdict")  # it follows from the rest
    report = msgspec.convert(told, RehearsalReport)
    if report.error:
        raise AirflowFailException(
            f"{sentence(report)} {report.error}. The version that runs goes on."
        )
    if report.verdict == "same":
        return "require_approved"
    found = as_text(report_view(report), width=120).replace("```", "...")  # none ends the block
    words = (
        f"New: `{params['application']}`. Where it fails: back to "
        f"`{params['former_application']}`; what was delivered stays delivered.\n\n```\n{found}"
        "\n```"
    )
    answered(ti.xcom_push, key="words", value=words)
    return "ask"


def _approved(pipeline: Pipeline) -> Any:
    @task(trigger_rule="none_failed_min_one_success")
    def require_approved() -> None:
        """Go on where nothing differs or a person approves; refuse files changed since."""
        context = get_current_context()
        ti, params = context["ti"], context["params"]
        same = answered(ti.xcom_pull, task_ids="rehearse")["verdict"] == "same"
        answer = answered(ti.xcom_pull, task_ids="ask") or {}
        if not same and answer.get("chosen_options") != [APPROVE]:
            raise AirflowSkipException(
                "Nobody has approved the new version: the one that runs goes on."
            )
        before = answered(ti.xcom_pull, task_ids="versions")
        for name, path in ((NEW, params["application"]), (FORMER, params["former_application"])):
            if _held(pipeline, path) != before[name]:
                raise AirflowFailException(
                    f"{path}, or a file that it is submitted with, was changed since it was "
                    "rehearsed: nobody has approved what it holds now. Nothing was started; start "
                    "another run."
                )

    return require_approved()


class NewVersionSensor(CheckpointProgressSensor):
    """Waits until the new version has delivered some batches; fails where it will not."""

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._pipeline = pipeline

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at the checkpoint; batches of another driver do not count.

        Raises:
            AirflowFailException: the new version has failed or stalled, or another one drives.
        """
        if not is_of(context, last_heartbeat(self._pipeline), NEW):
            raise AirflowFailException("Another driver than that of the new version has come.")
        try:
            found = super().poke(context)
        except AirflowFailException as error:
            # A question that cannot be asked, as with a connection that was broken meanwhile, has
            # told nothing of a version that lives: it is asked again (``silent_fail``).
            if isinstance(error.__cause__, EosError) and state_of_task(context, NEW) not in NO_MORE:
                raise error.__cause__ from None
            raise
        if not found.is_done and state_of_task(context, NEW) in NO_MORE:
            raise AirflowFailException("The new version has failed; the log of its task says why.")
        return found


def _handed_over(pipeline: Pipeline, to: str, name: str) -> Any:
    @task.sensor(
        task_id=name,
        poke_interval=2,
        timeout=WAITS.total_seconds(),
        retries=pipeline.retries,
        silent_fail=True,
    )
    def handed_over() -> PokeReturnValue:
        """Ask the driver to hand over once the app stands by; done when that one drives.

        Fails where the driver has taken that back, since the app could not go on. Returns the
        newest committed batch, or -1.
        """
        from airflow_eos.core.checkpoint import read_state
        from airflow_eos.core.checkpoint.drain import is_asked_for_nothing
        from airflow_eos.core.checkpoint.heartbeat import ENDED
        from airflow_eos.core.checkpoint.standby import hand_over, living_standbys
        from airflow_eos.core.checkpoint.terms import newest_term

        context, store = get_current_context(), store_of(pipeline)
        last, ti = last_heartbeat(pipeline), context["ti"]
        if is_of(context, last, to):
            committed = read_state(store).latest_commit
            return PokeReturnValue(is_done=True, xcom_value=-1 if committed is None else committed)
        if state_of_task(context, to) in (*NO_MORE, "success"):  # called off, as by a drain
            raise AirflowFailException(
                f"The task {to} does not stand by: its log says why. Nothing was handed over."
            )
        living = living_standbys(store)  # first: that takes seconds, in which the driver answers
        term = newest_term(store)
        behind = (each for each in living if each.behind == term and is_of(context, each, to))
        ours = next(behind, None)
        if ours is not None and last is not None and last.phase not in ENDED:
            asked = answered(ti.xcom_pull, task_ids=name, key=_ASKED)
            if asked == term and is_asked_for_nothing(store, term):
                raise AirflowFailException(
                    f"Not handed over, the driver goes on: {ours} could not ({ours.reason}). Mend "
                    f"that and clear this task; or mark the task {to} as failed, to give it up."
                )
            hand_over(store, requested_by=f"{ti.dag_id}, {ti.run_id}", reason=name)
            answered(ti.xcom_push, key=_ASKED, value=term)
        return PokeReturnValue(is_done=False)

    return handed_over()


def _must_go_back(pipeline: Pipeline) -> Any:
    @task.short_circuit(trigger_rule="all_done")
    def undo() -> bool:
        """Whether the new version has driven, and did not deliver the watched batches."""
        from airflow_eos.core.checkpoint import drain_of
        from airflow_eos.core.checkpoint.drain import NOT_FOR_GOOD
        from airflow_eos.core.checkpoint.heartbeat import who_asked

        context, last = get_current_context(), last_heartbeat(pipeline)
        if state_of_task(context, "watched") == "success":
            return False
        if last is None or not is_of(context, last, NEW):
            return False
        asked_by = who_asked(last, drain_of(store_of(pipeline), last, known=True))
        is_done = last.phase == "stopped" and not asked_by
        return not (is_done or asked_by - NOT_FOR_GOOD)  # an app that a person stopped stays down

    return undo()
