"""Kafka, PostgreSQL and files in one decision: placed faults, a few seconds each, and the judge."""

from __future__ import annotations

import json

import pytest

from tests.chaos.arena import Arena
from tests.chaos.faults_several import TIMEOUT_S
from tests.chaos.play import Played, play
from tests.chaos.scenario import Incident, Scenario, topics_of
from tests.chaos.settings import KINDS

pytestmark = pytest.mark.chaos

LOST_BY_KAFKA = Incident(
    fault="Kafka's timeout alone",
    failpoints="decided=kill@2",
    timeout_s=TIMEOUT_S,
    left_s=TIMEOUT_S + 0.6,
    recoveries=1,
)


def played(arena: Arena, seed: int, incident: Incident, *, control: str = "") -> Played:
    scenario = Scenario(seed=seed, incidents=(incident,), control=control, outputs=KINDS)
    arena.create_topics(topics_of(scenario))
    return play(arena, scenario)


@pytest.mark.parametrize(
    ("seed", "incident"),
    [
        (801, Incident(fault="between commits", failpoints="settled-some=kill@5")),
        (803, Incident(fault="crash", failpoints="decided=kill@2", database_s=0.2)),
    ],
    ids=["between the commits", "with PostgreSQL"],
)
def test_killed(arena: Arena, seed: int, incident: Incident) -> None:
    found = played(arena, seed, incident)
    assert not found.violations, "\n".join(map(str, found.violations))
    assert found.reached == 1


def test_what_only_kafka_lost_is_replayed_to_kafka_alone(arena: Arena) -> None:
    """By then PostgreSQL and the files have committed their part of the promise."""
    for seed in (804, 805, 806):  # held up beyond its timeout by a busy machine, it never decides
        found = played(arena, seed, LOST_BY_KAFKA)
        assert not found.violations, "\n".join(map(str, found.violations))
        events = map(json.loads, found.file.read_text().splitlines())
        decided = [e for e in events if e["event"] == "decision" and e["verdict"] == "commit"]
        if any(each["transactions"] and not each["elsewhere"] for each in decided):
            return
    pytest.fail("no decision was for Kafka alone")


@pytest.mark.parametrize(
    ("control", "found"),
    [
        ("file_without_a_row", {1, 12}),
        ("table_with_rows_twice", {2, 12}),
        ("published_when_prepared", {2, 4, 12}),
    ],
)
def test_the_judge_sees_what_one_output_has_and_the_others_have_not(
    arena: Arena, control: str, found: set[int]
) -> None:
    broken = Incident(fault="kill", failpoints="prepared=kill@2")
    violations = played(arena, 810, broken, control=control).violations
    assert found <= {violation.number for violation in violations}
