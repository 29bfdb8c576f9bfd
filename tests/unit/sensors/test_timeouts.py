"""TransactionTimeoutSensor: which transactions run out of time."""

from __future__ import annotations

import json
import time

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_eos.sensors import TransactionTimeoutSensor
from airflow_eos.transactions import OpenTransaction


@pytest.fixture
def sensor(checkpoint, monkeypatch):
    checkpoint.claim("etl")

    def make(*ages: float, timeout_s: float = 100, **arguments):
        now_ms = time.time_ns() // 1_000_000
        listed = tuple(
            OpenTransaction(
                transactional_id=f"etl-{number}-0",
                producer_id=number,
                producer_epoch=0,
                started_at_ms=now_ms - round(age * 1000),
                timeout_ms=round(timeout_s * 1000),
            )
            for number, age in enumerate(ages)
        )
        asked: list[str] = []

        def list_open(_, prefix):
            asked.append(prefix)
            return listed

        monkeypatch.setattr("airflow_eos.kafka.transactions.listing.list_open", list_open)
        task = TransactionTimeoutSensor(
            **{"task_id": "timeouts", "checkpoint_location": checkpoint.location, **arguments}
        )
        return task, asked

    monkeypatch.setattr("airflow_eos.kafka.client.wire.Wire", NoWire)
    return make


class NoWire:
    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize(
    ("age", "part_left", "fires"),
    [(10, 0.5, False), (49, 0.5, False), (51, 0.5, True), (150, 0.5, True), (51, 0.25, False)],
)
def test_it_fires_below_the_part_that_is_left(sensor, age, part_left, fires):
    task, _ = sensor(age, part_left=part_left)
    assert task.poke({}).is_done is fires


def test_the_most_urgent_comes_first_and_the_others_not_at_all(sensor):
    task, asked = sensor(10, 60, 90)
    found = task.poke({}).xcom_value
    assert [each["transactional_id"] for each in found] == ["etl-2-0", "etl-1-0"]
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
def test_a_part_that_is_none_fails_without_retry(sensor, part_left):
    task, _ = sensor(part_left=part_left)
    with pytest.raises(AirflowFailException, match="part_left"):
        task.poke({})


def test_a_checkpoint_that_names_no_pipeline_fails_without_retry(sensor, tmp_path):
    task, _ = sensor(checkpoint_location=str(tmp_path))
    with pytest.raises(AirflowFailException, match="names no pipeline"):
        task.poke({})


def test_deferred_it_fires_through_its_trigger(sensor):
    task, _ = sensor(10, deferrable=True)
    with pytest.raises(TaskDeferred):
        task.execute({})
    task, _ = sensor(60, deferrable=True)
    assert task.execute({})[0]["transactional_id"] == "etl-0-0"
