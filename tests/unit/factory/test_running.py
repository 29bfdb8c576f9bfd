"""Who waits for a run's app stops waiting where nobody is left to bring it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, PokeReturnValue

from airflow_eos.checkpoint import CheckpointStore, read_heartbeat, write_heartbeat
from airflow_eos.checkpoint.heartbeat import refusal_of
from airflow_eos.errors import OwnershipError
from airflow_eos.factory import eos_drill, eos_pipeline
from airflow_eos.factory import pipeline as running
from airflow_eos.sensors import CheckpointProgressSensor
from airflow_eos.supervision.progress import Conclusion
from tests.unit.factory.test_settings import LEAST
from tests.unit.supervision.lives import beat, started

pytestmark = pytest.mark.unit

STARTED = datetime(2026, 11, 1, tzinfo=UTC)
WAITERS = ("started", "watch")


@pytest.fixture
def states() -> dict[str, str | None]:
    """Of the tasks of this run."""
    return {"run": "running"}


@pytest.fixture
def context(states) -> dict[str, Any]:
    def get_task_states(dag_id: str, *, task_ids: list[str], run_ids: list[str]) -> dict[str, Any]:
        assert (dag_id, run_ids) == (LEAST["dag_id"], ["r1"])
        return {"r1": {each: states[each] for each in task_ids if each in states}}

    ti = SimpleNamespace(dag_id=LEAST["dag_id"], run_id="r1", get_task_states=get_task_states)
    return {"ti": ti, "dag_run": SimpleNamespace(run_id="r1", conf={}, start_date=STARTED)}


@pytest.fixture
def dag(tmp_path) -> DAG:
    made, *_ = eos_pipeline(**LEAST | {"checkpoint": str(tmp_path)})
    return made


@pytest.fixture
def poke(dag, context, monkeypatch) -> Callable[[str], PokeReturnValue]:
    monkeypatch.setattr(running, "get_current_context", lambda: context)
    # What the checkpoint says is the sensor's own matter, and has its own tests.
    monkeypatch.setattr(CheckpointProgressSensor, "poke", lambda *_: PokeReturnValue(is_done=False))

    def look(task_id: str) -> PokeReturnValue:
        task = dag.get_task(task_id)
        found: PokeReturnValue = (
            task.poke(context) if task_id == "watch" else task.python_callable()
        )
        return found

    return look


def test_who_waits_for_the_app_does_not_take_its_slot(dag):
    """A pool with one free slot gives it to the task of the greatest weight; a sensor keeps it."""

    def weight(task_id: str) -> int:
        behind = dag.get_task(task_id).get_flat_relative_ids(upstream=False)
        return sum(dag.get_task(each).priority_weight for each in {task_id, *behind})

    assert weight("run") > max(map(weight, WAITERS))


@pytest.mark.parametrize("waiter", WAITERS)
@pytest.mark.parametrize("state", ["failed", "upstream_failed", "skipped"])
def test_nobody_waits_for_the_app_of_a_run_that_failed(poke, states, waiter, state):
    states["run"] = state
    with pytest.raises(AirflowFailException, match=f"task run is {state}"):
        poke(waiter)


@pytest.mark.parametrize("waiter", WAITERS)
@pytest.mark.parametrize("state", ["running", "up_for_retry", "deferred", "queued", None])
def test_a_run_that_is_tried_again_is_waited_for(poke, states, waiter, state):
    states["run"] = state
    assert not poke(waiter).is_done
    states.clear()  # not scheduled yet
    assert not poke(waiter).is_done


def test_what_came_is_seen_though_the_run_has_failed_since(poke, states, tmp_path, monkeypatch):
    states["run"] = "failed"
    store = CheckpointStore.open(tmp_path)
    whose = started("s1", dag_id=LEAST["dag_id"], task_id="run", run_id="r1")
    write_heartbeat(store, beat("failed", application_id="X", started_by=whose))
    assert poke("started").xcom_value == "X"
    monkeypatch.setattr(CheckpointProgressSensor, "poke", lambda *_: PokeReturnValue(is_done=True))
    assert poke("watch").is_done


def test_a_driver_of_before_this_run_is_not_taken_for_its_own(poke, tmp_path):
    store = CheckpointStore.open(tmp_path)
    whose = started("s1", dag_id=LEAST["dag_id"], run_id="r0")
    at_ms = round((STARTED + timedelta(hours=1)).timestamp() * 1000)  # by its own clock
    write_heartbeat(
        store, beat("preparing", application_id="X", started_by=whose, started_at_ms=at_ms)
    )
    assert not poke("started").is_done


def test_a_killed_worker_is_survived_by_a_retry_that_comes_soon(dag):
    run = dag.get_task("run")
    assert run.retries == 3
    assert run.retry_delay <= timedelta(seconds=5), "nobody is in charge until then"
    assert eos_drill(checkpoint="/ck").get_task("run").retries == 0


def test_the_group_whose_lag_is_looked_at_reaches_the_app():
    made, *_ = eos_pipeline(**LEAST, consumer_group="clicks-etl")
    assert made.get_task("run").consumer_group == "clicks-etl"


def test_before_the_start_a_prefix_of_another_checkpoint_is_refused_for_good(
    dag, context, monkeypatch, tmp_path
):
    asked: list[tuple[str, str]] = []

    def refuse(_: Any, prefix: str, store: CheckpointStore) -> None:
        asked.append((prefix, store.location))
        raise OwnershipError("the prefix belongs to another")

    cluster = SimpleNamespace(leaders=lambda _: {0: 1})
    wire = nullcontext(SimpleNamespace(cluster=cluster))
    monkeypatch.setattr("airflow_eos.kafka.client.connection.ConnectionPool", lambda _: wire)
    monkeypatch.setattr("airflow_eos.hooks.kafka.KafkaSettingsHook.settings", lambda _: None)
    monkeypatch.setattr("airflow_eos.factory.watchdog.get_current_context", lambda: context)
    monkeypatch.setattr("airflow_eos.supervision.preflight.require_prefix_free", refuse)
    with pytest.raises(AirflowFailException, match="belongs to another"):
        dag.get_task("preflight").python_callable()
    store = CheckpointStore.open(tmp_path)
    assert asked == [("p", store.location)]
    refusal = refusal_of(store, read_heartbeat(store))
    assert refusal is not None, "the watchdog would start it again, twenty times"
    assert "OwnershipError: the prefix belongs to another" in refusal.reason


def test_the_first_batch_of_a_run_is_counted_and_not_dated(dag, context):
    """Commits are dated by the store's clock, and a run by Airflow's."""
    watch = dag.get_task("watch")
    assert (watch.since, watch.upstream_task_ids) == (None, {"started"})
    context["ti"].xcom_pull = lambda *, task_ids: {"preflight": -1}[task_ids]
    watch.render_template_fields(context, dag.get_template_env())
    assert watch._watch().since_batch == -1


@pytest.mark.parametrize(
    ("state", "alive", "fails"),
    [
        ("running", False, False),
        (None, False, False),
        ("running", True, True),
        ("success", False, True),
        ("failed", False, True),
    ],
)
def test_a_driver_that_failed_is_waited_for_while_its_task_starts_it_again(
    dag, context, states, state, alive, fails
):
    states["run"] = state
    found = Conclusion(error="it has stalled", value={"alive": alive})
    with pytest.raises(AirflowFailException) if fails else nullcontext():
        dag.get_task("watch").stalled(context, found)
