"""Who waits for a run, who asks a person, and who drills: the other DAGs of a pipeline."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from airflow.exceptions import AirflowRescheduleException
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import DAG, PokeReturnValue

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    read_heartbeat,
    standing_request,
    write_heartbeat,
)
from airflow_eos.core.checkpoint.heartbeat import StartedBy
from airflow_eos.core.checkpoint.recovery_notes import refusal_of
from airflow_eos.errors import (
    ConfigurationError,
    DecisionNeededError,
    KafkaUnavailableError,
    OwnershipError,
    PipelineAliveError,
    RecoveryError,
)
from airflow_eos.factory import drill, eos_drill, eos_pipeline
from airflow_eos.factory import pipeline as running
from airflow_eos.factory import recovery as asking
from airflow_eos.operators import PlanRecoveryOperator
from airflow_eos.ops.supervision import drill as drilling
from airflow_eos.ops.supervision.progress import Conclusion
from airflow_eos.sensors import CheckpointProgressSensor
from airflow_eos.sinks.app import argument_parser
from tests.support.pipelines import plan_of
from tests.unit.factory.test_settings import LEAST
from tests.unit.ops.supervision.lives import beat, started

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
@pytest.mark.parametrize("state", ["queued", "running", "deferred"])
def test_a_run_that_is_at_work_is_waited_for(poke, states, waiter, state):
    states["run"] = state
    assert not poke(waiter).is_done


@pytest.mark.parametrize("waiter", WAITERS)
@pytest.mark.parametrize("state", ["up_for_retry", "scheduled", None])
def test_who_waits_for_a_run_that_is_to_be_tried_again_gives_its_slot_back(
    poke, states, waiter, state
):
    """Of one slot: the sensor had it for a week, and the app's next try never came."""
    states["run"] = state
    with pytest.raises(AirflowRescheduleException):
        poke(waiter)
    states.clear()  # not scheduled yet
    with pytest.raises(AirflowRescheduleException):
        poke(waiter)


def test_what_came_is_seen_though_the_run_has_failed_since(poke, states, tmp_path, monkeypatch):
    states["run"] = "failed"
    store = CheckpointStore.open(tmp_path)
    whose = started("s1", dag_id=LEAST["dag_id"], task_id="run", run_id="r1")
    write_heartbeat(store, beat("failed", application_id="X", started_by=whose))
    assert poke("started").xcom_value == "X"
    monkeypatch.setattr(CheckpointProgressSensor, "poke", lambda *_: PokeReturnValue(is_done=True))
    assert poke("watch").is_done


@pytest.mark.parametrize("beats", [False, True], ids=["it never came", "another has followed"])
def test_a_run_whose_driver_will_never_be_seen_is_not_waited_for_a_week(
    poke, states, tmp_path, beats
):
    """Marked as a success by hand, or handed over to an upgrade: no recovery begins meanwhile."""
    states["run"] = "success"
    if beats:
        whose = started("s2", dag_id="orders_upgrade", task_id="new", run_id="r1")
        write_heartbeat(CheckpointStore.open(tmp_path), beat(started_by=whose))
    with pytest.raises(AirflowFailException, match="Nothing is left to wait for"):
        poke("started")


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


def test_a_look_of_the_watchdog_outlasts_the_trigger_for_which_a_suspicion_is_held():
    """It ended by its timeout in the middle: a red run each time, and no stall was ever found."""
    *_, watchdog = eos_pipeline(**LEAST, trigger="30 minutes")
    look = watchdog.get_task("look")
    assert look.execution_timeout.total_seconds() > 2 * 1_810


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
    monkeypatch.setattr("airflow_eos.ops.supervision.preflight.require_prefix_free", refuse)
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


@pytest.mark.parametrize(
    ("task_id", "end", "is_done"),
    [("run", "finished", True), ("run", "drained", False), ("other", "finished", False)],
)
def test_an_app_that_had_nothing_to_read_is_no_stall(
    dag, context, states, tmp_path, task_id, end, is_done
):
    """``available-now`` each night: without a row in the input its run would be red."""
    states["run"] = "success"
    whose = started("s1", dag_id=LEAST["dag_id"], task_id=task_id, run_id="r1")
    write_heartbeat(CheckpointStore.open(tmp_path), beat("stopped", end=end, started_by=whose))
    watch = dag.get_task("watch")
    watch.since_batch = -1
    watch._settings = lambda: (None, {})
    if is_done:
        assert watch.poke(context).is_done
        return
    with pytest.raises(AirflowFailException, match="the driver stopped"):
        watch.poke(context)


# --- Where no program may decide, a person is asked, and recovery does what the person said -------


@pytest.fixture
def recovery() -> DAG:
    _, made, _ = eos_pipeline(**LEAST | {"dag_id": "orders"})
    return made


ASK = {
    "action": "ask",
    "reason": "its rows are past retention",
    "work": {"kind": "kafka", "participant": "sink", "key": "k-1-0"},
}


def made_plan(*steps: dict[str, Any]) -> Any:
    return json.loads(plan_of().to_json()) | {"steps": list(steps)}


@pytest.mark.parametrize(
    ("action", "asked"), [("ask", "certain"), ("orphan", "certain"), ("commit", "execute")]
)
def test_a_person_is_asked_where_no_program_may_decide_and_nowhere_else(
    recovery, ti, monkeypatch, action, asked
):
    ti.answers["plan"] = made_plan(ASK | {"action": action})
    monkeypatch.setattr(asking, "get_current_context", lambda: {"ti": ti})
    assert recovery.get_task("who_decides").python_callable() == asked
    assert "past retention" in ti.answers["words"], "what the person reads"


@pytest.mark.parametrize(
    ("chosen", "assume", "orphans"),
    [
        ([asking.COMMITTED], "committed", False),
        ([asking.ABORTED], "aborted", False),
        ([asking.ABORTED, asking.ORPHANS], "aborted", True),
        ([asking.LEAVE], None, False),
        (None, None, False),  # nobody was asked
    ],
)
def test_what_the_person_said_is_what_recovery_is_told(recovery, ti, chosen, assume, orphans):
    execute = copy.copy(recovery.get_task("execute"))
    ti.answers |= {"plan": made_plan(), "ask": chosen and {"chosen_options": chosen}}
    execute.render_template_fields({"ti": ti}, recovery.get_template_env())
    assert execute.assume == assume
    assert ("orphan" in execute.allowed_actions) is orphans
    assert {"commit", "abort"} <= set(execute.allowed_actions)


@pytest.mark.parametrize(
    "chosen",
    [
        [asking.COMMITTED, asking.ABORTED],
        [asking.COMMITTED, asking.LEAVE],
        [asking.ORPHANS, asking.LEAVE],
    ],
    ids=["yes and no", "yes and leave it", "abort and leave it"],
)
def test_an_answer_that_contradicts_itself_is_none(recovery, ti, chosen):
    """A ruling stands for ever: rows would be lost, or come twice."""
    execute = copy.copy(recovery.get_task("execute"))
    ti.answers |= {"plan": made_plan(), "ask": {"chosen_options": chosen}}
    with pytest.raises(AirflowFailException, match=r"assume=.*expected one of"):
        execute.render_template_fields({"ti": ti}, recovery.get_template_env())


@pytest.mark.parametrize(
    ("met", "goes_on"),
    [
        (DecisionNeededError("an orphan is left"), True),
        (OwnershipError("a start is refused while it is"), True),
        (PipelineAliveError("it beats"), False),
        (KafkaUnavailableError("no broker answers"), False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_is_certain_is_done_before_a_person_is_waited_for(recovery, monkeypatch, met, goes_on):
    """He may take a day: promised work would time out, and its input be gone by then."""
    certain = recovery.get_task("certain")
    assert certain.downstream_task_ids == {"ask"}
    assert list(certain.allowed_actions) == ["commit", "abort"]

    def meets(_: object) -> Any:
        raise met

    monkeypatch.setattr(PlanRecoveryOperator, "_recovery", meets)
    if goes_on:
        assert certain.execute({}) is None
        return
    with pytest.raises(type(met)):
        certain.execute({})


def test_what_a_person_must_decide_and_nobody_did_stays_undone(recovery):
    ask = recovery.get_task("ask")
    assert ask.defaults == [asking.LEAVE]
    assert set(ask.options) > {asking.LEAVE}
    assert recovery.get_task("execute").trigger_rule == "none_failed_min_one_success"


# --- The DAG of a drill: what it may touch, and what it says --------------------------------------


MINE = StartedBy(dag_id="eos_drill", task_id="run", run_id="r1", map_index=-1, submission="s")


@pytest.fixture
def found(monkeypatch) -> SimpleNamespace:
    """The drill of the DAG, which finds that recovery took so many seconds, or what it raises."""
    world = SimpleNamespace(seconds=30.0, raises=None, pushed={}, made=None)

    def run(self: drilling.Drill) -> drilling.DrillResult:
        world.made = self
        if world.raises is not None:
            raise world.raises
        return drilling.DrillResult("app-1", "process 7 was killed", "app-2", 12, world.seconds)

    monkeypatch.setattr(drilling.Drill, "run", run)
    monkeypatch.setattr(drill, "store_of", lambda _: None)
    ti = SimpleNamespace(
        dag_id="eos_drill",
        run_id="r1",
        xcom_push=lambda *, key, value: world.pushed.update({key: value}),
    )
    monkeypatch.setattr(drill, "get_current_context", lambda: {"ti": ti})
    return world


def call(**settings: Any) -> Any:
    made = eos_drill(checkpoint="/ck/drill", limit=60, **settings)
    return made.get_task("drill").python_callable()


def test_in_time_it_reports_how_long_it_took(found):
    report = call()
    assert (report["seconds"], report["limit_s"], report["ok"]) == (30.0, 60, True)
    assert found.pushed["report"] == report


def test_too_slow_it_fails_and_reports_all_the_same(found):
    found.seconds = 60.1
    with pytest.raises(AirflowFailException, match=r"took 60.1 s, and 60 s are allowed"):
        call()
    assert (found.pushed["report"]["ok"], found.pushed["report"]["seconds"]) == (False, 60.1)


def test_what_keeps_it_from_measuring_is_reported(found):
    found.raises = RecoveryError("nobody is there")
    with pytest.raises(AirflowFailException, match="nobody is there"):
        call()
    assert found.pushed["report"] == {"ok": False, "why": "nobody is there"}


DRIVERS = [
    (MINE, True),
    (None, False),
    (msgspec.structs.replace(MINE, dag_id="orders_etl"), False),
    (msgspec.structs.replace(MINE, run_id="r0"), False),
]


@pytest.mark.parametrize(("started", "expected"), DRIVERS)
def test_only_a_driver_that_its_own_run_has_started_may_be_ended(found, started, expected):
    call()
    assert found.made.is_ours(SimpleNamespace(started_by=started)) is expected


def test_its_places_are_its_own_and_the_app_takes_what_it_is_given():
    made = eos_drill(checkpoint="/ck/drill")
    run = made.get_task("run")
    assert (run.checkpoint_location, run.transactional_id_prefix) == ("/ck/drill", "eos-drill")
    parser = argument_parser("", prefix="p")
    parser.add_argument("--input-topic")
    parser.add_argument("--output-topic")
    told = parser.parse_args([*run.application_args, "--checkpoint", "/ck"])
    assert (told.input_topic, told.output_topic) == ("eos-drill.in", "eos-drill.out")
    assert (str(made.schedule), made.catchup) == ("@weekly", False)
    assert run.execution_timeout is not None, "an app that nobody stops is stopped"


def test_whatever_happens_the_app_is_stopped_and_a_failed_drill_is_no_green_run():
    """A teardown: it runs after a failure too, and its success is not the run's."""
    stop = eos_drill(checkpoint="/ck").get_task("stop")
    assert stop.is_teardown
    assert stop.upstream_task_ids == {"topics", "drill"}


@pytest.mark.parametrize("phase", ["waiting", "failed", "stopped"])
@pytest.mark.parametrize(("whose", "asked"), DRIVERS)
def test_a_pipeline_on_whose_checkpoint_a_drill_was_set_by_mistake_is_not_drained(
    found, monkeypatch, tmp_path, whose, asked, phase
):
    """``run`` was refused there; drained by request, the pipeline would stay down for good."""
    store = CheckpointStore.open(tmp_path)
    write_heartbeat(store, beat(phase, started_by=whose))
    monkeypatch.setattr(drill, "store_of", lambda _: store)
    stop = eos_drill(checkpoint="/ck").get_task("stop")
    with nullcontext() if asked else pytest.raises(AirflowSkipException):
        stop.python_callable()
    assert (standing_request(store) is not None) is asked


def test_an_app_that_may_not_be_restarted_is_refused_at_once():
    with pytest.raises(ValueError, match="max_restarts"):
        eos_drill(checkpoint="/ck", max_restarts=0)


@pytest.mark.parametrize("settings", [{}, {"checkpoint": "/ck", "chekpoint": "/ck"}])
def test_a_setting_that_is_missing_or_misspelt_is_an_import_error(settings):
    with pytest.raises((TypeError, ConfigurationError), match="checkpoint"):
        eos_drill(**settings)
