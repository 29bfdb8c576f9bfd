"""A trouble ends a deferred sensor as it ends one that pokes: only what is final is final."""

from __future__ import annotations

import asyncio

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.sdk import Connection

from airflow_eos import errors
from airflow_eos.hooks.kafka import KafkaSettingsHook
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

    def poked(error: Exception) -> BaseException:
        with pytest.raises(Exception) as ended:  # noqa: PT011 - which one is the question
            sensor(error).execute({})
        return ended.value

    def deferred(error: Exception) -> BaseException:
        task = sensor([], error, deferrable=True)
        with pytest.raises(TaskDeferred) as handed_over:
            task.execute({})

        async def event():
            return await anext(handed_over.value.trigger.run())

        answer = asyncio.run(asyncio.wait_for(event(), 300)).payload
        with pytest.raises(Exception) as ended:  # noqa: PT011 - which one is the question
            task.resume_execution(handed_over.value.method_name, {"event": answer}, {})
        return ended.value

    return lambda error: (poked(error), deferred(error))


@pytest.mark.parametrize("kind", PASSING, ids=lambda kind: kind.__name__)
def test_a_broker_or_store_that_is_away_for_a_moment_is_left_to_retries(ended_with, kind):
    poked, deferred = ended_with(kind("away"))
    assert type(deferred) is type(poked) is kind
    assert str(deferred) == str(poked) == "away"


@pytest.mark.parametrize("kind", FINAL, ids=lambda kind: kind.__name__)
def test_what_only_a_person_can_change_is_final(ended_with, kind):
    poked, deferred = ended_with(kind("cannot work"))
    assert type(deferred) is type(poked) is AirflowFailException
    assert str(deferred) == str(poked) == f"{kind.__name__}: cannot work"
