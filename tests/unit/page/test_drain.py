"""A request to drain means one driver: its successor is not shown as draining."""

from __future__ import annotations

import shutil

import pytest

from airflow_eos.checkpoint import CheckpointStore, read_heartbeat, request_drain, write_heartbeat
from airflow_eos.checkpoint.heartbeat import (
    Replacement,
    Standstill,
    WatchdogLook,
    forget_refusal,
    note_look,
    note_refusal,
    note_restart,
)
from airflow_eos.page.pipeline_state import Look
from airflow_eos.recovery.facts import LifeWatch
from tests.support.beats import heartbeat
from tests.support.fleet import said_again
from tests.unit.page.conftest import listed


def test_a_driver_is_silent_once_it_was_seen_to_stand_still_and_not_before(recorded, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(
        "airflow_eos.page.pipeline_state.LifeWatch", lambda: LifeWatch(lambda: now[0])
    )
    look, states = Look(listed(recorded["killed-settling"]), 300_000), []
    for _ in range(4):
        states.append(look.row().state)
        now[0] += 2
    assert states == ["looking", "looking", "looking", "silent"]


def test_who_brings_it_back_and_a_watchdog_that_has_stopped_are_said(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(
        "airflow_eos.page.pipeline_state.Standstill", lambda: Standstill(lambda: now[0])
    )
    store = CheckpointStore.open(tmp_path)
    write_heartbeat(store, heartbeat("failed", term=1))
    by = Replacement(driver="app-1", number=1, limit=3, by="task orders.run of run r1")
    note_restart(store, by)
    note_look(store, WatchdogLook(dag_id="dog", run_id="r1", interval_ms=60_000))
    look = Look(listed(tmp_path), 300_000)
    assert look.row().remarks == ("restart 1 of 3, by task orders.run of run r1",)
    note_refusal(store, "status 78", dag_id="orders", run_id="r1")
    (remark,) = look.row().remarks
    assert "no restart heals what its start was refused for: status 78" in remark
    forget_refusal(store)
    now[0] += 179
    assert len(look.row().remarks) == 1
    now[0] += 1
    assert "the watchdog dog has not looked for 3 of its intervals" in look.row().remarks[1]
    note_look(store, WatchdogLook(dag_id="dog", run_id="r2", interval_ms=60_000))
    write_heartbeat(store, heartbeat("waiting", term=1, application_id="app-2"))
    assert look.row().remarks == (), "another driver has come, and the watchdog looks again"


@pytest.mark.parametrize(("term", "state"), [(7, "draining"), (6, "stalled"), (None, "draining")])
def test_a_request_to_the_driver_before_says_nothing_of_this_one(tmp_path, recorded, term, state):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(recorded["killed-settling"], checkpoint)
    store = CheckpointStore.open(checkpoint)
    told = read_heartbeat(store)
    assert told is not None
    beat = said_again(told, term=7, batch_id=2, started_at_ms=told.beat_at_ms - 3_600_000)
    write_heartbeat(store, beat)
    request_drain(store, requested_by="ann", reason="a release", term=term)
    look = Look(listed(checkpoint), 300_000)
    assert look.row().state == "looking", "one look says nothing"
    write_heartbeat(store, said_again(beat, beat_at_ms=beat.beat_at_ms + 1))
    assert look.row().state == state
