"""The DAG of a drill: what it may touch, and what it says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_eos.checkpoint.heartbeat import StartedBy
from airflow_eos.errors import ConfigurationError, RecoveryError
from airflow_eos.factory import drill, eos_drill
from airflow_eos.sinks.app import argument_parser
from airflow_eos.supervision import drill as drilling

pytestmark = pytest.mark.unit
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


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        (MINE, True),
        (None, False),
        (msgspec.structs.replace(MINE, dag_id="orders_etl"), False),
        (msgspec.structs.replace(MINE, run_id="r0"), False),
    ],
)
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


def test_an_app_that_may_not_be_restarted_is_refused_at_once():
    with pytest.raises(ValueError, match="max_restarts"):
        eos_drill(checkpoint="/ck", max_restarts=0)


@pytest.mark.parametrize("settings", [{}, {"checkpoint": "/ck", "chekpoint": "/ck"}])
def test_a_setting_that_is_missing_or_misspelt_is_an_import_error(settings):
    with pytest.raises((TypeError, ConfigurationError), match="checkpoint"):
        eos_drill(**settings)
