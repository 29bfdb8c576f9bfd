"""The operators of recovery, audit and rehearsal: allowed, refused, never green by mistake."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.heartbeat import STARTED_BY
from airflow_eos.core.checkpoint.rehearsal import (
    REPORT,
    OutputComparison,
    RehearsalReport,
    RehearsalRequest,
)
from airflow_eos.core.protocol.decision import Outcome, WorkIdentity, encode
from airflow_eos.errors import AppFailedError, AuditError, ConfigurationError, PipelineAliveError
from airflow_eos.operators import (
    AuditOperator,
    PlanRecoveryOperator,
    RecoverTransactionsOperator,
    RehearseOperator,
)
from airflow_eos.ops.audit.audit import Unjudged
from airflow_eos.ops.packaging import content_of, leave_behind, private_folder
from airflow_eos.recovery import Action, AuditReport, Step, read_rulings
from tests.support.beats import beating, heartbeat
from tests.unit.operators.conftest import FakeSpark

OURS = WorkIdentity("kafka", "sink", "etl-0-0-1-2")
LATER = WorkIdentity("kafka", "sink", "etl-9-0-1-3")


def step(action: Action, work: WorkIdentity = OURS) -> Step:
    return Step(action=action, reason="why", work=work, age_ms=5000, time_left_ms=1000)


@pytest.fixture
def recover(store, kafka):
    def make(**arguments):
        return RecoverTransactionsOperator(
            **{
                "task_id": "recover",
                "checkpoint_location": store.location,
                "patience": timedelta(seconds=5),
                **arguments,
            }
        )

    return make


@pytest.fixture
def alive(store) -> Iterator[None]:
    with beating(store, heartbeat("settling", host="elsewhere")):
        yield


def test_the_plan_is_plain_json_and_is_printed(store, kafka, caplog):
    kafka.plans = [kafka.empty(steps=(step(Action.ABORT),), alive=("it beats",))]
    task = PlanRecoveryOperator(task_id="plan", checkpoint_location=store.location)
    with caplog.at_level("INFO"):
        plan = task.execute({})
    assert json.loads(json.dumps(plan))["steps"][0]["action"] == "abort"
    for shown in ("ABORT", "etl-0-0", "5.0 s", "1.0 s", "why", "it beats"):
        assert shown in caplog.text
    assert kafka.calls == ["plan"]


def test_a_step_has_the_fields_that_the_operator_says_it_has():
    said = str(PlanRecoveryOperator.__doc__).partition("each with")[2].partition("``alive``")[0]
    named = set(re.findall(r"``(\w+)``", said))
    assert named >= {"action", "reason"}
    assert named <= set(Step.__struct_fields__)


def test_commits_and_aborts_are_allowed_by_default(recover, kafka):
    recover().execute({})
    assert kafka.calls == ["plan", "execute"]
    assert kafka.allowed == {Action.COMMIT, Action.ABORT}


def test_a_dry_run_does_nothing(recover, kafka):
    kafka.plans = [kafka.empty(steps=(step(Action.ABORT),))]
    assert recover(dry_run=True).execute({})["steps"]
    assert kafka.calls == ["plan"]


def test_a_plan_from_xcom_is_used_as_it_is(recover, kafka):
    planned = json.loads(kafka.empty(batch_id=41).to_json())
    assert recover(plan=planned).execute({})["location"] == kafka.location
    assert kafka.calls == ["execute"]
    assert recover(plan=json.dumps(planned)).execute({})


def test_something_else_than_a_plan_fails_without_retry(recover, kafka):
    with pytest.raises(AirflowFailException, match="not a recovery plan"):
        recover(plan={"steps": []}).execute({})
    assert kafka.calls == []


@pytest.mark.parametrize("action", [Action.ASK, Action.ORPHAN])
def test_open_questions_fail_without_retry(recover, kafka, action):
    kafka.plans = [kafka.empty(steps=(step(action),))]
    with pytest.raises(AirflowFailException, match=action.name):
        recover().execute({})


def test_orphans_are_ended_only_when_asked(recover, kafka):
    recover(allowed_actions=["orphan"]).execute({})
    assert kafka.allowed == {Action.ORPHAN}


def test_an_unknown_action_is_refused_where_it_is_given(recover, kafka):
    with pytest.raises(ConfigurationError, match="allowed_actions='ask': expected"):
        recover(allowed_actions=["commit", "ask", "drop"])
    assert "execute" not in kafka.calls


@pytest.mark.parametrize(
    ("said", "outcome"), [("committed", Outcome.COMMITTED), ("aborted", Outcome.ABORTED)]
)
def test_what_a_person_said_about_an_ask_is_recorded_before_acting(
    recover, kafka, store, said, outcome
):
    asked = kafka.empty(steps=(step(Action.ASK),))
    kafka.plans = [asked, asked]  # the ruling is taken for a plan of this moment
    recover(assume=said).execute({})
    assert read_rulings(store, [OURS]) == {OURS: outcome}
    assert kafka.calls == ["plan", "plan", "execute"]


def test_an_answer_that_comes_late_rules_nothing_that_the_person_was_not_asked_about(
    recover, kafka, store
):
    """Others had answered, the app ran, and died: a ruling about its rows would lose them."""
    kafka.plans = [kafka.empty(steps=(step(Action.ASK), step(Action.ASK, LATER)))]
    shown = kafka.empty(steps=(step(Action.ASK),)).to_json().decode()
    recover(plan=shown, assume="committed").execute({})
    assert read_rulings(store, [OURS, LATER]) == {OURS: Outcome.COMMITTED}
    assert kafka.calls == ["plan", "execute"], (
        "what it acts on is listed in the plan that was shown"
    )


def test_another_word_is_no_ruling(recover, kafka, store):
    kafka.plans = [kafka.empty(steps=(step(Action.ASK),))]
    with pytest.raises(ConfigurationError, match="assume='maybe'"):
        recover(assume="maybe")
    assert read_rulings(store, [OURS]) == {}


@pytest.mark.usefixtures("alive")
def test_a_live_pipeline_is_refused_with_the_evidence(recover, kafka):
    kafka.plans = [kafka.empty(steps=(step(Action.ABORT),))]
    with pytest.raises(PipelineAliveError, match=r"app-1.*elsewhere.*settling"):
        recover().execute({})
    assert kafka.calls == ["plan"]


@pytest.mark.usefixtures("alive")
def test_a_live_pipeline_is_recovered_when_told(recover, kafka):
    kafka.plans = [kafka.empty(steps=(step(Action.ABORT),))]
    recover(force=True).execute({})
    assert kafka.calls == ["plan", "force"]


@pytest.mark.usefixtures("alive")
def test_where_nothing_is_open_a_live_pipeline_is_no_failure(recover):
    assert recover().execute({})["results"] == []


def test_template_fields_are_rendered(recover):
    task = recover(checkpoint_location="{{ ck }}", plan="{{ p }}", assume="{{ a }}")
    task.render_template_fields({"ck": "/ck", "p": "{}", "a": "aborted"})
    assert (task.checkpoint_location, task.plan, task.assume) == ("/ck", "{}", "aborted")


# --- AuditOperator: a violation is never green ----------------------------------------------------


CLEAN = {
    "input_topics": ("in",),
    "output_topics": ("out",),
    "rows_in": 3,
    "rows_out": {"out": 3},
    "lost": 0,
    "duplicated": 0,
    "reordered": 0,
    "unexpected": 0,
    "visible_undecided": 0,
    "open_rows": 0,
    "open_partitions": (),
    "unidentified": 0,
    "matched": 3,
    "unjudged": (),
    "offenders": (),
    "seconds": 0.1,
}


@pytest.fixture
def audited(monkeypatch):
    """Run the operator on a given report; returns its result and what the core was asked."""

    def run(report, **arguments):
        asked: dict[str, Any] = {}

        def audit(kafka, *topics, **options):
            asked.update(options, kafka=kafka, topics=topics)
            return AuditReport(**{**CLEAN, **report})

        monkeypatch.setattr("airflow_eos.ops.audit.audit.audit", audit)
        task = AuditOperator(task_id="audit", input_topic="in", output_topic="out", **arguments)
        return task.execute({}), asked

    return run


def test_a_clean_audit_is_green_and_returns_the_report(audited):
    report, asked = audited({}, id_expression="key", checkpoint_location="/ck")
    assert json.loads(json.dumps(report))["ok"] is True
    assert asked["topics"] == ("in", "out")
    assert asked["id_expression"] == "key"
    assert asked["checkpoint"] == "/ck"


@pytest.mark.parametrize(
    "violation",
    [
        {"lost": 1},
        {"duplicated": 1},
        {"reordered": 1},
        {"unexpected": 1},
        {"visible_undecided": 1},
        {"open_partitions": (("out", 0),), "open_rows": 1},
    ],
    ids=lambda violation: next(iter(violation)),
)
def test_a_violation_fails_the_task(audited, violation):
    with pytest.raises(AuditError):
        audited(violation)


def test_what_is_not_known_is_no_success(audited):
    unknown = {"unjudged": (Unjudged("in has lost its oldest rows", "audit earlier", 7),)}
    with pytest.raises(AuditError, match="not known: in has lost its oldest rows") as failed:
        audited(unknown)
    assert [each.change for each in failed.value.remedies] == ["audit earlier"]
    report, _ = audited(unknown, fail_on_violation=False)
    assert (report["verdict"], report["ok"]) == ("unknown", False)


def test_a_violation_is_only_reported_where_asked(audited):
    report, _ = audited({"lost": 2}, fail_on_violation=False)
    assert (report["ok"], report["lost"]) == (False, 2)


# --- RehearseOperator: a difference is never green, and who runs the pipeline is left alone -------


def finding(verdict) -> Callable[[FakeSpark], None]:
    """An app that rehearses, with this result."""

    def run(fake: FakeSpark) -> None:
        told = RehearsalRequest.from_environment(fake.popen[-1]["env"])
        assert told is not None
        report = RehearsalReport(
            checkpoint=told.checkpoint,
            compared=(OutputComparison(4, "sink", verdict, 3, 3),),
            copied_bytes=1,
            seconds=1.0,
            error="",
        )
        CheckpointStore.open(told.scratch).put(REPORT, encode(report))

    return run


@pytest.fixture
def operator(store):
    def make(**arguments) -> RehearseOperator:
        return RehearseOperator(
            task_id="rehearse",
            application="/apps/new.py",
            checkpoint_location=store.location,
            ship_package=False,
            **arguments,
        )

    return make


def test_the_same_rows_are_green_and_the_app_is_no_driver_of_the_pipeline(operator, spark, store):
    spark.runs = [finding("same")]
    assert operator(batches=5, key=["id"]).execute({})["verdict"] == "same"
    env = spark.popen[-1]["env"]
    told = RehearsalRequest.from_environment(env)
    assert told is not None
    assert (told.checkpoint, told.batches, told.key) == (store.location, 5, ("id",))
    assert STARTED_BY not in env
    assert spark.calls == ["submit /apps/new.py"]
    assert not Path(told.scratch).exists(), "the copy is removed"


def test_another_content_than_was_noted_is_not_rehearsed(operator, spark, tmp_path):
    app = tmp_path / "new.py"
    app.write_text("1")
    task = operator()
    task.application, task.content = str(app), content_of(str(app), conf=None)
    app.write_text("2")
    with pytest.raises(AirflowFailException, match="changed since it was rehearsed"):
        task.execute({})
    assert not spark.calls


@pytest.mark.parametrize("verdict", ["differs", "not known"])
def test_what_differs_or_is_not_known_is_not_green_and_not_retried(operator, spark, verdict):
    spark.runs = [finding(verdict)]
    with pytest.raises(AirflowFailException, match="RehearsalError"):
        operator().execute({})


def test_a_person_may_take_the_report_instead(operator, spark):
    spark.runs = [finding("differs")]
    assert operator(fail_on_difference=False).execute({})["verdict"] == "differs"


def test_an_app_that_compared_nothing_is_not_green(operator, spark):
    def ends(_fake: FakeSpark) -> None:
        raise AirflowException("Cannot execute: spark-submit. Error code is: 1.")

    spark.runs = [ends]
    with pytest.raises(AppFailedError, match="Error code is: 1"):
        operator(fail_on_difference=False).execute({})


def test_the_folder_that_the_running_driver_was_left_stays(operator, spark, store):
    with private_folder(store.location) as folder:
        leave_behind(folder)
    spark.runs = [finding("same")]
    operator().execute({})
    assert folder.exists()
    shutil.rmtree(folder)


def test_the_copy_of_a_rehearsal_that_was_killed_is_removed_and_of_one_that_runs_is_not(
    operator, spark, store
):
    """A copy of the state is large, and a worker's disk would fill up."""
    with private_folder(f"{store.location} rehearsal") as runs:
        with private_folder(f"{store.location} rehearsal") as killed:
            (killed / "checkpoint").touch()
            leave_behind(killed)
        spark.runs = [finding("same")]
        operator().execute({})
        assert not killed.exists()
        assert runs.exists()


def test_who_ends_the_wait_ends_the_rehearsal(operator, spark, monkeypatch):
    """As Ctrl-C under ``dag.test()``, where nobody calls ``on_kill``."""

    def until_killed(fake: FakeSpark) -> None:
        while not fake.killed:
            Event().wait(0.01)

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    spark.runs = [until_killed]
    monkeypatch.setattr("airflow_eos.operators.streaming.time", SimpleNamespace(sleep=interrupted))
    with pytest.raises(KeyboardInterrupt):
        operator().execute({})
    assert spark.killed


def test_a_rehearsal_of_an_app_of_the_cluster_runs_on_the_worker(operator, spark, monkeypatch):
    """Where the connection says cluster, nobody could rehearse, nor upgrade."""
    connection = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    spark.runs = [finding("same")]
    operator().execute({})
    assert spark.constructed[0]["deploy_mode"] == "client"


def test_a_driver_elsewhere_is_refused(operator, spark, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://yarn")
    with pytest.raises(AirflowFailException, match="on the worker"):
        operator(deploy_mode="cluster").execute({})
    assert not spark.calls
