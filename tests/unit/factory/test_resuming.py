"""A driver is replaced where it died and is to run, and not because a run waits for its turn."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from airflow.sdk import DAG

from airflow_eos.core.checkpoint import CheckpointStore, request_drain, take_term, write_heartbeat
from airflow_eos.core.checkpoint.drain import BY_AIRFLOW, BY_STANDBY
from airflow_eos.core.checkpoint.recovery_notes import Replacement, note_refusal, note_restart
from airflow_eos.core.checkpoint.standby import write_standby
from airflow_eos.core.checkpoint.watchdog_record import read_look
from airflow_eos.core.protocol.decision import OpenWork
from airflow_eos.errors import CheckpointFormatError, OwnershipError
from airflow_eos.factory import eos_pipeline, recovery, watchdog
from airflow_eos.ops.supervision.progress import TimeoutJudge
from airflow_eos.plugins import actions as acting
from tests.support.beats import standby
from tests.support.watchdog import HALF_TIME, STALL, WELL, Airflow, Looked, Watching
from tests.unit.ops.page.conftest import listed
from tests.unit.ops.supervision.lives import beat, started

X: dict[str, Any] = {
    "application_id": "X",
    "started_by": started("s1", dag_id="orders", run_id="r1"),
}
OTHER: dict[str, Any] = {
    "application_id": "Y",
    "started_by": started("s2", dag_id="orders", run_id="r2"),
}
OF_THE_RUN: dict[str, Any] = {
    "application_id": "Y",
    "started_by": started("s2", dag_id="orders", run_id="resume__X__0"),
}
WORK = OpenWork("kafka", "sink", "k", 0, 60)
DRAINED: dict[str, Any] = {"phase": "stopped", "end": "drained"}
FOR_GOOD: dict[str, Any] = {
    "phase": "failed",
    "end": "failed",
    "reason": "OwnershipError: x",
    "restart_heals": False,
}
BROKEN_OFF: dict[str, Any] = {**DRAINED, "drained_by": BY_AIRFLOW}


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path)


@pytest.fixture
def airflow() -> Airflow:
    return Airflow()


@pytest.fixture
def run() -> SimpleNamespace:
    """The run of Airflow that a task is in."""
    logical_date = datetime(2026, 11, 1, tzinfo=UTC)
    return SimpleNamespace(run_id="resume__X__0", conf={}, logical_date=logical_date)


@pytest.fixture
def dags(tmp_path, monkeypatch, airflow, run) -> dict[str, DAG]:
    context = {"ti": airflow, "dag_run": run}
    for module in (watchdog, recovery):
        monkeypatch.setattr(module, "get_current_context", lambda: context)
    monkeypatch.setattr(watchdog, "_LOOK_S", 0.02)
    monkeypatch.setattr("airflow_eos.hooks.kafka.KafkaSettingsHook.settings", lambda _: None)
    monkeypatch.setattr("airflow_eos.kafka.client.connection.ConnectionPool", _begins)
    made = eos_pipeline(
        dag_id="orders",
        application="a.py",
        checkpoint=str(tmp_path),
        prefix="p",
        input_topic="i",
        output_topic="o",
    )
    return {each.dag_id: each for each in made}


class BeginsError(Exception):
    """The run was not skipped."""


def _begins(_: Any) -> None:
    raise BeginsError


@pytest.fixture
def call(dags) -> Callable[[str, str], Any]:
    return lambda dag_id, task_id: dags[dag_id].get_task(task_id).python_callable()


@pytest.fixture
def watching(dags, airflow, run, monkeypatch) -> Watching:
    return Watching(dags["orders_watchdog"], airflow, run, monkeypatch)


def skips(call: Callable[[str, str], Any], dag_id: str, task_id: str) -> str:
    """Why the task was skipped; empty where it went on."""
    try:
        call(dag_id, task_id)
    except AirflowSkipException as why:
        return str(why)
    except BeginsError:
        pass
    return ""


# --- a run that waited behind another


@pytest.mark.parametrize(
    ("last", "says"),
    [
        ({**X, "phase": "failed"}, ""),
        ({**X, "phase": "preparing"}, ""),
        ({**OTHER, **DRAINED, "drained_by": "ada"}, "driver Y has come since"),
        ({**OTHER, "phase": "waiting"}, "driver Y has come since"),
        ({**X, **DRAINED, "drained_by": "ada"}, "ada asked the app to stop"),
        ({**X, "phase": "stopped", "end": "finished"}, "ended in order"),
        ({**X, "phase": "failed", "drained_by": "ada"}, "ada asked"),
        ({**X, **FOR_GOOD}, "no restart heals what it ended with: OwnershipError: x"),
        ({**OF_THE_RUN, **DRAINED, "drained_by": "ada"}, ""),
    ],
    ids=[
        *("died", "silent", "another was drained", "another runs", "drained", "finished"),
        *(
            "failed as it drained",
            "failed for good",
            "its own app, and a person has cleared the run",
        ),
    ],
)
def test_a_resumption_that_waited_for_its_turn_starts_nothing_that_is_not_to_run(
    call, store, last, says
):
    """Runs of one DAG wait for one another: each drain would start the app again."""
    write_heartbeat(store, beat(**last))
    why = skips(call, "orders", "preflight")
    assert says in why
    assert bool(why) is bool(says)


def test_a_run_of_any_other_name_starts_what_was_drained(call, store, run):
    run.run_id = "manual__1"
    write_heartbeat(store, beat(**X, **DRAINED, drained_by="ada"))
    assert skips(call, "orders", "preflight") == ""


def test_the_first_start_is_resumed_where_no_driver_has_beaten(call, store, run):
    run.run_id = "resume__first__3"
    assert skips(call, "orders", "preflight") == ""
    write_heartbeat(store, beat(**X, phase="failed"))
    assert "driver X has come since" in skips(call, "orders", "preflight")


def test_who_presses_resume_on_the_page_is_heard_whoever_has_drained_it(
    call, store, run, tmp_path, monkeypatch
):
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(acting, "trigger_dag", lambda _dag, **given: asked.append(given))
    monkeypatch.setattr(acting, "create_session", _no_session)
    write_heartbeat(store, beat(**X, **DRAINED, drained_by="ada"))
    acting.resume(listed(tmp_path), "bea")
    run.run_id, run.conf = asked[0]["run_id"], asked[0]["conf"]
    assert skips(call, "orders", "preflight") == ""
    write_heartbeat(store, beat(**OTHER, **DRAINED, drained_by="ada"))
    assert "driver Y has come since" in skips(call, "orders", "preflight"), "and was drained"


class _no_session:  # noqa: N801 - stands in for a function
    def __enter__(self) -> Any:
        return SimpleNamespace(execute=lambda _: SimpleNamespace(all=list))

    def __exit__(self, *_: object) -> None:
        pass


# --- a recovery that comes to its verdict


@pytest.mark.parametrize(
    ("last", "says"),
    [
        ({**X, "phase": "failed"}, ""),
        ({**X, "phase": "preparing", "interval_ms": 30}, ""),
        ({**X, **DRAINED, "drained_by": "ada"}, "ada asked the app to stop, and it stopped"),
        ({**X, **DRAINED, "drained_by": BY_STANDBY}, ""),
        ({**X, "phase": "stopped", "end": "finished"}, "ended in order"),
        ({**X, **FOR_GOOD}, "no restart heals what it ended with"),
    ],
    ids=[
        "failed",
        "silent",
        "drained while a person was asked",
        "handed over, and nobody went on",
        "finished",
        "failed for good",
    ],
)
def test_what_somebody_drained_while_it_was_recovered_is_not_resumed(call, store, last, says):
    write_heartbeat(store, beat(**last))
    why = skips(call, "orders_recovery", "verdict")
    assert says in why
    assert bool(why) is bool(says)


def test_what_a_person_asked_to_drain_and_died_before_it_heard_stays_down(call, store):
    write_heartbeat(store, beat(**X, phase="preparing", interval_ms=30))
    request_drain(store, requested_by="cli ada", reason="x", term=1)
    assert "cli ada asked the app to stop, and it died" in skips(call, "orders_recovery", "verdict")


def test_so_does_what_a_person_asked_to_drain_and_died_before_its_first_heartbeat(call, store):
    write_heartbeat(store, beat(**X, phase="failed"))
    request_drain(store, requested_by="cli ada", reason="x", term=2)
    assert "cli ada asked the app to stop, and it died" in skips(call, "orders_recovery", "verdict")


def test_an_app_that_lives_is_not_resumed_however_long_its_batch_is(call, store):
    """A recovery that has nothing to do does not wait for silence."""
    ended = threading.Event()

    def lives() -> None:
        n = 0
        while not ended.wait(0.005):
            n += 1
            write_heartbeat(store, beat(**X, phase="preparing", beat_at_ms=n))

    write_heartbeat(store, beat(**X, phase="preparing"))
    thread = threading.Thread(target=lives)
    thread.start()
    try:
        assert "is alive" in skips(call, "orders_recovery", "verdict")
    finally:
        ended.set()
        thread.join()


def test_nothing_is_recovered_while_a_driver_was_seen_to_stand_by(call, store, watching):
    """One that has died since says so no more, and keeps nobody from it."""
    write_heartbeat(store, beat(**X, phase="failed"))
    said = standby(application_id="Z")
    ended = threading.Event()

    def stands_by() -> None:
        n = 0
        while not ended.wait(0.005):
            n += 1
            write_standby(store, msgspec.structs.replace(said, beat=n))

    write_standby(store, said)
    thread = threading.Thread(target=stands_by)
    thread.start()
    try:
        assert watching.look(STALL).started == []
        assert "driver Z on h stands by" in skips(call, "orders_recovery", "verdict")
    finally:
        ended.set()
        thread.join()
    assert watching.look(STALL).started != []


# --- an app that Airflow has drained, and no person


@pytest.mark.parametrize("state", ["failed", None, "success", "running"])
@pytest.mark.parametrize("phase", ["stopped", "failed"])
def test_what_airflow_drained_is_brought_back_unless_a_person_marked_it_or_its_run_does(
    call, store, airflow, watching, state, phase
):
    """A row that is gone (None: `airflow db clean`) is nobody's wish."""
    down, back = state == "success", state in ("failed", None)
    write_heartbeat(store, beat(**X, **(BROKEN_OFF | {"phase": phase})))
    runs = {} if state is None else {("orders", "r1"): state}
    airflow.runs = dict(runs)
    found = watching.look(STALL)
    assert bool(found.started) is back
    assert (found.state == "skipped") is (state == "running" or (down and phase == "stopped"))
    airflow.runs = dict(runs)
    assert bool(skips(call, "orders_recovery", "verdict")) is not back
    assert bool(skips(call, "orders", "preflight")) is down
    if phase == "failed":
        assert watching.look(HALF_TIME).started != [], "what runs out is recovered"


def test_that_a_person_marked_it_lasts_when_airflows_rows_are_gone(call, store, airflow, watching):
    write_heartbeat(store, beat(**X, **BROKEN_OFF))
    request_drain(store, requested_by=BY_AIRFLOW, reason="on_kill", submission="s1")
    airflow.runs = {("orders", "r1"): "success"}
    assert "was marked as a success" in watching.look(STALL).said
    airflow.runs.clear()  # housekeeping
    assert watching.look(STALL).state == "skipped"
    assert "marked" in skips(call, "orders_recovery", "verdict")


def test_what_a_dag_of_another_name_has_started_is_left_to_it_and_red_where_it_is_gone(
    store, airflow, watching
):
    whose = started("s1", dag_id="another", run_id="r1")
    write_heartbeat(store, beat(application_id="X", started_by=whose, **BROKEN_OFF))
    for state in ("running", "success"):
        airflow.runs = {("another", "r1"): state}
        assert watching.look(STALL).state == "skipped"


@pytest.mark.parametrize("state", ["failed", None])
def test_whose_an_app_is_that_another_dag_left_down_is_not_known_and_nothing_starts(
    store, airflow, watching, state
):
    whose = started("s1", dag_id="another", run_id="r1")
    write_heartbeat(store, beat(application_id="X", started_by=whose, **BROKEN_OFF))
    airflow.runs = {("another", "r1"): state} if state else {}
    found = watching.look(STALL)
    assert (found.state, found.started) == ("red", [])
    assert "not known here: nothing is started" in found.said


# --- a look of the watchdog


@pytest.fixture
def look(watching, run) -> Callable[..., Looked]:
    """One look at a pipeline that has stalled, some minutes after the one before."""
    run.run_id, run.run_after = "scheduled__1", datetime(2026, 11, 1, tzinfo=UTC)

    def once(*, minutes: float = 1, **found: Any) -> Looked:
        run.run_id = f"{run.run_id}+"
        run.run_after += timedelta(minutes=minutes)
        seen: Looked = watching.look(STALL, **found)
        return seen

    return once


def test_a_pipeline_that_has_stalled_many_times_is_recovered_each_time(look, store, airflow):
    """Airflow gives the answers of all runs before as a list, once there are two."""
    for number in range(4):
        write_heartbeat(store, beat(**X | {"application_id": f"X{number}"}, phase="failed"))
        airflow.runs.clear()
        found = look()
        assert (found.state, len(found.started)) == ("red", 1)
    assert airflow.left[-1]["stalled"][0] == "X3"


def test_a_stall_is_red_where_nobody_was_bringing_it_back(look, store):
    write_heartbeat(store, beat(**X, phase="failed"))
    found = look()
    assert (found.state, found.started) == ("red", ["watchdog__scheduled__1+__1"])
    assert "Run watchdog__scheduled__1+__1 of orders_recovery was started" in found.said


def test_while_its_task_restarts_it_the_watchdog_is_green_and_says_who_it_is(look, store, airflow):
    write_heartbeat(store, beat(**X, phase="failed"))
    airflow.runs = {("orders", "r1"): "running"}
    by = Replacement(driver="X", number=1, limit=3, by="task orders.run of run r1")
    note_restart(store, by)
    found = look()
    assert (found.state, found.started) == ("skipped", [])
    assert "restart 1 of 3, by task orders.run of run r1" in found.said


def refused(store, run_id: str = "resume__X__0") -> None:
    note_refusal(store, "the app exited with status 78", dag_id="orders", run_id=run_id)


@pytest.mark.parametrize("last", [{**X, "phase": "failed"}, None], ids=["died", "none yet"])
def test_what_was_refused_before_its_first_heartbeat_is_resumed_by_nobody(call, store, last, run):
    if last is not None:
        write_heartbeat(store, beat(**last))
    refused(store)
    assert "exited with status 78" in skips(call, "orders_recovery", "verdict")
    run.run_id = "resume__X__1" if last is not None else "resume__first__1"
    assert "exited with status 78" in skips(call, "orders", "preflight")


def test_a_refused_start_is_red_says_why_and_is_not_recovered_again(look, store):
    write_heartbeat(store, beat(**X, phase="failed"))
    refused(store)
    found = look()
    assert (found.state, found.started) == ("red", [])
    assert found.said.count("refused for: the app exited with status 78") == 1


def test_a_person_who_mended_it_clears_the_run_that_was_refused_or_triggers_another(
    call, store, run
):
    write_heartbeat(store, beat(**X, phase="failed"))
    refused(store)
    assert skips(call, "orders", "preflight") == "", "cleared: nobody but a person does that"
    run.run_id = "manual__1"
    assert skips(call, "orders", "preflight") == ""


def test_once_another_driver_beats_a_refusal_before_it_says_nothing(call, store):
    write_heartbeat(store, beat(**X, phase="failed"))
    refused(store)
    write_heartbeat(store, beat(**OTHER, phase="failed"))
    assert skips(call, "orders_recovery", "verdict") == ""


def test_who_brings_it_back_and_does_not_for_too_long_is_no_excuse(look, store, airflow):
    """A triggerer that is down, a pool without a slot: its run is under way for ever."""
    write_heartbeat(store, beat(**X, phase="failed"))
    airflow.runs = {("orders", "r1"): "running"}
    looks = [look(minutes=2) for _ in range(4)]
    assert [each.state for each in looks] == [*["skipped"] * 3, "red"], "five minutes"
    assert "nothing has come for 360 s" in looks[-1].said
    assert "for a slot of its pool" in looks[-1].said
    assert "pool" not in looks[-2].said, "it may still come"
    assert looks[-1].started == [], "a second run would wait behind it"


def test_one_that_lives_and_does_not_get_on_is_red_whoever_runs_it(look, store, airflow):
    write_heartbeat(store, beat(**X, phase="settling"))
    airflow.runs = {("orders", "r1"): "running"}
    found = look(alive=True)
    assert (found.state, found.started) == ("red", [])


# --- a DAG of which no run gets on


@pytest.mark.parametrize("found", [STALL, HALF_TIME], ids=["stall", "half time"])
@pytest.mark.parametrize("dag_id", ["orders_recovery", "orders"])
def test_a_paused_dag_brings_nothing_back_and_is_said_at_once(
    look, store, airflow, watching, dag_id, found
):
    """Its run was queued for ever, and each look was green: somebody was at it."""
    write_heartbeat(store, beat(**X, phase="failed"))
    airflow.paused = {dag_id}
    airflow.runs = {(dag_id, "resume__X__0"): "queued"}
    for _ in range(2):
        seen = look(**found)
        assert (seen.state, seen.started) == ("red", [])
        assert f"{dag_id} is paused: its runs wait for ever" in seen.said


def test_no_run_is_queued_behind_a_recovery_that_is_paused(look, store, airflow):
    write_heartbeat(store, beat(**X, phase="failed"))
    airflow.paused = {"orders_recovery"}
    found = look()
    assert (found.state, found.started) == ("red", [])
    assert "orders_recovery is paused" in found.said


@pytest.mark.parametrize(
    "why", ["Dag with dag_id: 'orders_recovery' not found", "it has import errors"]
)
def test_a_recovery_that_airflow_does_not_start_is_said(look, store, airflow, why):
    write_heartbeat(store, beat(**X, phase="failed"))
    airflow.absent = {"orders_recovery": why}
    found = look()
    assert (found.state, found.started) == ("red", [])
    assert found.said.endswith(f"Airflow starts no run of orders_recovery: {why}.")


@pytest.mark.parametrize("found", [STALL, HALF_TIME], ids=["stall", "half time"])
def test_a_recovery_that_stays_queued_is_no_excuse_at_the_second_look(
    look, store, airflow, watching, monkeypatch, found
):
    """Below Airflow 3.2 no task is told that a DAG is paused; a scheduler may be down, too."""
    monkeypatch.delattr(Airflow, "get_dag")
    write_heartbeat(store, beat(**X, phase="failed"))
    first = look(**found)
    assert len(first.started) == 1
    second = look(**found)
    assert (second.state, second.started) == ("red", [])
    assert "it was queued a look ago, and none runs" in second.said
    airflow.runs["orders_recovery", first.started[0]] = "running"
    assert look(**found).state == "skipped"


def test_open_work_that_a_recovery_does_not_end_is_red(look, store, airflow):
    """It was green without limit, as long as any run was under way; and where each one failed."""
    write_heartbeat(store, beat(**X, phase="waiting"))
    for _ in range(3):
        found = look(**HALF_TIME)
        assert (found.state, len(found.started)) == ("red", 1)
        airflow.runs["orders_recovery", found.started[0]] = "failed"
    airflow.runs["orders_recovery", "by hand"] = "running"
    seen = [look(minutes=2, **HALF_TIME).state for _ in range(3)]
    assert seen[-1] == "red", "five minutes since it was seen first"


@pytest.mark.parametrize("dag_id", ["orders"])
def test_a_recovery_says_that_the_pipelines_own_dag_is_paused(call, store, airflow, dag_id):
    write_heartbeat(store, beat(**X, phase="failed"))
    airflow.paused = {dag_id}
    for runs in ({}, {("orders", "manual__1"): "queued"}):
        airflow.runs = runs
        with pytest.raises(AirflowFailException, match=r"not resumed: .*orders is paused"):
            call("orders_recovery", "verdict")


@pytest.mark.parametrize(
    "found",
    [{"health": None, "works": HALF_TIME["works"]}, {"health": "stalled", "works": None}],
    ids=["progress", "open work"],
)
def test_a_look_without_an_answer_keeps_the_other_from_nothing(look, store, found):
    """The cluster that is read is away, and the work that runs out is a database's."""
    write_heartbeat(store, beat(**X, phase="failed"))
    seen = look(**found)
    assert (seen.state, len(seen.started)) == ("red", 1)
    assert "no broker answers" in seen.said


def test_a_look_without_an_answer_forgets_nothing(look, store, airflow):
    write_heartbeat(store, beat(**X, phase="failed"))
    airflow.runs = {("orders", "r1"): "running"}
    assert look().state == "skipped"
    assert look(health=None, minutes=6).state == "red"
    assert "nothing has come for 420 s" in look().said


def come_and_go(look, store, *, batches: Sequence[int] = (7,) * 4, between: str = "stalled") -> str:
    """Four drivers, each of which is young at one look, and has failed at the next one."""
    found = []
    for number, batch in enumerate(batches):
        named = X | {"application_id": f"X{number}"}
        write_heartbeat(store, beat(**named, phase="preparing"))
        found.append(look(alive=True, health="working", batch=batch))
        write_heartbeat(store, beat(**named, phase="failed"))
        found.append(look(batch=batch, health=between))
    return "".join("R" if each.state == "red" else "." for each in found)


def test_drivers_that_come_and_go_and_settle_no_batch_are_red(look, store, airflow):
    """Each alone is green: young, and then about to be replaced by the next one."""
    airflow.runs = {("orders", "r1"): "running"}
    assert come_and_go(look, store) == ".....RRR", "first_batch_within is five minutes"
    found = look(alive=True, health="working")
    assert "4 drivers came within 480 s, and settled no batch" in found.said


def test_drivers_that_come_and_go_and_settle_a_batch_each_get_on(look, store, airflow):
    airflow.runs = {("orders", "r1"): "running"}
    assert "R" not in come_and_go(look, store, batches=(7, 8, 9, 10))


def test_drivers_that_come_and_go_where_there_is_nothing_to_read_have_not_stalled(
    look, store, airflow
):
    airflow.runs = {("orders", "r1"): "running"}
    assert "R" not in come_and_go(look, store, between="idle")


def test_each_stall_has_its_own_time(look, store, airflow):
    write_heartbeat(store, beat(**X, phase="failed"))
    airflow.runs = {("orders", "r1"): "running"}
    assert look().state == "skipped"
    write_heartbeat(store, beat(**OTHER, phase="failed"))
    assert look(minutes=20).state == "skipped", "another driver has come, and died"


def test_a_watchdog_remembers_from_run_to_run_what_is_open_where_no_clock_is_told(
    look, store, airflow, run, watching, monkeypatch
):
    """Each run is a process of its own, and a cluster need not tell its time.

    Of a third look on Airflow gave a list, which nobody could read: all was seen anew, for ever.
    """
    write_heartbeat(store, beat(**X, phase="waiting"))
    watching.finds()

    def listed(*given: Any) -> list[dict[str, Any]]:
        [lasts_ms] = given[-1].lasts_ms([WORK])
        of = {"participant": "sink", "key": "k", "age_ms": lasts_ms, "time_left_ms": 0}
        return [of] if lasts_ms > 180_000 else []

    monkeypatch.setattr(TimeoutJudge, "look", listed)
    states = []
    for _ in range(5):
        states.append(watching.look_again().state)
        run.run_after += timedelta(minutes=1)
    assert states == [*["green"] * 4, "red"]
    json.dumps(airflow.left)
    run.logical_date, before = None, list(airflow.left)  # by hand: PostgreSQL sorts it first
    watching.look_again()
    assert airflow.left == before, "later looks would see by it alone"


@pytest.mark.parametrize("lost", [True, False], ids=["its backend lost it", "it is no such thing"])
def test_a_look_whose_memory_cannot_be_read_looks_all_the_same_and_remembers_anew(
    store, airflow, watching, run, monkeypatch, lost
):
    """Its row still stands: by it each later look would fail, and none would ever see anything."""
    write_heartbeat(store, beat(**X, phase="waiting"))

    def pull(**_: Any) -> Any:
        if lost:
            raise FileNotFoundError("s3://xcom/…")
        return "gibberish"

    airflow.xcom_pull = pull
    watching.finds()
    monkeypatch.setattr(TimeoutJudge, "look", lambda *given: given[-1].lasts_ms([WORK]) and [])
    assert watching.look_again().state == "green"
    assert airflow.left[-1]["open"] == {"sink k": run.run_after.timestamp()}


@pytest.mark.parametrize(
    ("timeout", "after_ms"),
    [(timedelta(minutes=15), 600_000), (timedelta(hours=2), 3_600_000)],
    ids=["15 minutes", "2 hours"],
)
def test_what_no_timer_ends_is_no_trouble_sooner_than_a_plain_one_at_half_time(
    store, watching, dags, monkeypatch, timeout, after_ms
):
    """A batch that takes long under a long timeout is none, whatever its transactions are."""
    write_heartbeat(store, beat(**X, phase="waiting"))
    watching.finds()
    sensor = dags["orders_watchdog"].get_task("look")
    sensor._pipeline = replace(sensor._pipeline, transaction_timeout=timeout)
    asked: list[int] = []

    def look(watch: TimeoutJudge, *_: Any) -> list[Any]:
        asked.append(watch.max_age_ms)
        return []

    monkeypatch.setattr(TimeoutJudge, "look", look)
    watching.look_again()
    assert asked == [after_ms]


def test_what_stays_open_of_a_pipeline_that_is_to_be_down_is_recovered(look, store, airflow):
    """Its driver got no answer when it ended, or a task of it woke up: no timer ends that."""
    write_heartbeat(store, beat(**X, **DRAINED, drained_by="ada"))
    assert look().state == "skipped"
    found = look(**HALF_TIME)
    assert (found.state, len(found.started)) == ("red", 1)
    airflow.runs["orders_recovery", found.started[0]] = "running"
    assert look(**HALF_TIME).started == []
    airflow.runs["orders_recovery", found.started[0]] = "success"
    assert look().state == "skipped"
    assert look(works=None).state == "skipped", "its system may be gone as it is"
    airflow.runs.clear()
    look(**HALF_TIME)
    found = [look(**HALF_TIME) for _ in range(2)]
    assert "it was queued a look ago, and none runs" in found[-1].said


@pytest.mark.parametrize("error", [OwnershipError("another's"), AirflowTaskTimeout("hangs")])
def test_a_watchdog_is_red_that_could_not_ask_what_runs_out_of_time(
    store, watching, monkeypatch, error
):
    def listed(*_: Any) -> Any:
        raise error

    write_heartbeat(store, beat(**X, phase="waiting"))
    watching.finds()
    monkeypatch.setattr(TimeoutJudge, "look", listed)
    if isinstance(error, AirflowTaskTimeout):
        with pytest.raises(AirflowTaskTimeout):
            watching.look_again()
    else:
        assert watching.look_again().state == "red"


def test_a_heartbeat_that_is_gone_is_not_that_nobody_has_started_it(store, watching):
    take_term(store, taken_by="whose heartbeat is gone")
    assert watching.look(STALL).started != []


@pytest.mark.parametrize("to_run", [True, False])
def test_a_checkpoint_that_is_gone_is_not_that_nobody_has_started_it(
    store, watching, tmp_path, to_run
):
    """A disk that is not mounted is an empty folder, and a watchdog would be green for ever."""
    finished = {"phase": "stopped", "end": "finished"}
    ended: dict[str, Any] = {"phase": "waiting"} if to_run else finished
    write_heartbeat(store, beat(**X, **ended))
    take_term(store, taken_by="X")
    for _ in range(2):
        assert watching.look(WELL).state == ("green" if to_run else "skipped")
    shutil.rmtree(tmp_path / "eos")
    for _ in range(2):
        found = watching.look(WELL)
        assert found.state == ("red" if to_run else "skipped")
        assert ("a look before has seen one" in found.said) is to_run


def test_a_request_to_stop_that_cannot_be_read_keeps_everybody_from_starting_it(
    call, store, watching
):
    """Whoever asked may have been a person; only another word of one starts it."""
    write_heartbeat(store, beat(**X, phase="failed"))
    request_drain(store, requested_by="ada", reason="x", term=1)
    store.put("eos/drain.json", b'{"format_ver')
    found = watching.look(STALL)
    assert (found.state, found.started) == ("red", [])
    assert "not known, and nobody starts it" in found.said
    with pytest.raises(CheckpointFormatError, match="not known, and nobody starts it"):
        call("orders_recovery", "verdict")
    request_drain(store, requested_by="ada", reason="x", term=1)
    assert "ada asked" in skips(call, "orders_recovery", "verdict")


def test_a_watchdog_says_in_the_checkpoint_that_it_looks(store, run, watching):
    run.run_id = "scheduled__7"
    assert "Nobody has started orders yet" in watching.look().said
    assert read_look(store) is None
    write_heartbeat(store, beat(**X, phase="failed"))
    watching.look()
    noted = read_look(store)
    assert noted is not None
    assert (noted.dag_id, noted.run_id, noted.interval_ms) == (
        "orders_watchdog",
        "scheduled__7",
        60_000,
    )


@pytest.mark.parametrize(
    ("schedule", "minutes"),
    [
        ("* * * * *", 1),
        ("*/5 * * * *", 5),
        ("@hourly", 60),
        ("*/10 8-18 * * *", 13 * 60 + 10),
        ("0 8-18 * * 1-5", 62 * 60),
        (timedelta(minutes=2), 2),
        (None, None),
        ("@once", None),
        ("@continuous", None),
        (object(), None),
    ],
)
def test_how_often_a_watchdog_looks_follows_from_its_schedule(schedule, minutes):
    expected = None if minutes is None else minutes * 60_000
    assert watchdog.interval_of(schedule) == expected
