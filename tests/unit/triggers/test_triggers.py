"""The triggers of sensors and of settled batches: what they store, look at, and give."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from dataclasses import asdict
from typing import Any

import pytest
from airflow.models.trigger import Trigger

from airflow_eos.core.checkpoint.progress import CheckpointState
from airflow_eos.errors import KafkaUnavailableError, StoreError
from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.hooks.store import CheckpointStoreHook
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.ops.supervision import progress as watch
from airflow_eos.ops.supervision import trigger_watch
from airflow_eos.ops.supervision.progress import Observation
from airflow_eos.triggers.polling import CheckpointProgressTrigger, TransactionTimeoutTrigger
from airflow_eos.triggers.settled import SettledBatchesTrigger, SettledBatchesWatcher
from tests.support.beats import heartbeat
from tests.support.settled_logs import SettledLogs

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
    monkeypatch.setattr("airflow_eos.ops.supervision.progress.confirm_after_ms", lambda _: 10)
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


# --- Looks of all triggers of a process: a store that does not answer holds up nobody else's ------


def test_a_store_with_more_apps_than_threads_keeps_nobody_from_being_watched(monkeypatch):
    """A mount that hangs lets no look return: the death of all other apps would go unseen."""
    monkeypatch.setattr(trigger_watch, "_RELIEF_S", 0.01)
    over, now = threading.Event(), [0.0]
    looks = trigger_watch.SharedLooks(2, clock=lambda: now[0])

    async def watched() -> str | None:
        hang: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(looks.ask(n, lambda: over.wait(600))) for n in range(5)
        ]
        await asyncio.sleep(0.05)
        well = asyncio.ensure_future(looks.ask("well", lambda: "alive"))
        for _ in range(1_000):
            now[0] += 11  # and nobody asks anything more: each waits for what it has asked
            await asyncio.wait([well], timeout=0.05)
            if well.done():
                break
        told = well.result() if well.done() else None
        over.set()
        await asyncio.gather(well, *hang)
        return told

    assert asyncio.run(watched()) == "alive"


# --- Waiting for settled batches: nothing is slept through, and a bell may ring again -------------


try:
    from airflow.serialization.decoders import smart_decode_trigger_kwargs
except ImportError:  # where Airflow 3.1 has it
    from airflow.serialization.serialized_objects import smart_decode_trigger_kwargs  # type: ignore[attr-defined,no-redef]


@pytest.fixture
def logs(tmp_path) -> SettledLogs:
    return SettledLogs(tmp_path)


def trigger(logs: SettledLogs, **other: Any) -> SettledBatchesTrigger:
    given = {"after": None, "poke_interval": 0.01} | other
    return SettledBatchesTrigger(checkpoint_location=str(logs.folder), **given)


def first(events: Any) -> Any:
    return asyncio.run(asyncio.wait_for(anext(events), 300)).payload


def test_it_fires_once_a_later_batch_is_settled(logs):
    async def meanwhile() -> Any:
        waiting = asyncio.ensure_future(anext(trigger(logs, after=1).run()))
        logs.settle(2)
        await asyncio.sleep(0.1)
        assert not waiting.done(), "batch 1 was told already"
        logs.settle(1)
        return (await asyncio.wait_for(waiting, 300)).payload

    assert asyncio.run(meanwhile()) == {"error": None}


def test_what_was_settled_before_it_started_fires_at_once(logs):
    logs.settle(1)
    assert first(trigger(logs).run()) == {"error": None}


def test_a_checkpoint_that_was_made_anew_at_the_same_place_is_not_slept_through(logs):
    """A thousand batches of the one before were told: its first thousand would go untold."""
    logs.settle(5)
    assert first(trigger(logs, after=1000).run()) == {"error": None}


def test_one_that_has_settled_nothing_yet_wakes_nobody_twice(logs):
    async def meanwhile() -> None:
        await asyncio.wait_for(anext(trigger(logs, after=None).run()), 0.2)

    assert first(trigger(logs, after=1000).run()) == {"error": None}
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(meanwhile())


def test_it_does_not_fire_before_it_may(logs):
    logs.settle(1)
    begun = time.time()
    first(trigger(logs, not_before_ms=round((begun + 0.3) * 1000), at_most_s=60).run())
    assert time.time() >= begun + 0.29


def test_it_waits_no_longer_than_it_may_by_whichever_clock(logs):
    logs.settle(1)
    in_ten_years = round((time.time() + 3650 * 86_400) * 1000)
    events = trigger(logs, not_before_ms=in_ten_years, at_most_s=0.1).run()
    asyncio.run(asyncio.wait_for(anext(events), 30))


def test_a_checkpoint_that_cannot_be_read_is_an_error_by_name(logs):
    logs.settle(1)
    (logs.folder / "commits/0").write_text("")
    found = first(trigger(logs).run())
    assert found["raised"] == "CheckpointFormatError"


@pytest.mark.parametrize("kind", [SettledBatchesTrigger, SettledBatchesWatcher])
def test_it_comes_back_from_the_database_as_it_was(kind, logs):
    given = {"after": 3} if kind is SettledBatchesTrigger else {"at_least": 7}
    made = kind(checkpoint_location="s3://b/c", storage_conn_id="aws", poke_interval=2, **given)
    stored = Trigger.from_object(made)
    kwargs = {k: smart_decode_trigger_kwargs(v) for k, v in stored.kwargs.items()}
    assert kind(**kwargs).serialize() == made.serialize()


def watcher(logs: SettledLogs, at_least: int = 1) -> SettledBatchesWatcher:
    location = str(logs.folder)
    return SettledBatchesWatcher(
        checkpoint_location=location, at_least=at_least, poke_interval=0.01
    )


def test_a_watcher_that_was_killed_rings_again_for_what_is_there(logs):
    logs.settle(4)
    bell = {"checkpoint": str(logs.folder), "to_batch": 3}
    assert [first(watcher(logs).run()) for _ in range(2)] == [bell, bell]


def test_watchers_of_one_checkpoint_share_its_looks_and_ring_as_each_was_told(logs):
    often, seldom = watcher(logs), watcher(logs, at_least=10)
    assert often.shared_stream_key() == seldom.shared_stream_key()

    async def rings(each: SettledBatchesWatcher) -> list[int]:
        async def seen():
            for newest in (0, 1, 9, 10, 19):
                yield newest

        return [event.payload["to_batch"] async for event in each.filter_shared_stream(seen())]

    assert asyncio.run(rings(often)) == [0, 1, 9, 10, 19]
    assert asyncio.run(rings(seldom)) == [0, 10]


def test_a_disk_that_is_not_mounted_rings_for_no_batch_and_not_again_when_it_is_back(logs):
    async def seen():
        for newest in (5, -1, 5, -1, 6, -1, 0):  # the last one is a checkpoint that was made anew
            yield newest

    async def rings() -> list[int]:
        found = watcher(logs).filter_shared_stream(seen())
        return [event.payload["to_batch"] async for event in found]

    assert asyncio.run(rings()) == [5, 6, 0]


def test_a_watcher_asks_for_its_connection_once_and_again_after_a_look_that_failed(
    logs, monkeypatch
):
    asked: list[int] = []
    looked: list[int] = []

    async def options(_hook: CheckpointStoreHook) -> dict[str, str]:
        asked.append(len(looked))
        return {}

    def newest(_store: Any) -> int:
        looked.append(1)
        if len(looked) == 3:
            raise StoreError("expired")
        return len(looked)

    monkeypatch.setattr(CheckpointStoreHook, "aoptions", options)
    monkeypatch.setattr("airflow_eos.ops.settled.newest_settled", newest)

    async def five_rings() -> None:
        bells = watcher(logs).run()
        for _ in range(5):
            await asyncio.wait_for(anext(bells), 300)

    asyncio.run(five_rings())
    assert asked == [0, 3], "for the first look, and after the third"


def test_a_look_that_fails_is_taken_again(logs):
    logs.settle(1)
    damaged = logs.folder / "commits/0"
    whole = damaged.read_text()
    damaged.write_text("")

    async def meanwhile() -> Any:
        ring = asyncio.ensure_future(anext(watcher(logs).run()))
        await asyncio.sleep(0.1)
        assert not ring.done()
        damaged.write_text(whole)
        return (await asyncio.wait_for(ring, 300)).payload["to_batch"]

    assert asyncio.run(meanwhile()) == 0
