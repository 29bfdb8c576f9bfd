"""A try that finds a driver: it starts, adopts, waits or refuses, and what is drained stays so."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    StartedBy,
    drain_newest,
    drain_requested,
    request_drain,
    take_term,
    write_heartbeat,
)
from airflow_eos.core.checkpoint.drain import BY_AIRFLOW, request_to
from airflow_eos.core.delivery.policy import FixedDelay
from airflow_eos.errors import AppFailedError, AppRefusedError, ForeignDriverError, StoreError
from airflow_eos.ops.supervision import run as finding
from airflow_eos.ops.supervision.exit_status import ExitKind, NextAction, choose
from airflow_eos.ops.supervision.heartbeat_monitor import HeartbeatReading
from airflow_eos.ops.supervision.rules import Rules
from airflow_eos.ops.supervision.run import DriverFinder, StreamRun
from airflow_eos.ops.supervision.trigger_watch import AppResult
from tests.support.beats import of_a_killed_process
from tests.unit.ops.supervision.lives import US, beat, drain, run_of, seen, started
from tests.unit.ops.supervision.test_run import Clock, Crashing

RULES = Rules(FixedDelay(), timedelta(seconds=60))


class World:
    """A clock, and a driver that beats whenever time goes on, until it is killed."""

    def __init__(self, store: CheckpointStore, heartbeat) -> None:
        self.store, self.heartbeat, self.now = store, heartbeat, 0.0
        self.beats = True
        write_heartbeat(store, heartbeat)

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        if self.beats:
            self.heartbeat = msgspec.structs.replace(self.heartbeat, beat_at_ms=int(self.now * 1e3))
            write_heartbeat(self.store, self.heartbeat)

    def finder(self) -> DriverFinder:
        pulse = HeartbeatReading(self.store, clock=self.clock)
        return DriverFinder(US, pulse, RULES, self.pause, self.clock)


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path)


@pytest.fixture
def killed(monkeypatch) -> list[int]:
    asked: list[int] = []

    def kill(heartbeat, manager) -> str:
        asked.append(heartbeat.pid)
        return "it could not be ended"

    monkeypatch.setattr(finding, "kill_elsewhere", kill)
    return asked


def test_one_that_drains_and_never_ends_is_killed_and_where_that_fails_superseded(store, killed):
    world = World(store, beat(term=None))
    request_drain(store, requested_by="airflow", reason="x", submission="s1")
    assert world.finder().find() is None
    assert killed == [7]
    assert 75 <= world.now < 80


@pytest.mark.parametrize("whose", [{}, {"run_id": "r0"}], ids=["of this task", "of another"])
def test_a_silent_driver_that_is_replaced_finds_a_request_should_it_come_back(store, killed, whose):
    """It has no term: it would deliver beside the one that took its place, for ever."""
    world = World(store, beat(term=None, started_by=started(**whose)))
    world.beats = False
    assert world.finder().find() is None
    assert drain_requested(store, submission="s1").requested_by == "airflow"


def test_one_that_whoever_runs_was_asked_for_is_asked_by_name_before_it_is_replaced(store, killed):
    """The next start removes a request that names nobody."""
    world = World(store, beat(term=None))
    request_drain(store, requested_by="ops", reason="x")
    assert world.finder().find() is None
    assert request_to(store, "s1").requested_by == "airflow"


def test_one_that_falls_silent_once_it_is_killed_is_followed_by_a_start(store, monkeypatch):
    world = World(store, beat(term=None))

    def kill(*_):
        world.beats = False
        return "killed"

    monkeypatch.setattr(finding, "kill_elsewhere", kill)
    request_drain(store, requested_by="airflow", reason="x", submission="s1")
    assert world.finder().find() is None
    assert 66 <= world.now < 70


@pytest.mark.parametrize(("whose", "ended"), [(started(), [7]), (started(run_id="r0"), [])])
def test_a_silent_driver_is_ended_once_before_a_start_where_this_task_has_started_it(
    store, killed, whose, ended
):
    world = World(store, beat(term=None, started_by=whose))
    world.beats = False
    assert world.finder().find() is None
    assert killed == ended


def test_one_whose_process_was_seen_to_end_is_not_ended_again(store, killed):
    world = World(store, beat(term=None))
    world.beats = False
    assert world.finder().find(exited="s1") is None
    assert killed == []


def test_a_driver_of_a_former_term_that_beats_for_ever_keeps_nobody_from_starting(store, killed):
    """The newer one took its term and died before its first heartbeat."""
    take_term(store, taken_by="a")
    world = World(store, beat(term=1))
    take_term(store, taken_by="b")
    assert world.finder().find() is None
    assert world.now < 20
    assert killed == [7]


def test_one_of_another_task_that_drains_and_never_ends_is_left_to_it(store, killed):
    world = World(store, beat(term=None, started_by=started(run_id="r0")))
    request_drain(store, requested_by="ops", reason="x")
    with pytest.raises(ForeignDriverError, match="asked by ops to drain"):
        world.finder().find()
    assert killed == []


def test_a_store_that_refuses_has_answered_and_is_not_asked_for_ever(store, monkeypatch):
    world = World(store, beat(term=None))

    def refuse(*_):
        raise StoreError("no right") from PermissionError()

    monkeypatch.setattr(CheckpointStore, "get", refuse)
    with pytest.raises(StoreError, match="no right"):
        world.finder().find()


# --- Start, adopt, wait or refuse: every row of the table -----------------------------------------


OTHER_RUN = started(run_id="r0")


@pytest.mark.parametrize(
    ("look", "request_", "expected", "says"),
    [
        (seen(None), None, NextAction.START, "no driver has ever run"),
        (seen(None, term=1), None, NextAction.LOOK, "driver of term 1"),
        (seen(None, term=1, silent_s=6), None, NextAction.START, "silent for 6 s"),
        (seen(beat("stopped")), None, NextAction.START, "has ended"),
        (seen(beat("failed"), moved=False), None, NextAction.START, "has ended"),
        (seen(beat("stopped", started_by=OTHER_RUN)), None, NextAction.START, "has ended"),
        (seen(beat(), silent_s=6), None, NextAction.START, "silent for 6 s"),
        (seen(beat(), silent_s=5.9, moved=False), None, NextAction.LOOK, "in a moment"),
        (seen(beat(interval_ms=9000), silent_s=6), None, NextAction.ADOPT, "earlier try"),
        (seen(beat(), moved=False), None, NextAction.LOOK, "in a moment"),
        (seen(beat()), None, NextAction.ADOPT, "earlier try"),
        (seen(beat("starting")), None, NextAction.ADOPT, "earlier try"),
        (seen(beat(started_by=OTHER_RUN)), None, NextAction.REFUSE, "task d.t of run r0"),
        (seen(beat(started_by=None)), None, NextAction.REFUSE, "nobody in Airflow"),
        (seen(beat()), drain(term=1), NextAction.WAIT, "asked by ops to drain"),
        (seen(beat()), drain(submission="s1"), NextAction.WAIT, "asked by ops"),
        (seen(beat(started_by=OTHER_RUN)), drain(term=1), NextAction.WAIT, "asked by ops"),
        (seen(beat(term=2)), drain(term=1), NextAction.ADOPT, "earlier try"),
        (seen(beat()), drain(submission="s0"), NextAction.ADOPT, "earlier try"),
        (seen(beat("stopped"), term=2), None, NextAction.LOOK, "driver of term 2"),
        (seen(beat(), term=2), None, NextAction.LOOK, "driver of term 2"),
        (seen(beat(), term=2, silent_s=6), None, NextAction.START, "driver of term 2"),
    ],
)
def test_what_a_try_does(look, request_, expected, says):
    choice = choose(look, US, request_)
    assert choice.action is expected
    assert says in choice.reason


# --- What a person has drained is started again by nobody else, whatever happened meanwhile -------


@pytest.fixture
def drained_store(tmp_path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path / "ck")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def starts() -> list[StartedBy]:
    return []


@pytest.fixture
def stream(drained_store, clock, starts):
    """One restart after ten seconds; each driver beats as the ``drivers`` say, and crashes."""

    def make(*drivers: dict[str, object], hand_over: bool = False) -> StreamRun:
        says = iter(drivers)

        def submit(us: StartedBy) -> Crashing:
            starts.append(us)
            if told := next(says, None):
                write_heartbeat(drained_store, beat("failed", started_by=us, end="failed", **told))
            return Crashing(clock, [])

        rules = Rules(FixedDelay(attempts=1), timedelta(seconds=30), hand_over=hand_over)
        return run_of(drained_store, clock, submit, rules=rules)

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
def test_a_drain_in_the_pause_before_a_restart_ends_it(stream, drained_store, clock, starts, term):
    run = stream({"term": term})
    in_the_pause(
        run, clock, lambda: drain_newest(drained_store, requested_by="cli ann", reason="x")
    )
    with pytest.raises(AppRefusedError, match=r"cli ann asked.*Clear the task"):
        run.until_finished()
    assert len(starts) == 1
    assert clock() < 1012


def test_a_driver_that_fails_while_it_drains_is_not_started_again(
    stream, drained_store, clock, starts
):
    run = stream({"term": 1})
    request_drain(drained_store, requested_by="cli ann", reason="x", term=1)
    with pytest.raises(AppRefusedError):
        run.until_finished()
    assert len(starts) == 1
    assert clock() < 1002, "nobody waits for a start that is not wanted"


def test_a_drain_holds_also_where_the_driver_died_before_its_first_heartbeat(
    stream, drained_store, starts
):
    """It had a term, which the request names; the last heartbeat is of the driver before."""
    write_heartbeat(drained_store, beat("failed", started_by=started("s0")))
    request_drain(drained_store, requested_by="cli ann", reason="x", term=2)
    with pytest.raises(AppRefusedError, match=r"cli ann asked.*Clear the task"):
        stream().until_finished()
    assert len(starts) == 1


@pytest.mark.parametrize("asks", [{"requested_by": "cli ann", "term": 7}, {"by_airflow": True}])
def test_what_was_asked_of_another_or_by_a_task_that_gave_up_ends_nothing(
    stream, drained_store, clock, starts, asks
):
    run = stream({"term": 8})

    def ask() -> None:
        if asks.get("by_airflow"):
            us = starts[0].submission
            request_drain(drained_store, requested_by=BY_AIRFLOW, reason="x", submission=us)
        else:
            request_drain(drained_store, reason="x", **asks)

    in_the_pause(run, clock, ask)
    with pytest.raises(AppFailedError, match="failed 2 times"):
        run.until_finished()


def test_a_start_that_a_person_makes_after_a_drain_is_restarted_like_any_other(
    stream, drained_store, starts
):
    """Its driver has not beaten: what stands was asked of the one before."""
    write_heartbeat(drained_store, beat("stopped", end="drained", drained_by="cli ann"))
    request_drain(drained_store, requested_by="cli ann", reason="x", term=1)
    with pytest.raises(AppFailedError, match="failed 2 times"):
        stream().until_finished()
    assert len(starts) == 2


def test_a_store_that_does_not_answer_says_nothing_of_a_drain(stream, monkeypatch, starts):
    def away(*_, **__):
        raise StoreError("away")

    monkeypatch.setattr("airflow_eos.ops.supervision.heartbeat_monitor.drain_of", away)
    with pytest.raises(AppFailedError, match="failed 2 times"):
        stream({"term": 1}, {"term": 2}).until_finished()


UNWATCHED = AppResult("s1", None, (), 900.0)
"""Whoever has watched could not go on."""


@pytest.mark.parametrize(
    ("how", "end"), [("drained", ExitKind.DRAINED), ("finished", ExitKind.SUCCEEDED)]
)
def test_an_app_that_ended_in_order_while_nobody_watched_is_at_its_end(
    stream, drained_store, starts, how, end
):
    write_heartbeat(drained_store, beat("stopped", end=how))
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


def test_one_that_is_draining_is_watched_to_its_end(stream, drained_store, clock, starts):
    write_heartbeat(drained_store, beat("preparing"))
    request_drain(drained_store, requested_by="cli ann", reason="x", term=1)
    run = stream(hand_over=True)
    beats_on(run, drained_store, clock)
    done = run.until_finished(UNWATCHED)
    assert (done.ended, done.submission) == (None, "s1")
    assert starts == []


def test_a_dead_app_is_not_handed_over_for_ever_where_no_trigger_can_watch_it(
    stream, drained_store, clock, starts
):
    """Each task and each trigger would count its silence anew: the worker watches it himself."""
    write_heartbeat(drained_store, beat("preparing"))  # SIGKILLed
    with pytest.raises(AppFailedError, match="failed 2 times"):
        stream(hand_over=True).until_finished(UNWATCHED)
    assert len(starts) == 1, "it was seen to be silent, and started again"
    assert 1060 <= clock() < 1090


def test_one_that_failed_while_nobody_watched_is_counted(stream, drained_store, starts):
    write_heartbeat(drained_store, beat("failed", end="failed"))
    with pytest.raises(AppFailedError, match="failed 2 times"):
        stream().until_finished(UNWATCHED)
    assert len(starts) == 1


def test_where_another_has_come_and_gone_since_one_is_started(stream, drained_store, starts):
    write_heartbeat(drained_store, beat("stopped", end="drained", started_by=started("s2")))
    with pytest.raises(AppFailedError, match="failed 2 times"):
        stream().until_finished(UNWATCHED)
    assert len(starts) == 2


def test_a_request_that_cannot_be_read_is_no_leave_to_start_it_again(stream, drained_store, starts):
    """Nobody knows who asked: it may have been a person."""
    run = stream({"term": 1}, {"term": 2})
    drained_store.put("eos/drain.json", b'{"format_ver')
    with pytest.raises(AppRefusedError, match="whether a person has asked the app to stop"):
        run.until_finished()
    assert len(starts) == 1


@pytest.mark.parametrize("hand_over", [False, True], ids=["watched here", "by a trigger before"])
def test_a_driver_that_was_killed_on_this_machine_is_noticed_at_once_after_a_take_over(
    stream, drained_store, clock, starts, caplog, hand_over
):
    """The standby alone asked for its process: others waited for a minute of silence."""
    write_heartbeat(drained_store, beat("preparing", **of_a_killed_process()))
    with pytest.raises(AppFailedError, match="failed 2 times"):
        stream(hand_over=hand_over).until_finished(UNWATCHED)
    assert len(starts) == 1
    assert clock() < 1000 + 15, "the pause before a restart is ten seconds of these"
    assert "no such process is on this machine any more" in caplog.text
    assert "Killing" not in caplog.text
    assert request_to(drained_store, "s1") is None, "a dead process is asked for nothing"
