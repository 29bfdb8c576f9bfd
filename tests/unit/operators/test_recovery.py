"""PlanRecoveryOperator and RecoverTransactionsOperator: what they allow, refuse and return."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_eos.errors import ConfigurationError, PipelineAliveError
from airflow_eos.operators import PlanRecoveryOperator, RecoverTransactionsOperator
from airflow_eos.protocol.decision import Outcome, WorkIdentity
from airflow_eos.recovery import Action, Step, read_rulings
from tests.support.beats import beating, heartbeat

OURS = WorkIdentity("kafka", "sink", "etl-0-0-1-2")


def step(action: Action) -> Step:
    return Step(action=action, reason="why", work=OURS, age_ms=5000, time_left_ms=1000)


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
    assert kafka.calls == ["plan", "plan", "plan", "execute"]


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
