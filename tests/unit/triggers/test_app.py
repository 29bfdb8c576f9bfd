"""The trigger that watches an app: one event, the right one, and what a user's stop does."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    drain_requested,
    request_drain,
    write_heartbeat,
)
from airflow_eos.errors import StoreError
from airflow_eos.ops.supervision import heartbeat_monitor as stopping
from airflow_eos.ops.supervision.exit_status import ExitKind
from airflow_eos.ops.supervision.trigger_watch import AppResult, SharedLooks, TriggerPoll
from airflow_eos.triggers.app import AppTrigger
from tests.support.beats import of_a_killed_process
from tests.unit.ops.supervision.lives import beat


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path)


@pytest.fixture
def trigger(store):
    def make(**other) -> AppTrigger:
        watch = TriggerPoll(
            **{
                "checkpoint": store.location,
                "submission": "s1",
                "failures": ((1.0, 2.0),),
                "began_s": 3.0,
                "silent_s": 0.2,
                "cancel": "drain",
                **other,
            }
        )
        made = AppTrigger(watch=watch.as_dict(), poke_interval=0.02)
        path, arguments = made.serialize()
        assert path == "airflow_eos.triggers.app.AppTrigger"
        return AppTrigger(**json.loads(json.dumps(arguments)))  # through Airflow's database

    return make


def event_of(trigger: AppTrigger) -> dict[str, Any]:
    async def first():
        return (await anext(trigger.run())).payload

    return asyncio.run(asyncio.wait_for(first(), 300))


def test_an_app_that_stops_in_order_is_one_event_with_what_was_counted_before(trigger, store):
    write_heartbeat(store, beat(term=None))
    done = beat("stopped", term=None, end="finished")
    threading.Timer(0.1, write_heartbeat, [store, done]).start()
    outcome = AppResult.of_event(event_of(trigger()))
    assert (outcome.ended.end, outcome.submission) == (ExitKind.SUCCEEDED, "s1")
    assert [(each.started_at, each.failed_at) for each in outcome.failures] == [(1.0, 2.0)]


def test_silence_is_an_end_and_no_success(trigger, store):
    write_heartbeat(store, beat(term=None, interval_ms=20))
    assert AppResult.of_event(event_of(trigger())).ended.end is ExitKind.VANISHED


def test_a_store_that_does_not_answer_is_asked_again(trigger, store, monkeypatch):
    real, asked = CheckpointStore.get, []

    def away(self, path):
        asked.append(path)
        if len(asked) < 4:
            raise StoreError("no answer")
        return real(self, path)

    write_heartbeat(store, beat("stopped", term=None, end="drained"))
    monkeypatch.setattr(CheckpointStore, "get", away)
    assert AppResult.of_event(event_of(trigger())).ended.end is ExitKind.DRAINED
    assert len(asked) >= 4


def test_what_it_cannot_read_it_says_and_the_task_looks_itself(trigger, store):
    store.put("eos/driver.json", b"{")
    event = event_of(trigger())
    assert event["raised"] == "CheckpointFormatError"
    assert "truncated" in event["error"]
    outcome = AppResult.of_event(event)
    assert (outcome.ended, outcome.submission) == (None, "s1"), "which says nothing of the app"
    assert len(outcome.failures) == 1


def test_whatever_goes_wrong_in_the_triggerer_ends_no_task(trigger, monkeypatch, caplog):
    def broken(*_):
        raise ValueError("hunter2")

    monkeypatch.setattr("airflow_eos.ops.supervision.heartbeat_monitor.read_pulse", broken)
    event = event_of(trigger())
    assert (event["raised"], event["error"]) == (
        "ValueError",
        "ValueError, see the triggerer's log",
    )
    assert AppResult.of_event(event).ended is None


@pytest.mark.parametrize(("refused", "ended"), [(2, True), (99, False)])
def test_a_store_that_refuses_is_asked_with_fresh_keys_and_not_for_ever(
    trigger, store, monkeypatch, refused, ended
):
    real, asked, opened = CheckpointStore.get, [], []
    really_open = CheckpointStore.open

    def away(self, path):
        asked.append(path)
        if len(asked) <= refused:
            raise StoreError("expired") from PermissionError()
        return real(self, path)

    def fresh(*arguments, **options):
        opened.append(1)
        return really_open(*arguments, **options)

    write_heartbeat(store, beat("stopped", term=None, end="drained"))
    monkeypatch.setattr(CheckpointStore, "get", away)
    monkeypatch.setattr(CheckpointStore, "open", fresh)
    event = event_of(trigger())
    assert (event.get("end") == "DRAINED") is ended
    assert ("expired" in event.get("error", "")) is not ended
    assert len(opened) == 3


@pytest.mark.parametrize(("cancel", "asked"), [("drain", True), ("leave", False), ("kill", True)])
def test_a_users_stop_does_what_the_operator_was_told(trigger, store, cancel, asked, caplog):
    write_heartbeat(store, beat(term=None, host="elsewhere"))
    asyncio.run(trigger(cancel=cancel).on_kill())
    assert (drain_requested(store, submission="s1") is not None) is asked
    assert drain_requested(store, submission="s2") is None


@pytest.mark.parametrize("cancel", ["drain", "kill"])
def test_a_users_stop_is_written_again_where_the_store_is_away_for_a_moment(
    store, monkeypatch, cancel
):
    """Nobody comes after the trigger: the app would go on unasked."""
    real, asked = request_drain, []
    slept: list[float] = []

    def away(*given, **named):
        asked.append(1)
        if len(asked) < 3:
            raise StoreError("503")
        return real(*given, **named)

    monkeypatch.setattr(stopping, "request_drain", away)
    write_heartbeat(store, beat(term=None, host="elsewhere"))
    watch = TriggerPoll(store.location, "s1", (), 0.0, 1.0, cancel)
    said = watch.stop(store, "a user", sleep=slept.append)
    assert "it was asked to drain" in said
    assert ("cannot be ended from here" in said) is (cancel == "kill")
    assert drain_requested(store, submission="s1").reason == "a user"
    assert 0 < sum(slept) < 10


def test_a_look_is_shared_only_by_who_reaches_the_store_in_the_same_way(store, monkeypatch):
    """Two stores may have a bucket of one name, behind two endpoints."""
    asked, real = [], SharedLooks.ask

    async def ask(self, key, read):
        asked.append(key)
        return await real(self, key, read)

    monkeypatch.setattr(SharedLooks, "ask", ask)
    write_heartbeat(store, beat("stopped", term=None, end="finished"))
    watch = TriggerPoll(store.location, "s1", (), 0.0, 1.0, "drain").as_dict()
    for endpoint in ("http://a", "http://b"):
        options = {"endpoint": endpoint}
        event_of(AppTrigger(watch=watch, poke_interval=0.01, storage_options=options))
    assert len(set(asked)) == 2


def test_two_who_ask_for_the_same_share_a_look_and_others_do_not_wait_for_it():
    looks, began, release = SharedLooks(workers=2), [], threading.Event()

    def slow() -> int:
        began.append(1)
        release.wait(300)
        return len(began)

    async def play() -> Any:
        same = [asyncio.create_task(looks.ask("a", slow)) for _ in range(5)]
        other = await looks.ask("b", lambda: "at once")
        release.set()
        return await asyncio.gather(*same), other, await looks.ask("a", slow)

    began_s = time.monotonic()
    assert asyncio.run(play()) == ([1] * 5, "at once", 2)
    assert time.monotonic() - began_s < 200, "who asked for another had to wait"


def test_a_look_is_not_kept_where_whoever_asked_was_cancelled():
    """Sensors end by their timeout while they look; a triggerer goes on for months."""
    looks, release = SharedLooks(workers=1), threading.Event()

    async def play() -> int:
        asker = asyncio.create_task(looks.ask("a", lambda: release.wait(300)))
        await asyncio.sleep(0)
        asker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asker
        release.set()
        return await looks.ask("b", lambda: 1)

    assert asyncio.run(play()) == 1
    assert looks._waiting == {}


def test_a_look_that_fails_fails_for_all_who_waited_and_not_for_who_comes_after():
    looks = SharedLooks(workers=1)

    def broken() -> None:
        raise StoreError("no")

    async def play():
        with pytest.raises(StoreError):
            await looks.ask("a", broken)
        return await looks.ask("a", lambda: 1)

    assert asyncio.run(play()) == 1


def test_a_driver_that_was_killed_beside_the_triggerer_is_noticed_at_the_next_look(trigger, store):
    write_heartbeat(store, beat("preparing", **of_a_killed_process()))
    event = event_of(trigger(silent_s=3600.0))
    assert (event["end"], "no such process" in event["found"]) == ("VANISHED", True)
