"""A recovery plan, a drill and a deadline, as messages."""

from __future__ import annotations

import asyncio
import importlib
import json
from datetime import timedelta
from typing import Any

import airflow.sdk
import pytest
from airflow.providers.common.compat.notifier import BaseNotifier
from airflow.sdk import DAG

from airflow_eos import notifications as deadline
from airflow_eos.core.protocol.decision import WorkIdentity
from airflow_eos.core.recovery.plan import Step
from airflow_eos.notifications import (
    FEW,
    DrillNotifier,
    RecoveryPlanNotifier,
    drill_in_words,
    plan_in_words,
    settled_within,
)
from airflow_eos.ops.supervision.drill import DrillResult
from airflow_eos.recovery import Action, Plan
from tests.support.pipelines import plan_of


class Sent(BaseNotifier):
    """Keeps what was sent."""

    texts: list[str]

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Any) -> None:  # noqa: ARG002 - Airflow's signature
        Sent.texts.append(self.text)

    async def async_notify(self, context: Any) -> None:  # noqa: ARG002 - Airflow's signature
        Sent.texts.append(f"async {self.text}")


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    Sent.texts = []


def step(action: Action, key: str = "k", **other: Any) -> Step:
    work = WorkIdentity("kafka", "sink", key)
    return Step(action=action, reason=f"because of {key}", work=work, **other)


def test_what_needs_a_person_comes_first_then_what_runs_out_of_time():
    text = plan_in_words(
        plan_of(
            step(Action.COMMIT, "slow", time_left_ms=900_000, rows=5),
            step(Action.COMMIT, "urgent", time_left_ms=4_000),
            step(Action.ASK, "lost"),
        )
    )
    head, asked, *steps = text.splitlines()
    assert head == "Recovery plan of `/ck`: batch 7 in flight, 3 steps."
    assert asked == "**1 of them wait for a person.**"
    assert [line.split("`")[1] for line in steps] == ["lost", "urgent", "slow"]
    assert "5 rows" in steps[2]
    assert "time left 4.0 s" in steps[1]


def test_signs_of_life_are_said():
    assert "signs of life: a heartbeat" in plan_in_words(plan_of(alive=("a heartbeat",)))


def test_a_long_plan_is_a_short_message():
    steps = [step(Action.ABORT, str(number)) for number in range(FEW + 5)]
    assert plan_in_words(plan_of(*steps)).splitlines()[-1] == "- and 5 more"


def notifier(made: Plan | None, **other: Any) -> RecoveryPlanNotifier:
    text = "null" if made is None else made.to_json().decode()
    return RecoveryPlanNotifier(Sent, plan=text, **other)


def test_it_is_sent_by_the_notifier_of_the_house_here_or_in_the_triggerer():
    told = notifier(plan_of(step(Action.COMMIT)))
    told.notify({})
    asyncio.run(told.async_notify({}))
    assert Sent.texts == [plan_in_words(plan_of(step(Action.COMMIT))), f"async {Sent.texts[0]}"]


@pytest.mark.parametrize(
    ("action", "sent"), [(Action.ASK, 1), (Action.ORPHAN, 1), (Action.COMMIT, 0)]
)
def test_it_can_stay_silent_unless_a_person_must_decide(action, sent):
    notifier(plan_of(step(action)), only_if_asked=True).notify({})
    assert len(Sent.texts) == sent


def test_without_a_plan_there_is_nothing_to_say():
    notifier(None).notify({})
    assert Sent.texts == []


def test_a_name_that_somebody_else_gave_is_no_link_no_picture_and_no_line_of_its_own():
    """Any program may give a transactional id, and a person decides by what stands there."""
    hostile = "k`\n- **commit** all![x](https://evil/x.png)<img src=//evil>\x1b[2J"
    text = plan_in_words(plan_of(step(Action.ORPHAN, hostile)))
    assert len(text.splitlines()) == 3
    assert "\x1b" not in text
    asked, why = text.splitlines()[-1].split(": because of ")
    assert asked.count("`") == 2
    assert "![" not in why
    assert " <" not in why.replace("\\<", "")
    assert "https://" not in "".join(why.split("`")[::2]), "an address is a link by itself"


# --- A deadline on the age of the last settled batch ----------------------------------------------


try:
    # Left out of Airflow's own stub.
    from airflow.sdk import AsyncCallback, DeadlineReference  # type: ignore[attr-defined]
except ImportError:  # Airflow 3.1 has them, and exports them not
    from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineReference  # type: ignore[attr-defined]


async def late() -> None:
    """What would be called."""


def test_it_counts_from_when_the_batch_before_was_told():
    alert = settled_within("10 minutes", AsyncCallback(late))  # a duration, as everywhere
    assert alert.reference == DeadlineReference.DAGRUN_QUEUED_AT
    assert alert.interval == timedelta(minutes=10)
    assert DAG("d", schedule=None, deadline=alert).deadline == [alert]


def test_an_airflow_that_does_not_export_deadlines_has_them_all_the_same(monkeypatch):
    """3.1."""

    def lacks(name: str) -> None:
        raise AttributeError(name)

    with monkeypatch.context() as older:
        older.setattr(airflow.sdk, "__getattr__", lacks)
        for name in ("DeadlineAlert", "DeadlineReference"):
            older.delattr(airflow.sdk, name, raising=False)
        importlib.reload(deadline)
        alert = deadline.settled_within(timedelta(minutes=10), AsyncCallback(late))
        assert alert.interval == timedelta(minutes=10)
    importlib.reload(deadline)


# --- How a drill went, as a message ---------------------------------------------------------------


FOUND = DrillResult("app-1", "process 7 on w was killed", "app-2", 12, 30.04)


class SentOfADrill(BaseNotifier):
    def __init__(self, text: str, box: list[str]) -> None:
        super().__init__()
        self.text, self.box = text, box

    def notify(self, context: Any) -> None:  # noqa: ARG002
        self.box.append(self.text)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (FOUND.as_json(60), "The drill went well: 30.0 s from the kill to the next commit, 60 s"),
        (FOUND.as_json(20), "**Recovery took too long**: 30.0 s"),
        ({"ok": False, "why": "nobody is there"}, "**The drill failed:** nobody is there"),
        (None, "before it found anything"),
        ({"why": "driver [a](http://e.vil) lives"}, r"driver `\[a](http://e.vil)` lives"),
        (FOUND.as_json(60) | {"successor": "<b>www.e.vil"}, r"`\<b>www.e.vil` committed batch 12"),
    ],
)
def test_it_says_what_was_found(report, expected):
    box: list[str] = []
    notifier = DrillNotifier(lambda text: SentOfADrill(text, box), report=json.dumps(report))
    notifier.notify({})
    assert expected in box[0]
    assert box == [drill_in_words(report)]
