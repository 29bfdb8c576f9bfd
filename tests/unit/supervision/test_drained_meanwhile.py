"""What a person has drained is started again by nobody else, whatever happened meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_eos.checkpoint import (
    CheckpointStore,
    StartedBy,
    drain_newest,
    request_drain,
    write_heartbeat,
)
from airflow_eos.checkpoint.heartbeat import BY_AIRFLOW
from airflow_eos.delivery.policy import FixedDelay
from airflow_eos.errors import AppFailedError, AppRefusedError, StoreError
from airflow_eos.supervision.exit_status import ExitKind
from airflow_eos.supervision.run import Rules, StreamRun
from airflow_eos.supervision.trigger_watch import AppResult

from tests.unit.supervision.lives import US, beat, started
from tests.unit.supervision.test_run import Clock, Crashing


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path / "ck")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def starts() -> list[StartedBy]:
    return []


@pytest.fixture
def stream(store, clock, starts):
    """One restart after ten seconds; each driver beats as the ``drivers`` say, and crashes."""

    def make(*drivers: dict[str, object], hand_over: bool = False) -> StreamRun:
        says = iter(drivers)

        def submit(us: StartedBy) -> Crashing:
            starts.append(us)
            if told := next(says, None):
                write_heartbeat(store, beat("failed", started_by=us, end="failed", **told))
            return Crashing(clock, [])

        rules = Rules(FixedDelay(attempts=1), timedelta(seconds=30), hand_over=hand_over)
        return StreamRun(
            store,
            US,
            submit=submit,
            recover=lambda: None,
            rules=rules,
            sleep=clock.sleep,
            clock=clock,
        )

    return make


def in_the_pause(run: StreamRun, clock: Clock, what) -> None:
    """Do it once, four seconds after the first driver has died."""
    slept = clock.sleep

    def sleep(seconds: float) -> None:
        slept(seconds)
        if clock() > 1004:
            run._sleep = slept
            what()

    run._sleep = sleep


@pytest.mark.parametrize("term", [1, None])
def test_a_drain_in_the_pause_before_a_restart_ends_it(stream, store, clock, starts, term):
    run = stream({"term": term})
    in_the_pause(run, clock, lambda: drain_newest(store, requested_by="cli ann", reason="x"))
    with pytest.raises(AppRefusedError, match=r"cli ann asked.*Clear the task"):
        run.until_finished()
    assert len(starts) == 1
    assert clock() < 1012


def test_a_driver_that_fails_while_it_drains_is_not_started_again(stream, store, clock, starts):
    run = stream({"term": 1})
    request_drain(store, requested_by="cli ann", reason="x", term=1)
    with pytest.raises(AppRefusedError):
        run.until_finished()
    assert len(starts) == 1
    assert clock() < 1002, "nobody waits for a start that is not wanted"


@pytest.mark.parametrize("asks", [{"requested_by": "cli ann", "term": 7}, {"by_airflow": True}])
def test_what_was_asked_of_another_or_by_a_task_that_gave_up_ends_nothing(
    stream, store, clock, starts, asks
):
    run = stream({"term": 8})

    def ask() -> None:
        if asks.get("by_airflow"):
            us = starts[0].submission
            request_drain(store, requested_by=BY_AIRFLOW, reason="x", submission=us)
        else:
            request_drain(store, reason="x", **asks)

    in_the_pause(run, clock, ask)
    with pytest.raises(AppFailedError, match="failed 2 times"):
        run.until_finished()


def test_a_start_that_a_person_makes_after_a_drain_is_restarted_like_any_other(
    stream, store, starts
):
    """Its driver has not beaten: what stands was asked of the one before."""
    write_heartbeat(store, beat("stopped", end="drained", drained_by="cli ann"))
    request_drain(store, requested_by="cli ann", reason="x", term=1)
    with pytest.raises(AppFailedError, match="failed 2 times"):
        stream().until_finished()
    assert len(starts) == 2


def test_a_store_that_does_not_answer_says_nothing_of_a_drain(stream, monkeypatch, starts):
    def away(*_, **__):
        raise StoreError("away")

    monkeypatch.setattr("airflow_eos.supervision.heartbeat_monitor.drain_of", away)
    with pytest.raises(AppFailedError, match="failed 2 times"):
        stream({"term": 1}, {"term": 2}).until_finished()


UNWATCHED = AppResult("s1", None, (), 900.0)
"""Whoever has watched could not go on."""


@pytest.mark.parametrize(
    ("how", "end"), [("drained", ExitKind.DRAINED), ("finished", ExitKind.SUCCEEDED)]
)
def test_an_app_that_ended_in_order_while_nobody_watched_is_at_its_end(
    stream, store, starts, how, end
):
    write_heartbeat(store, beat("stopped", end=how))
    done = stream().until_finished(UNWATCHED)
    assert done.ended is not None
    assert (done.ended.end, done.submission, done.began_s) == (end, "s1", 900.0)
    assert starts == []


def beats_on(run: StreamRun, store: CheckpointStore, clock: Clock) -> None:
    """The driver that is watched beats whenever time goes on."""

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        write_heartbeat(store, beat("preparing", beat_at_ms=int(clock() * 1000)))

    run._watcher._sleep = sleep


def test_one_that_is_draining_is_watched_to_its_end(stream, store, clock, starts):
    write_heartbeat(store, beat("preparing"))
    request_drain(store, requested_by="cli ann", reason="x", term=1)
    run = stream(hand_over=True)
    beats_on(run, store, clock)
    done = run.until_finished(UNWATCHED)
    assert (done.ended, done.submission) == (None, "s1")
    assert starts == []


def test_a_dead_app_is_not_handed_over_for_ever_where_no_trigger_can_watch_it(
    stream, store, clock, starts
):
    """Each task and each trigger would count its silence anew: the worker watches it himself."""
    write_heartbeat(store, beat("preparing"))  # SIGKILLed
    with pytest.raises(AppFailedError, match="failed 2 times"):
        stream(hand_over=True).until_finished(UNWATCHED)
    assert len(starts) == 1, "it was seen to be silent, and started again"
    assert 1060 <= clock() < 1090


def test_one_that_failed_while_nobody_watched_is_counted(stream, store, starts):
    write_heartbeat(store, beat("failed", end="failed"))
    with pytest.raises(AppFailedError, match="failed 2 times"):
        stream().until_finished(UNWATCHED)
    assert len(starts) == 1


def test_where_another_has_come_and_gone_since_one_is_started(stream, store, starts):
    write_heartbeat(store, beat("stopped", end="drained", started_by=started("s2")))
    with pytest.raises(AppFailedError, match="failed 2 times"):
        stream().until_finished(UNWATCHED)
    assert len(starts) == 2


def test_a_request_that_cannot_be_read_is_no_leave_to_start_it_again(stream, store, starts):
    """Nobody knows who asked: it may have been a person."""
    run = stream({"term": 1}, {"term": 2})
    store.put("eos/drain.json", b'{"format_ver')
    with pytest.raises(AppRefusedError, match="whether a person has asked the app to stop"):
        run.until_finished()
    assert len(starts) == 1
