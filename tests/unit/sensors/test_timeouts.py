"""TransactionTimeoutSensor: which transactions run out of time."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_eos.errors import ConfigurationError
from airflow_eos.protocol.decision import OpenWork
from airflow_eos.protocol.participant import Member
from airflow_eos.sensors import TransactionTimeoutSensor
from airflow_eos.supervision.progress import SeenOpen


@pytest.fixture
def sensor(checkpoint, monkeypatch):
    checkpoint.claim("etl")

    def make(
        *ages: float,
        timeout_s: float | None = 100,
        ahead_s: float = 0,
        tells: bool = True,
        **arguments,
    ):
        """``ahead_s`` is how far the system's clock is ahead; ``tells`` whether it says so."""
        now_ms = time.time_ns() // 1_000_000 + round(ahead_s * 1000)
        listed = tuple(
            OpenWork(
                kind="kafka",
                participant="sink",
                key=f"etl-{number}-0-{number}-0",
                opened_at_ms=now_ms - round(age * 1000),
                timeout_ms=None if timeout_s is None else round(timeout_s * 1000),
            )
            for number, age in enumerate(ages)
        )
        asked: list[str] = []

        def connect(members: Sequence[Member], _reach: object, **_options: object) -> Any:
            asked.append(members[0].address["transactional_id_prefix"])
            system = {"open": lambda: listed, "close": lambda: None}
            return SimpleNamespace(**system, clock_ms=lambda: now_ms if tells else None)

        monkeypatch.setattr("airflow_eos.recovery.execute.connect", connect)
        task = TransactionTimeoutSensor(
            **{"task_id": "timeouts", "checkpoint_location": checkpoint.location, **arguments}
        )
        return task, asked

    return make


@pytest.mark.parametrize(
    ("age", "part_left", "fires"),
    [(10, 0.5, False), (49, 0.5, False), (51, 0.5, True), (150, 0.5, True), (51, 0.25, False)],
)
def test_it_fires_below_the_part_that_is_left(sensor, age, part_left, fires):
    task, _ = sensor(age, part_left=part_left)
    assert task.poke({}).is_done is fires


@pytest.mark.parametrize("ahead_s", [-600, 600])
@pytest.mark.parametrize(("age", "fires"), [(49, False), (51, True)])
def test_a_clock_that_differs_from_the_brokers_changes_nothing(sensor, ahead_s, age, fires):
    task, _ = sensor(age, ahead_s=ahead_s)
    assert task.poke({}).is_done is fires


@pytest.mark.parametrize("ahead_s", [-600, 600])
def test_a_system_that_does_not_tell_its_time_is_counted_from_the_first_look(sensor, ahead_s):
    task, _ = sensor(90, ahead_s=ahead_s, tells=False)
    task.seen = SeenOpen(iter([0, 49, 51]).__next__)
    assert [task.poke({}).is_done for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(("tells", "open_work"), [(False, 1), (True, 1), (False, 0)])
def test_a_look_that_forgets_is_refused_where_an_age_is_what_was_seen(sensor, tells, open_work):
    """In mode reschedule each look is a process of its own: it would never fire."""
    task, _ = sensor(*[10] * open_work, tells=tells, mode="reschedule")
    if tells or not open_work:
        assert not task.poke({}).is_done
        return
    with pytest.raises(AirflowFailException, match=r"forgets since when sink etl-0-0-0-0 is open"):
        task.poke({})


def test_what_has_ended_is_forgotten_and_what_comes_after_it_begins_anew():
    seen = SeenOpen(iter([0, 60, 120]).__next__)
    one, other = (OpenWork("kafka", "sink", key, 0, 100) for key in ("a", "b"))
    assert [seen.lasts_ms(each) for each in ([one], [other], [one, other])] == [
        [0],
        [0],
        [0, 60_000],
    ]


def test_the_most_urgent_comes_first_and_the_others_not_at_all(sensor):
    task, asked = sensor(10, 60, 90)
    found = task.poke({}).xcom_value
    assert [each["key"] for each in found] == ["etl-2-0-2-0", "etl-1-0-1-0"]
    assert found[0]["time_left_ms"] == pytest.approx(10_000, abs=1000)
    assert asked == ["etl"]
    json.dumps(found)


def test_nothing_open_is_nothing_to_fire_about(sensor):
    task, _ = sensor()
    assert task.poke({}).is_done is False


def test_a_given_prefix_needs_no_checkpoint(sensor):
    task, asked = sensor(checkpoint_location=None, transactional_id_prefix="other")
    task.poke({})
    assert asked == ["other"]


@pytest.mark.parametrize("part_left", [0, -1, 1.5])
def test_a_part_that_is_none_is_refused_where_it_is_given(sensor, part_left):
    with pytest.raises(ConfigurationError, match="part_left"):
        sensor(part_left=part_left)


def test_a_checkpoint_that_names_no_pipeline_fails_without_retry(sensor, tmp_path):
    task, _ = sensor(checkpoint_location=str(tmp_path))
    with pytest.raises(AirflowFailException, match="names no pipeline"):
        task.poke({})


def test_deferred_it_fires_through_its_trigger(sensor):
    task, _ = sensor(10, deferrable=True)
    with pytest.raises(TaskDeferred):
        task.execute({})
    task, _ = sensor(60, deferrable=True)
    assert task.execute({})[0]["key"] == "etl-0-0-0-0"


@pytest.mark.parametrize(("age", "fires"), [(599, False), (601, True)])
def test_work_that_nothing_ends_fires_when_it_is_old(sensor, age, fires):
    """A prepared transaction of Postgres holds locks until somebody ends it."""
    task, _ = sensor(age, timeout_s=None)
    assert task.poke({}).is_done is fires
