"""A trouble ends a deferred sensor as it ends one that pokes: only what is final is final."""

from __future__ import annotations

import asyncio

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk import BaseSensorOperator, Connection

from airflow_eos import errors
from airflow_eos.checkpoint.spark_log import UnknownVersionError
from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.kinds.sql.participant import LostError
from airflow_eos.sensors import TransactionTimeoutSensor
from airflow_eos.supervision import progress as watch

PASSING = [errors.KafkaUnavailableError, errors.StoreError, errors.CheckpointFormatError]
FINAL = [errors.ConfigurationError, errors.OwnershipError]


@pytest.fixture
def ended_with(monkeypatch):
    """How a sensor ends whose look fails, without ``deferrable`` and with it."""

    async def aget(_, conn_id):
        extra = '{"bootstrap.servers": "kafka:9092"}'
        return Connection(conn_id=conn_id, conn_type="kafka", extra=extra)

    monkeypatch.setattr(KafkaSettingsHook, "aget_connection", classmethod(aget))

    def sensor(*looks, **arguments) -> TransactionTimeoutSensor:
        left = list(looks)

        def look(*_):
            found = left.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(watch.TimeoutWatch, "look", look)
        return TransactionTimeoutSensor(
            task_id="timeouts", transactional_id_prefix="etl", **arguments
        )

    def poked(error: Exception, **arguments) -> BaseException:
        with pytest.raises(Exception) as ended:  # noqa: PT011 - which one is the question
            sensor(error, **arguments).execute({})
        return ended.value

    def deferred(error: Exception, **arguments) -> BaseException:
        task = sensor([], error, deferrable=True, **arguments)
        with pytest.raises(TaskDeferred) as handed_over:
            task.execute({})

        async def event():
            return await anext(handed_over.value.trigger.run())

        answer = asyncio.run(asyncio.wait_for(event(), 300)).payload
        with pytest.raises(Exception) as ended:  # noqa: PT011 - which one is the question
            task.resume_execution(handed_over.value.method_name, {"event": answer}, {})
        return ended.value

    return lambda error, **given: (poked(error, **given), deferred(error, **given))


@pytest.mark.parametrize("kind", PASSING, ids=lambda kind: kind.__name__)
def test_a_broker_or_store_that_is_away_for_a_moment_is_left_to_retries(ended_with, kind):
    poked, deferred = ended_with(kind("away"))
    assert type(deferred) is type(poked) is kind
    assert str(deferred) == str(poked) == "away"


@pytest.mark.parametrize("kind", [UnknownVersionError, LostError], ids=lambda kind: kind.__name__)
def test_an_error_of_a_room_of_its_own_says_what_it_is_through_a_trigger_too(ended_with, kind):
    """By its own name nobody finds it: an AttributeError would stand in its place."""
    poked, deferred = ended_with(kind("a newer Spark wrote it"))
    assert type(poked) is kind
    assert isinstance(poked, type(deferred))
    assert str(deferred) == str(poked)


@pytest.mark.parametrize("kind", FINAL, ids=lambda kind: kind.__name__)
def test_what_only_a_person_can_change_is_final(ended_with, kind):
    poked, deferred = ended_with(kind("cannot work"))
    assert type(deferred) is type(poked) is AirflowFailException
    assert str(deferred) == str(poked) == f"{kind.__name__}: cannot work"


@pytest.mark.parametrize("kind", [*FINAL, *PASSING], ids=lambda kind: kind.__name__)
def test_soft_fail_skips_no_question_that_got_no_answer(ended_with, kind):
    """Skipped, a watchdog would be green that has not been able to ask."""
    for ended in ended_with(kind("cannot work"), soft_fail=True):
        assert not isinstance(ended, AirflowSkipException)
        assert "cannot work" in str(ended)


@pytest.mark.parametrize(
    ("said", "is_skip"), [("Trigger timeout", True), ("Trigger failure", False)]
)
def test_a_wait_that_was_deferred_is_skipped_where_it_was_over_and_red_where_it_died(said, is_skip):
    task = TransactionTimeoutSensor(task_id="t", transactional_id_prefix="etl", soft_fail=True)
    with pytest.raises(AirflowException) as ended:
        task.resume_execution("__fail__", {"error": said}, {})
    assert isinstance(ended.value, AirflowSkipException) is is_skip


def test_below_airflow_3_3_a_wait_that_was_deferred_is_skipped_too(monkeypatch):
    def late(*_):
        raise AirflowSensorTimeout("late")

    monkeypatch.setattr(BaseSensorOperator, "resume_execution", late)
    task = TransactionTimeoutSensor(task_id="t", transactional_id_prefix="etl", soft_fail=True)
    with pytest.raises(AirflowSkipException):
        task.resume_execution("__fail__", {}, {})
