"""Negative controls: one rule broken on purpose, and the checker must say so; else it is blind."""

from __future__ import annotations

import pytest

from tests.chaos.arena import Arena
from tests.chaos.play import Played, play
from tests.chaos.scenario import Incident, Scenario, topics_of


def numbers(played: Played) -> set[int]:
    return {violation.number for violation in played.violations}


def broken(arena: Arena, control: str, incident: Incident, **changes: object) -> Played:
    scenario = Scenario(
        seed=900,
        incidents=(incident,),
        control=control,
        **changes,  # type: ignore[arg-type]
    )
    arena.create_topics(topics_of(scenario))
    return play(arena, scenario)


@pytest.mark.proof
def test_without_the_decision_step(arena: Arena) -> None:
    """Rows are seen that no decision names, and a crash before commits/N delivers twice."""
    killed = Incident(fault="kill", failpoints="settled=kill@2")
    assert {2, 3, 4} <= numbers(broken(arena, "no_decision", killed))


@pytest.mark.proof
def test_a_settle_that_is_not_idempotent(arena: Arena) -> None:
    """A settled batch that is settled again is taken for lost, and written again."""
    killed = Incident(fault="kill", failpoints="settled=kill@2")
    assert 2 in numbers(broken(arena, "settle_not_idempotent", killed))


@pytest.mark.proof
def test_a_recovery_that_aborts_what_was_decided(arena: Arena) -> None:
    """The replay heals the rows; that the promise was broken long before its time is seen."""
    killed = Incident(fault="kill", failpoints="decided=kill@2", recoveries=1)
    assert 8 in numbers(broken(arena, "recovery_aborts_decided", killed))


@pytest.mark.proof
def test_a_replay_that_compares_no_content(arena: Arena) -> None:
    """Tasks are paired by number, and read other partitions after the restart."""
    killed = Incident(  # decided in time on a busy machine too, else nothing is replayed
        fault="kill", failpoints="settled-some=kill@2", timeout_s=6, left_s=7
    )
    played = broken(arena, "replay_unchecked", killed, batch_rows=10, turns=(0, 1))
    assert {1, 2} <= numbers(played)


@pytest.mark.proof
def test_a_reader_set_to_read_uncommitted(arena: Arena) -> None:
    """It sees rows of an attempt that was aborted."""
    killed = Incident(fault="kill", failpoints="prepared=kill@2")
    played = broken(arena, "", killed, isolation="read_uncommitted")
    assert {2, 3, 4} <= numbers(played)
