"""Placed faults where ``ArrowKafkaSource`` reads: the tasks fetch, and the driver plans."""

from __future__ import annotations

from itertools import count

import pytest

from tests.chaos.arena import Arena
from tests.chaos.arrow_stage import ArrowStage
from tests.chaos.play import play
from tests.chaos.scenario import SHORT_S, Incident, Scenario, topics_of

_numbers = count(250)


def exact(arena: Arena, *incidents: Incident, kind: str = "map") -> int:
    """Play the incidents; every property of the checker must hold. How many struck as meant."""
    scenario = Scenario(seed=2 * next(_numbers), kind=kind, incidents=incidents)
    arena.create_topics(topics_of(scenario))
    played = play(arena, scenario, ArrowStage)
    assert not played.violations, "\n".join(str(violation) for violation in played.violations)
    return played.reached


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["shuffle", "count"])
def test_a_promise_that_timed_out_is_read_again(arena: Arena, kind: str) -> None:
    """By another number of tasks, where the app is started with another."""
    left = Incident(
        fault="timeout", failpoints="settled-some=kill", timeout_s=SHORT_S, left_s=SHORT_S + 0.6
    )
    again = Incident(fault="kill", failpoints="decided=kill", width=5)
    exact(arena, left, again, kind=kind)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("how", "api", "nth"),
    [
        ("cut", "Fetch", 2),
        pytest.param("drop-reply", "ListOffsets", 1, marks=pytest.mark.proof),
        pytest.param("drop-reply", "Fetch", 2, marks=pytest.mark.proof),
        pytest.param("cut", "ListOffsets", 1, marks=pytest.mark.proof),
    ],
)
def test_an_answer_is_lost_on_its_way(arena: Arena, api: str, nth: int, how: str) -> None:
    assert exact(arena, Incident(fault=f"{how} {api}", rule=(api, nth, how))) == 1


@pytest.mark.proof
def test_the_broker_is_killed_while_tasks_fetch(arena: Arena) -> None:
    exact(arena, Incident(fault="broker", broker=True, at_s=0.3, feed=400), kind="shuffle")


@pytest.mark.proof
def test_two_drivers_plan_from_the_start(arena: Arena) -> None:
    exact(arena, Incident(fault="two", rival="at-start", signal="KILL", at_s=1.0), kind="count")
