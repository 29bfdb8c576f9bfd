"""The pictures of the places where a driver can be killed say what the code does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.recovery.plan import make_plan
from demo.scenario import ACTS
from tests.unit.recovery.facts_of import commit, facts, prepared, still_open, what_became

ROOT = Path(__file__).parents[2]
DRAWING = runpy.run_path(str(ROOT / "docs" / "kill_places.py"))
PLACES = DRAWING["PLACES"]
PAGE = (ROOT / "docs" / "kill-places.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_the_picture_is_the_one_that_the_table_draws(place: Any):
    picture = ROOT / "docs" / "images" / f"killed-{place.name}.svg"
    assert picture.read_text(encoding="utf-8") == DRAWING["draw"](place), (
        "run python docs/kill_places.py"
    )
    assert f"{DRAWING['in_words'](place)}](images/{picture.name})" in PAGE


def test_each_place_is_one_where_the_code_can_be_killed():
    code = "".join(
        (ROOT / "airflow_eos" / path).read_text()
        for path in ("delivery/batch.py", "kinds/kafka/participant.py")
    )
    places = set(re.findall(r'failpoint\("([\w-]+)"\)', code))
    assert {place.name for place in PLACES} - {"timeout"} <= places


def test_the_demo_dies_at_places_that_are_drawn():
    acted = {"timeout" if act.until_timeout else act.failpoint for act in ACTS}
    assert acted <= {place.name for place in PLACES}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_the_plan_of_the_table_is_the_one_that_is_made(place: Any):
    said = {step.action.name for step in make_plan(facts_at(place)).steps}
    assert said == {place.plan} - {"nothing"}


def facts_at(place: Any) -> Any:
    """What a recovery finds when the driver has died there."""
    works = [prepared(task) for task in range(len(place.kafka))]
    found = {
        state: [work for work, is_ in zip(works, place.kafka, strict=True) if is_ == state]
        for state in ("open", "committed", "aborted")
    }
    return facts(
        listed=tuple(still_open(work) for work in found["open"]),
        decisions=(commit(*works),) if place.decided else (),
        outcomes=what_became(committed=found["committed"], aborted=found["aborted"]),
    )
