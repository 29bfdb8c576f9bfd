"""A driver is replaced where it died and is to run, and not because a run waits for its turn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG

from airflow_eos.checkpoint import CheckpointStore, request_drain, write_heartbeat
from airflow_eos.checkpoint.liveness import BY_AIRFLOW
from airflow_eos.factory import eos_pipeline, recovery, replacing, watchdog
from airflow_eos.plugins import acting
from tests.unit.page.conftest import listed
from tests.unit.supervision.lives import beat, started
from tests.unit.test_example_dags import HALF_TIME, STALL, Airflow

pytestmark = pytest.mark.unit

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
    return SimpleNamespace(run_id="resume__X__0", conf={})


@pytest.fixture
def dags(tmp_path, monkeypatch, airflow, run) -> dict[str, DAG]:
    for module in (recovery, replacing, watchdog):
        context = {"ti": airflow, "dag_run": run}
        monkeypatch.setattr(module, "get_current_context", lambda c=context: c)
    monkeypatch.setattr(replacing, "_LOOK_S", 0.02)
    monkeypatch.setattr("airflow_eos.hooks.kafka.KafkaSettingsHook.settings", lambda _: None)
    monkeypatch.setattr("airflow_eos.kafka.client.wire.Wire", _begins)
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
        return SimpleNamespace(scalars=lambda _: SimpleNamespace(all=list))

    def __exit__(self, *_: object) -> None:
        pass


# --- a recovery that comes to its verdict


@pytest.mark.parametrize(
    ("last", "says"),
    [
        ({**X, "phase": "failed"}, ""),
        ({**X, "phase": "preparing", "interval_ms": 30}, ""),
        ({**X, **DRAINED, "drained_by": "ada"}, "ada asked the app to stop, and it stopped"),
        ({**X, "phase": "stopped", "end": "finished"}, "ended in order"),
        ({**X, **FOR_GOOD}, "no restart heals what it ended with"),
    ],
    ids=["failed", "silent", "drained while a person was asked", "finished", "failed for good"],
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


# --- an app that Airflow has drained, and no person


@pytest.mark.parametrize(
    ("state", "down"), [("failed", False), ("running", True), ("success", True), (None, True)]
)
@pytest.mark.parametrize("phase", ["stopped", "failed"])
def test_what_a_dying_worker_drained_is_brought_back_and_what_a_person_stopped_is_not(
    call, store, airflow, state, down, phase
):
    """A task that was marked as a success, or cleared, or is tried again, has not failed."""
    write_heartbeat(store, beat(**X, **(BROKEN_OFF | {"phase": phase})))
    airflow.answers = STALL
    if state is not None:
        airflow.runs = {("orders", "r1"): state}
    assert call("orders_watchdog", "should_be_running") is (phase == "failed" or not down)
    assert call("orders_watchdog", "needs_recovery") is not down
    assert bool(skips(call, "orders_recovery", "verdict")) is down
    assert bool(skips(call, "orders", "preflight")) is down
    airflow.answers = HALF_TIME
    assert call("orders_watchdog", "needs_recovery") is True, "what runs out is recovered"


def test_what_a_dag_of_another_name_has_started_is_left_to_it(call, store, airflow):
    whose = started("s1", dag_id="another", run_id="r1")
    write_heartbeat(store, beat(application_id="X", started_by=whose, **BROKEN_OFF))
    airflow.runs = {("another", "r1"): "failed", ("orders", "r1"): "failed"}
    assert call("orders_watchdog", "should_be_running") is False
