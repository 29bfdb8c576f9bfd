"""Kafka, PostgreSQL and files in one decision: placed faults, a few seconds each, and the judge."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.chaos.arena import Arena
from tests.chaos.faults import TIMEOUT_S
from tests.chaos.play import Played, play
from tests.chaos.scenario import Incident, Scenario, topics_of
from tests.chaos.settings import KINDS

KILLED = Incident(fault="kill", failpoints="prepared=kill@2")


def lost_by_kafka(timeout_s: float) -> Incident:
    return Incident(
        fault="Kafka's timeout alone",
        failpoints="decided=kill@2",
        timeout_s=timeout_s,
        left_s=timeout_s + 0.6,
        recoveries=1,
    )


def scenario(seed: int, incident: Incident, *, control: str = "") -> Scenario:
    return Scenario(seed=seed, incidents=(incident,), control=control, outputs=KINDS)


def played(arena: Arena, *scenarios: Scenario) -> Sequence[Played]:
    """All at once: most of a history is waiting."""
    arena.create_topics([topic for each in scenarios for topic in topics_of(each)])
    with ThreadPoolExecutor(len(scenarios)) as pool:
        return list(pool.map(partial(play, arena), scenarios))


@pytest.mark.proof
def test_killed_between_the_commits_and_with_postgres(arena: Arena) -> None:
    between_commits = Incident(fault="between commits", failpoints="settled-some=kill@5")
    with_postgres = Incident(fault="crash", failpoints="decided=kill@2", database_s=0.2)
    for each in (scenario(801, between_commits), scenario(802, with_postgres)):
        [found] = played(arena, each)  # one after the other: both have the same PostgreSQL
        assert not found.violations, "\n".join(map(str, found.violations))
        assert found.reached == 1, found.file.read_text()


@pytest.mark.proof
def test_what_only_kafka_lost_is_replayed_to_kafka_alone(arena: Arena) -> None:
    """By then PostgreSQL and the files have committed their part of the promise."""
    # Held up beyond its timeout by a busy machine it never decides: then it has more of it.
    for seed, longer in ((804, 1), (805, 3), (806, 9)):
        [found] = played(arena, scenario(seed, lost_by_kafka(TIMEOUT_S * longer)))
        assert not found.violations, "\n".join(map(str, found.violations))
        events = map(json.loads, found.file.read_text().splitlines())
        decided = [e for e in events if e["event"] == "decision" and e["verdict"] == "commit"]
        if any(each["transactions"] and not each["elsewhere"] for each in decided):
            return
    pytest.fail("no decision was for Kafka alone")


@pytest.mark.proof
def test_the_judge_sees_what_one_output_has_and_the_others_have_not(arena: Arena) -> None:
    """Negative controls, all of a driver that is killed when a batch is prepared."""
    controls = {
        "file_without_a_row": {1, 12},
        "table_with_rows_twice": {2, 12},
        "published_when_prepared": {2, 4, 12},
    }
    histories = played(arena, *(scenario(810, KILLED, control=name) for name in controls))
    for found, numbers in zip(histories, controls.values(), strict=True):
        assert numbers <= {violation.number for violation in found.violations}
