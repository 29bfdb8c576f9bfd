"""CheckpointProgressSensor on a real checkpoint folder: idle is no stall, a stall says why."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta

import pendulum
import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_eos.recovery.facts import signs_of_life
from airflow_eos.sensors import CheckpointProgressSensor
from airflow_eos.supervision import progress as watch


@pytest.fixture
def lives(checkpoint) -> dict[str, bool]:
    """Whether the driver goes on while somebody looks."""
    return {"driver": True}


@pytest.fixture
def sensor(checkpoint, monkeypatch, lives):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    clock = iter(range(1_000_000))

    def signs(store):
        def sleep(_: float) -> None:
            if lives["driver"]:
                checkpoint.goes_on()

        return signs_of_life(store, sleep=sleep, clock=lambda: float(next(clock)))

    monkeypatch.setattr(watch, "signs_of_life", signs)

    def make(unread=0, **arguments):
        answers = list(unread) if isinstance(unread, list) else None
        monkeypatch.setattr(
            watch, "unread_offsets", lambda *_: answers.pop(0) if answers else unread
        )
        return CheckpointProgressSensor(
            **{
                "task_id": "progress",
                "checkpoint_location": checkpoint.location,
                "max_age": timedelta(seconds=60),
                **arguments,
            }
        )

    return make


def test_a_fresh_commit_is_progress(sensor, checkpoint):
    checkpoint.commit(4, 100)
    checkpoint.beat()
    found = sensor().poke({})
    assert found.is_done
    assert (found.xcom_value["batch_id"], found.xcom_value["health"]) == (4, "fresh")
    json.dumps(found.xcom_value)


@pytest.mark.parametrize("age", [600, 7, 0, -600])
def test_an_idle_topic_is_not_a_stall(sensor, checkpoint, age):
    """However late or early the clock of its driver is."""
    checkpoint.commit(4, 100, age=3600)
    checkpoint.beat(age=age, started=age + 3600)
    assert sensor(unread=0).poke({}).xcom_value["health"] == "idle"


def test_rows_that_nobody_reads_are_a_stall_with_the_reason(sensor, checkpoint):
    checkpoint.commit(4, 100, age=3600)
    checkpoint.beat()
    with pytest.raises(AirflowFailException, match=r"no commit for 1 hour, although 5 offsets"):
        sensor(unread=5).poke({})


def test_rows_that_are_read_by_the_second_look_are_no_stall(sensor, checkpoint, monkeypatch):
    checkpoint.commit(4, 100, age=3600)
    checkpoint.beat()
    task = sensor(unread=[5])
    monkeypatch.setattr(time, "sleep", lambda _: checkpoint.commit(5, 105))
    assert task.poke({}).xcom_value["batch_id"] == 5


@pytest.mark.parametrize("age", [600, 0, -600], ids=["its clock is late", "right", "ahead"])
def test_a_dead_driver_is_a_stall_whatever_its_clock_says(sensor, checkpoint, lives, age):
    lives["driver"] = False
    checkpoint.commit(4, 100)
    checkpoint.beat(age=age)
    with pytest.raises(AirflowFailException, match=r"batch 4 is its last: .* has fallen silent"):
        sensor(unread=0).poke({})


def test_a_batch_that_never_ends_is_a_stall(sensor, checkpoint):
    checkpoint.commit(4, 100, age=3600)
    checkpoint.plan(5, 200, age=3500)
    checkpoint.beat("settling")
    with pytest.raises(AirflowFailException, match="in flight for 58 minutes 20 seconds"):
        sensor().poke({})


def test_a_stall_is_a_skip_with_soft_fail(sensor, checkpoint):
    checkpoint.commit(4, 100, age=3600)
    with pytest.raises(AirflowSkipException):
        sensor(soft_fail=True).execute({})


@pytest.mark.parametrize(("target", "done"), [(3, True), (4, True), (5, False), ("4", True)])
def test_a_batch_is_waited_for(sensor, checkpoint, target, done):
    checkpoint.commit(4, 100)
    checkpoint.beat()
    assert sensor(batch_id=target).poke({}).is_done is done


def test_a_batch_is_still_waited_for_while_the_topic_is_idle(sensor, checkpoint):
    checkpoint.commit(4, 100, age=3600)
    checkpoint.beat()
    assert not sensor(batch_id=5).poke({}).is_done


@pytest.mark.parametrize(("target", "done"), [(3, True), (4, False)])
def test_progress_since_a_batch(sensor, checkpoint, target, done):
    checkpoint.commit(4, 100)
    checkpoint.beat()
    assert sensor(since_batch=target).poke({}).is_done is done


def test_no_progress_since_a_batch_is_fine_on_an_idle_topic(sensor, checkpoint):
    checkpoint.commit(4, 100, age=3600)
    checkpoint.beat()
    assert sensor(since_batch=4).poke({}).is_done


@pytest.mark.parametrize(("minutes", "done"), [(-10, True), (10, False)])
def test_progress_since_a_time(sensor, checkpoint, minutes, done):
    checkpoint.commit(4, 100)
    checkpoint.beat()
    since = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()
    assert sensor(since=since).poke({}).is_done is done


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/Los_Angeles"])
def test_a_time_means_the_same_moment_in_every_zone(sensor, zone):
    moment = pendulum.datetime(2026, 11, 22, 6).in_timezone(zone)
    forms = (moment, str(moment), moment.to_iso8601_string())  # a template gives the second
    assert [sensor(since=each)._watch().since_ms for each in forms] == [1_795_327_200_000] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_id": 1, "since_batch": 1}, "not several"),
        ({"since": "2026-01-01T00:00:00"}, "no time zone"),
        ({"since": "2026-01-01"}, "no time zone"),
        ({"since": "P1D"}, "no time zone"),
        ({"since": "yesterday"}, "is no time"),
    ],
)
def test_targets_that_cannot_work_fail_without_retry(sensor, arguments, message):
    with pytest.raises(AirflowFailException, match=message):
        sensor(**arguments).poke({})


def test_a_half_written_checkpoint_is_an_error_and_never_a_verdict(sensor, checkpoint):
    checkpoint.commit(4, 100)
    (checkpoint.folder / "offsets" / "4").write_text("v1\n{")
    with pytest.raises(Exception, match="offsets/4"):
        sensor().poke({})


def test_the_sensor_times_out(sensor, checkpoint):
    checkpoint.commit(4, 100)
    checkpoint.beat()
    with pytest.raises(Exception, match="timed out"):
        sensor(batch_id=5, timeout=0, poke_interval=0).execute({})


def test_deferred_it_carries_the_connections_name_and_not_its_secrets(sensor, checkpoint):
    checkpoint.commit(4, 100)
    checkpoint.beat()
    with pytest.raises(TaskDeferred) as deferred:
        sensor(batch_id=5, deferrable=True, timeout=90).execute({})
    _, arguments = deferred.value.trigger.serialize()
    assert arguments["kafka_config_id"] == "kafka_default"
    assert "hunter" not in repr(arguments)
    assert deferred.value.timeout == timedelta(seconds=90)
    assert deferred.value.method_name == "execute_complete"


def test_a_target_that_is_reached_is_not_deferred(sensor, checkpoint):
    checkpoint.commit(4, 100)
    assert sensor(batch_id=4, deferrable=True).execute({})["batch_id"] == 4


def test_the_triggers_answer_is_taken(sensor):
    assert sensor().execute_complete({}, {"error": None, "value": {"batch_id": 5}}) == {
        "batch_id": 5
    }
    with pytest.raises(AirflowFailException, match="stalled"):
        sensor().execute_complete({}, {"error": "it stalled", "value": None})


def test_template_fields_are_rendered(sensor):
    task = sensor(batch_id="{{ n }}", since="{{ t }}")
    task.render_template_fields({"n": "7", "t": "x"})
    assert (task.batch_id, task.since) == (7, "x")
