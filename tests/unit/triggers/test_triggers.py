"""The triggers: what they store, what they print, and the one event that they give."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import asdict

import pytest

from airflow_eos.checkpoint.progress import CheckpointState
from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.hooks.store import CheckpointStoreHook
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.supervision import progress as watch
from airflow_eos.supervision.progress import Observation
from airflow_eos.triggers.polling import CheckpointProgressTrigger, TransactionTimeoutTrigger
from tests.support.beats import heartbeat

PROGRESS = watch.ProgressWatch(checkpoint="/ck", max_age_ms=60_000, batch_id=7)
TIMEOUT = watch.TimeoutWatch(prefix="etl", checkpoint=None, part_left=0.5, max_age_ms=600_000)


@pytest.fixture(autouse=True)
def settings(monkeypatch) -> None:
    async def asettings(_):
        return KafkaSettings.from_librdkafka({"bootstrap.servers": "kafka:9092"})

    monkeypatch.setattr(KafkaSettingsHook, "asettings", asettings)


def progress_trigger() -> CheckpointProgressTrigger:
    return CheckpointProgressTrigger(
        watch=asdict(PROGRESS), kafka_config_id="k", poke_interval=0.01
    )


def timeout_trigger(**other) -> TransactionTimeoutTrigger:
    return TransactionTimeoutTrigger(
        watch=asdict(TIMEOUT), kafka_config_id="k", poke_interval=0.01, **other
    )


def events(trigger):
    async def collect():
        return [event.payload async for event in trigger.run()]

    return asyncio.run(asyncio.wait_for(collect(), 300))


def observed(batch: int, age_ms: int = 0, unread: int | None = None) -> Observation:
    state = CheckpointState(
        query_id="q",
        latest_offsets=batch,
        latest_commit=batch,
        in_flight=None,
        committed_at_ms=1_000_000 - age_ms,
        planned_at_ms=1_000_000 - age_ms,
        sources=(),
    )
    beat = heartbeat(beat_at_ms=10**9)  # up for long
    return Observation(state, beat, unread, 1_000_000, alive=True)


def looks(monkeypatch, kind, *answers) -> None:
    left = list(answers)
    monkeypatch.setattr(kind, "look", lambda *_: left.pop(0))


@pytest.mark.parametrize("make", [progress_trigger, timeout_trigger])
def test_it_is_made_again_from_what_it_stores(make):
    trigger = make()
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    again = getattr(importlib.import_module(module), name)(**arguments)
    assert again.serialize() == trigger.serialize()


def test_what_it_stores_names_the_stores_connection_and_none_of_its_keys(monkeypatch):
    async def aoptions(self):
        return {"aws_secret_access_key": "hunter-two-five", **self.storage_options}

    monkeypatch.setattr(CheckpointStoreHook, "aoptions", aoptions)
    given = []

    def look(_, __, storage, *_reach):
        given.append(storage)
        return [{}]

    monkeypatch.setattr(watch.TimeoutWatch, "look", look)
    trigger = timeout_trigger(storage_conn_id="lake", storage_options={"aws_region": "eu-west-1"})
    events(trigger)

    assert given == [{"aws_secret_access_key": "hunter-two-five", "aws_region": "eu-west-1"}]
    assert trigger.serialize()[1]["storage_conn_id"] == "lake"
    assert "hunter" not in repr([trigger, trigger.serialize()])


def test_progress_is_waited_for(monkeypatch):
    looks(monkeypatch, watch.ProgressWatch, observed(5), observed(6), observed(7))
    [event] = events(progress_trigger())
    assert event["error"] is None
    assert event["value"]["batch_id"] == 7


def test_a_stall_ends_the_wait_with_the_reason(monkeypatch):
    stuck = observed(5, age_ms=90_000, unread=3)
    looks(monkeypatch, watch.ProgressWatch, observed(5), stuck, stuck)
    monkeypatch.setattr("airflow_eos.supervision.progress.confirm_after_ms", lambda _: 10)
    [event] = events(progress_trigger())
    assert "/ck has stalled: no commit for 1 minute 30 seconds" in event["error"]


def test_timeouts_are_waited_for(monkeypatch):
    looks(monkeypatch, watch.TimeoutWatch, [], [], [{"transactional_id": "etl-0-0"}])
    [event] = events(timeout_trigger())
    assert event == {"error": None, "value": [{"transactional_id": "etl-0-0"}]}


def test_an_unreachable_broker_is_a_failure_with_its_name(monkeypatch):
    def look(*_):
        raise KafkaUnavailableError("no broker")

    monkeypatch.setattr(watch.TimeoutWatch, "look", look)
    [event] = events(timeout_trigger())
    assert event == {"error": "no broker", "raised": "KafkaUnavailableError", "value": None}
