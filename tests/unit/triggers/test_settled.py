"""Waiting for settled batches: nothing is slept through, and a bell may ring again."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from airflow.models.trigger import Trigger

from airflow_eos.errors import StoreError
from airflow_eos.hooks.store import CheckpointStoreHook
from airflow_eos.triggers.settled import SettledBatchesTrigger, SettledBatchesWatcher
from tests.support.settled_logs import SettledLogs

try:
    from airflow.serialization.decoders import smart_decode_trigger_kwargs
except ImportError:  # where Airflow 3.1 has it
    from airflow.serialization.serialized_objects import (  # type: ignore[attr-defined,no-redef]
        smart_decode_trigger_kwargs,
    )


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
    monkeypatch.setattr("airflow_eos.events.newest_settled", newest)

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
