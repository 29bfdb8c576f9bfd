"""The runbook has a line for every error and every state of a plan, with what the product says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_eos import errors
from airflow_eos.errors import EosError, advice
from airflow_eos.recovery.plan import Action, make_plan
from tests.unit.recovery.test_plan import TABLE

RUNBOOK = (Path(__file__).parents[2] / "docs" / "recovery.md").read_text(encoding="utf-8")
ROWS = {
    found[1]: line
    for line in RUNBOOK.splitlines()
    if (found := re.match(r"\| `?(\w+)`? \|", line)) is not None
}


def below(kind: type[EosError]) -> Iterator[type[EosError]]:
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
            yield from below(each)


ERRORS = sorted(set(below(EosError)), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_says_what_to_do_and_the_runbook_the_same(kind):
    assert kind.remedies, "a dead end"
    assert advice(kind.remedies) in ROWS[kind.__name__]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_a_remedy_does_something(kind):
    for each in kind.remedies:
        assert each.commands or each.settings or each.change or each.start


@pytest.mark.parametrize("action", Action, ids=lambda action: action.name)
def test_every_state_of_a_plan_has_its_line_and_its_remedy(action):
    assert action.name in ROWS
    plans = [make_plan(found) for found, _, _ in TABLE.values()]
    steps = [step for plan in plans for step in plan.steps if step.action is action]
    assert steps
    for step in steps:
        assert step.remedies
        for command in (c for each in step.remedies for c in each.commands):
            assert "/checkpoint" in command
            verb = re.sub(r" /checkpoint| --transaction \S+| --prefix \S+| --force", "", command)
            assert verb.removeprefix("airflow-eos recover").strip() in ROWS[action.name]


def test_a_plan_says_each_remedy_once_and_in_json():
    found, _, _ = TABLE["only named ones are open: nothing is sealed"]
    plan = make_plan(found)
    assert plan.said == ("Run `airflow-eos recover /checkpoint`, then start the app again.",)
    assert plan.to_json().count(b'"remedies"') == 1 + len(plan.steps)
