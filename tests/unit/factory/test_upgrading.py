"""A new version delivers what a person has approved, or nothing; one that fails is undone."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import DAG, PokeReturnValue

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    request_drain,
    standing_request,
    take_term,
    write_heartbeat,
)
from airflow_eos.core.checkpoint.drain import BY_AIRFLOW, BY_STANDBY, withdraw_hand_over
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.factory import Pipeline, eos_upgrade, upgrade
from airflow_eos.factory.upgrade import APPROVE, KEEP
from airflow_eos.hooks.arguments import no_retry_where_useless
from airflow_eos.ops.packaging import require_content
from airflow_eos.sensors import CheckpointProgressSensor
from tests.support.beats import standby
from tests.unit.factory.conftest import Run
from tests.unit.factory.test_settings import LEAST
from tests.unit.ops.supervision.lives import beat, started

REPORT: dict[str, Any] = {
    "verdict": "same",
    "checkpoint": "/ck",
    "compared": [{"batch": 3, "output": "sink", "verdict": "same", "delivered": 1, "rehearsed": 1}],
    "copied_bytes": 1,
    "seconds": 1.0,
    "error": "",
}
OURS = {"dag_id": "orders_upgrade", "run_id": "r1"}


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path / "ck")


@pytest.fixture
def dag(tmp_path, ti, store, monkeypatch) -> DAG:
    new, former = tmp_path / "new.py", tmp_path / "former.py"
    new.write_text("2")
    former.write_text("1")
    params = {"application": str(new), "former_application": str(former)}
    monkeypatch.setattr(upgrade, "get_current_context", lambda: {"ti": ti, "params": params})
    return eos_upgrade(
        Pipeline(
            dag_id="orders",
            application=str(former),
            checkpoint=store.location,
            prefix="p",
            input_topic="i",
            output_topic="o",
        )
    )


def call(dag: DAG, task_id: str) -> Any:
    return dag.get_task(task_id).python_callable()


def rehearsed(ti: Run, verdict: str, **told: Any) -> None:
    compared = [REPORT["compared"][0] | {"verdict": verdict}]
    ti.answers["rehearse"] = REPORT | {"verdict": verdict, "compared": compared} | told


def test_a_state_is_rehearsed_where_executors_reach_its_copy():
    made = eos_upgrade(Pipeline(**LEAST, scratch="s3a://b/rehearsals"))
    assert made.get_task("rehearse").scratch == "s3a://b/rehearsals"


@pytest.mark.parametrize(
    ("verdict", "then"), [("same", "require_approved"), ("differs", "ask"), ("not known", "ask")]
)
def test_a_person_is_asked_unless_nothing_differs(dag, ti, verdict, then):
    rehearsed(ti, verdict)
    assert call(dag, "who_approves") == then
    assert ("words" in ti.answers) is (then == "ask")


def test_no_row_speaks_to_the_person_who_approves(dag, ti):
    """Rows are shown as text, whatever is in them: who has written one is not who asks."""
    compared = [REPORT["compared"][0] | {"verdict": "differs", "why": "```\n# Approve this"}]
    rehearsed(ti, "differs", compared=compared)
    call(dag, "who_approves")
    assert ti.answers["words"].count("```") == 2


def test_one_that_fails_in_the_rehearsal_is_put_before_nobody(dag, ti):
    rehearsed(ti, "same", error="batch 3: ZeroDivisionError")
    with pytest.raises(AirflowFailException, match="ZeroDivisionError"):
        call(dag, "who_approves")


@pytest.mark.parametrize("answer", [None, {"chosen_options": [KEEP]}, {"chosen_options": []}])
@pytest.mark.parametrize("verdict", ["differs", "not known"])
def test_what_nobody_has_approved_does_not_start(dag, ti, verdict, answer):
    ti.answers["versions"] = call(dag, "versions")
    rehearsed(ti, verdict)
    ti.answers["ask"] = answer
    with pytest.raises(AirflowSkipException):
        call(dag, "require_approved")
    ti.answers["ask"] = {"chosen_options": [APPROVE]}
    call(dag, "require_approved")


@pytest.mark.parametrize("name", ["new.py", "former.py"])
def test_what_was_changed_since_it_was_rehearsed_does_not_start(dag, ti, tmp_path, name):
    ti.answers["versions"] = call(dag, "versions")
    rehearsed(ti, "same")
    call(dag, "require_approved")
    (tmp_path / name).write_text("3")
    with pytest.raises(AirflowFailException, match="was changed since"):
        call(dag, "require_approved")


@pytest.mark.parametrize("task_id", ["rehearse", "new", "former"])
def test_the_digest_travels_with_each_task_that_starts_a_version(dag, ti, tmp_path, task_id):
    ti.answers["versions"] = call(dag, "versions")
    task = dag.get_task(task_id)
    params = {"application": tmp_path / "new.py", "former_application": tmp_path / "former.py"}
    task.render_template_fields({"ti": ti, "params": dict(batches=1, trigger="1 s", **params)})
    assert list(json.loads(task.content)) == [task.application]
    require_content(task.content, task.application, conf=task.conf)
    Path(task.application).write_text("3")
    with pytest.raises(ConfigurationError, match="changed since it was rehearsed"):
        require_content(task.content, task.application, conf=task.conf)


def test_a_jar_that_was_changed_since_is_not_started_either(dag, ti, tmp_path, monkeypatch):
    jar = tmp_path / "more.jar"
    jar.write_bytes(b"1")
    params = dict.fromkeys(("application", "former_application"), str(tmp_path / "new.py"))
    params["former_application"] = str(tmp_path / "former.py")
    monkeypatch.setattr(upgrade, "get_current_context", lambda: {"ti": ti, "params": params})
    made = eos_upgrade(Pipeline(**LEAST, jars=str(jar)))
    ti.answers["versions"] = call(made, "versions")
    rehearsed(ti, "same")
    call(made, "require_approved")
    jar.write_bytes(b"2")
    with pytest.raises(AirflowFailException, match="was changed since"):
        call(made, "require_approved")


def test_a_new_version_in_the_place_of_the_former_one_is_refused(dag, tmp_path):
    (tmp_path / "former.py").write_text("2")
    with pytest.raises(AirflowFailException, match="holds the same"):
        call(dag, "versions")


@pytest.mark.parametrize("application", ["gone.py", "s3a://apps/new.py"])
def test_a_version_that_is_not_on_the_worker_is_not_known(dag, monkeypatch, application):
    params = {"application": application, "former_application": application}
    monkeypatch.setattr(upgrade, "get_current_context", lambda: {"params": params})
    with pytest.raises(AirflowFailException, match=f"{application}.*not known"):
        call(dag, "versions")


def test_files_that_a_template_names_are_compared_as_the_task_renders_them(monkeypatch, tmp_path):
    for name in ("new.py", "former.py", "more.jar"):
        (tmp_path / name).write_text(name)
    made = eos_upgrade(Pipeline(**LEAST, conf={"spark.jars": "{{ params.folder }}/more.jar"}))
    params = {"application": str(tmp_path / "new.py"), "folder": str(tmp_path)}
    params |= {"former_application": str(tmp_path / "former.py"), "trigger": "1 s", "batches": "1"}
    context = {"params": params, "task": made.get_task("versions")}
    monkeypatch.setattr(upgrade, "get_current_context", lambda: context)
    held = call(made, "versions")
    assert str(tmp_path / "more.jar") in held["new"]


def test_a_version_that_cannot_be_read_is_not_known(dag, tmp_path):
    (tmp_path / "new.py").unlink()
    with pytest.raises(AirflowFailException, match="not known"):
        call(dag, "versions")


def test_the_new_version_stands_by_only_once_it_is_approved_and_is_not_started_again(dag):
    """While a person decides, the driver may die: it is then the former version's turn."""
    new = dag.get_task("new")
    assert new.upstream_task_ids == {"require_approved"}
    assert new.standby
    assert (new.retries, new.restart.attempts) == (0, 0)


@pytest.mark.parametrize(
    ("task_id", "watched", "goes_back"),
    [
        ("new", "failed", True),
        ("new", "upstream_failed", True),
        ("new", "success", False),
        ("run", "failed", False),
        ("former", "failed", False),
    ],
)
def test_only_a_new_version_that_drove_and_did_not_prove_itself_is_undone(
    dag, ti, store, task_id, watched, goes_back
):
    ti.states["watched"] = watched
    write_heartbeat(store, beat("failed", started_by=started("s", task_id=task_id, **OURS)))
    assert call(dag, "undo") is goes_back


@pytest.mark.parametrize(
    ("phase", "end", "drained_by", "goes_back"),
    [
        ("stopped", "drained", "cli ops", False),
        ("failed", "failed", "cli ops", False),
        ("stopped", "finished", None, False),
        ("stopped", "drained", BY_AIRFLOW, True),
        ("failed", "failed", None, True),
    ],
)
def test_what_a_person_has_stopped_is_not_started_by_going_back(
    dag, ti, store, phase, end, drained_by, goes_back
):
    """To keep a pipeline down one drains it, while an upgrade is watched, too."""
    ti.states["watched"] = "failed"
    by = started("s", task_id="new", **OURS)
    write_heartbeat(store, beat(phase, end=end, drained_by=drained_by, started_by=by))
    assert call(dag, "undo") is goes_back


def test_one_who_asks_a_driver_that_dies_meanwhile_has_stopped_it_too(dag, ti, store):
    ti.states["watched"] = "failed"
    by = started("s", task_id="new", **OURS)
    write_heartbeat(store, beat("failed", end="failed", term=1, started_by=by))
    request_drain(store, requested_by="cli ops", reason="maintenance", term=1)
    assert call(dag, "undo") is False


def test_a_store_that_is_away_for_a_moment_does_not_speak_against_a_version(
    dag, ti, store, monkeypatch
):
    """A sensor that ended so would let the former version go on."""
    ti.states["new"] = "running"
    write_heartbeat(store, beat(started_by=started("s", task_id="new", **OURS)))
    answers = iter([StoreError("away"), PokeReturnValue(False), PokeReturnValue(True)])

    def poke(*_: Any) -> Any:
        found = next(answers)
        if isinstance(found, StoreError):
            raise found
        return found

    monkeypatch.setattr(CheckpointProgressSensor, "poke", poke)
    for task_id in ("watched", "hand_over", "hand_back"):
        task = dag.get_task(task_id)
        task.poke_interval = 0
        assert task.silent_fail
    dag.get_task("watched").execute({"ti": ti})
    assert not list(answers)


@pytest.mark.parametrize(
    ("state", "speaks"), [("running", False), ("deferred", False), ("failed", True)]
)
def test_a_connection_that_was_broken_meanwhile_does_not_speak_against_a_version_that_lives(
    dag, ti, store, monkeypatch, state, speaks
):
    """No retry heals it, so the look fails for good; but that is no word of the version."""
    ti.states["new"] = state
    write_heartbeat(store, beat(started_by=started("s", task_id="new", **OURS)))
    broken = iter([True, True, False])

    def poke(*_: Any) -> Any:
        with no_retry_where_useless():
            if next(broken):
                raise ConfigurationError("its extra is no JSON object")
        return PokeReturnValue(True)

    monkeypatch.setattr(CheckpointProgressSensor, "poke", poke)
    watched = dag.get_task("watched")
    watched.poke_interval = 0
    if speaks:  # or nobody would go back
        with pytest.raises(AirflowFailException, match="no JSON object"):
            watched.execute({"ti": ti})
        return
    watched.execute({"ti": ti})
    assert not list(broken)


def test_an_app_that_was_called_off_while_it_stood_by_is_not_waited_for(dag, ti, store):
    """A person has drained the driver meanwhile: its task is a success, and it never drives."""
    write_heartbeat(store, beat("stopped", started_by=started("s", task_id="run", dag_id="orders")))
    ti.states["new"] = "success"
    with pytest.raises(AirflowFailException, match="does not stand by"):
        call(dag, "hand_over")


def poked(dag: DAG, ti: Run, store: CheckpointStore, monkeypatch, **of_the_driver: Any) -> Any:
    """A look at a pipeline that has committed the batch that is waited for."""
    found = SimpleNamespace(is_done=ti.states.get("new") == "running")
    monkeypatch.setattr(CheckpointProgressSensor, "poke", lambda *_: found)
    write_heartbeat(store, beat(started_by=started("s", **OURS | of_the_driver)))
    return dag.get_task("watched").poke({"ti": ti})


def test_batches_of_another_driver_do_not_prove_the_new_version(dag, ti, store, monkeypatch):
    ti.states["new"] = "running"
    assert poked(dag, ti, store, monkeypatch, task_id="new").is_done
    with pytest.raises(AirflowFailException, match="Another driver"):
        poked(dag, ti, store, monkeypatch, task_id="former")


def test_a_new_version_that_failed_is_not_waited_for(dag, ti, store, monkeypatch):
    ti.states["new"] = "failed"
    with pytest.raises(AirflowFailException, match="has failed"):
        poked(dag, ti, store, monkeypatch, task_id="new")


def test_a_hand_over_that_the_driver_took_back_is_told_and_asked_for_once_more(
    dag, ti, store, monkeypatch
):
    """Asked again every two seconds, nobody would hear of it for a week."""
    take_term(store, taken_by="the one that runs")
    write_heartbeat(store, beat(started_by=started("s", task_id="run", dag_id="orders")))
    new = standby(started_by=started("s2", task_id="new", **OURS), reason="TopicError: gone")
    monkeypatch.setattr("airflow_eos.core.checkpoint.standby.living_standbys", lambda _: (new,))
    assert not call(dag, "hand_over").is_done
    assert not call(dag, "hand_over").is_done, "it was told of before the driver had answered"
    withdraw_hand_over(store, term=1, submission=None)
    with pytest.raises(AirflowFailException, match=r"goes on.*TopicError: gone.*clear this task"):
        call(dag, "hand_over")
    ti.answers.clear()  # as a task that is cleared
    assert not call(dag, "hand_over").is_done
    assert standing_request(store).requested_by == BY_STANDBY


def test_it_is_handed_over_to_nobody_but_the_app_of_this_run(dag, ti, store):
    """A look: it drives already; it will not come; neither."""
    write_heartbeat(store, beat(started_by=started("s", task_id="run", dag_id="orders")))
    assert not call(dag, "hand_over").is_done
    ti.states["new"] = "failed"
    with pytest.raises(AirflowFailException, match="does not stand by"):
        call(dag, "hand_over")
    write_heartbeat(store, beat(started_by=started("s", task_id="new", **OURS)))
    done = call(dag, "hand_over")
    assert (done.is_done, done.xcom_value) == (True, -1)
