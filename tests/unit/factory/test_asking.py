"""Where no program may decide, a person is asked, and recovery does what the person said."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG

from airflow_eos.errors import (
    DecisionNeededError,
    KafkaUnavailableError,
    OwnershipError,
    PipelineAliveError,
)
from airflow_eos.factory import eos_pipeline
from airflow_eos.factory import watchdog as asking
from airflow_eos.operators import PlanRecoveryOperator
from airflow_eos.recovery import Plan

pytestmark = pytest.mark.unit


@dataclass
class Run:
    """What the tasks of a run have answered."""

    answers: dict[str, Any] = field(default_factory=dict)

    def xcom_pull(self, *, task_ids: str, key: str = "") -> Any:
        return self.answers.get(key or task_ids)

    def xcom_push(self, *, key: str, value: Any) -> None:
        self.answers[key] = value


@pytest.fixture
def ti() -> Run:
    return Run()


@pytest.fixture
def recovery() -> DAG:
    _, made, _ = eos_pipeline(
        dag_id="orders",
        application="a.py",
        checkpoint="/ck",
        prefix="p",
        input_topic="i",
        output_topic="o",
    )
    return made


ASK = {
    "action": "ask",
    "reason": "its rows are past retention",
    "work": {"kind": "kafka", "participant": "sink", "key": "k-1-0"},
}


def made_plan(*steps: dict[str, Any]) -> Any:
    empty = Plan(
        made_at_ms=1,
        location="/ck",
        participants=(),
        batch_id=7,
        in_flight=7,
        seal=None,
        steps=(),
        alive=(),
        listed=(),
    )
    return json.loads(empty.to_json()) | {"steps": list(steps)}


@pytest.mark.parametrize(
    ("action", "asked"), [("ask", "certain"), ("orphan", "certain"), ("commit", "execute")]
)
def test_a_person_is_asked_where_no_program_may_decide_and_nowhere_else(
    recovery, ti, monkeypatch, action, asked
):
    ti.answers["plan"] = made_plan(ASK | {"action": action})
    monkeypatch.setattr(asking, "get_current_context", lambda: {"ti": ti})
    assert recovery.get_task("who_decides").python_callable() == asked
    assert "past retention" in ti.answers["words"], "what the person reads"


@pytest.mark.parametrize(
    ("chosen", "assume", "orphans"),
    [
        ([asking.COMMITTED], "committed", False),
        ([asking.ABORTED], "aborted", False),
        ([asking.ABORTED, asking.ORPHANS], "aborted", True),
        ([asking.LEAVE], None, False),
        (None, None, False),  # nobody was asked
    ],
)
def test_what_the_person_said_is_what_recovery_is_told(recovery, ti, chosen, assume, orphans):
    execute = copy.copy(recovery.get_task("execute"))
    ti.answers |= {"plan": made_plan(), "ask": chosen and {"chosen_options": chosen}}
    execute.render_template_fields({"ti": ti}, recovery.get_template_env())
    assert execute.assume == assume
    assert ("orphan" in execute.allowed_actions) is orphans
    assert {"commit", "abort"} <= set(execute.allowed_actions)


@pytest.mark.parametrize(
    "chosen",
    [
        [asking.COMMITTED, asking.ABORTED],
        [asking.COMMITTED, asking.LEAVE],
        [asking.ORPHANS, asking.LEAVE],
    ],
    ids=["yes and no", "yes and leave it", "abort and leave it"],
)
def test_an_answer_that_contradicts_itself_is_none(recovery, ti, chosen):
    """A ruling stands for ever: rows would be lost, or come twice."""
    execute = copy.copy(recovery.get_task("execute"))
    ti.answers |= {"plan": made_plan(), "ask": {"chosen_options": chosen}}
    with pytest.raises(AirflowFailException, match=r"assume=.*expected one of"):
        execute.render_template_fields({"ti": ti}, recovery.get_template_env())


@pytest.mark.parametrize(
    ("met", "goes_on"),
    [
        (DecisionNeededError("an orphan is left"), True),
        (OwnershipError("a start is refused while it is"), True),
        (PipelineAliveError("it beats"), False),
        (KafkaUnavailableError("no broker answers"), False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_is_certain_is_done_before_a_person_is_waited_for(recovery, monkeypatch, met, goes_on):
    """He may take a day: promised work would time out, and its input be gone by then."""
    certain = recovery.get_task("certain")
    assert certain.downstream_task_ids == {"ask"}
    assert list(certain.allowed_actions) == ["commit", "abort"]

    def meets(_: object) -> Any:
        raise met

    monkeypatch.setattr(PlanRecoveryOperator, "_recovery", meets)
    if goes_on:
        assert certain.execute({}) is None
        return
    with pytest.raises(type(met)):
        certain.execute({})


def test_what_a_person_must_decide_and_nobody_did_stays_undone(recovery):
    ask = recovery.get_task("ask")
    assert ask.defaults == [asking.LEAVE]
    assert set(ask.options) > {asking.LEAVE}
    assert recovery.get_task("execute").trigger_rule == "none_failed_min_one_success"
