"""What follows from the settings of a pipeline and of a site, in an app and in its tasks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.bases.operator import BaseOperator

from airflow_eos.core.arguments import spelled
from airflow_eos.core.checkpoint import CheckpointStore, write_heartbeat
from airflow_eos.factory import Pipeline, eos_pipeline
from airflow_eos.factory import settings as rendering
from airflow_eos.factory import watchdog as replacing
from airflow_eos.factory.settings import rendered
from airflow_eos.sinks.app import argument_parser
from tests.unit.ops.supervision.lives import beat

ROOT = Path(__file__).parents[3]
LEAST: dict[str, Any] = {
    "dag_id": "clicks",
    "application": "a.py",
    "checkpoint": "/ck",
    "prefix": "p",
    "input_topic": "clicks",
    "output_topic": "clicks.clean",
}
GUIDES = ("howto/run.md", "testing.md")


def app_in(page: str) -> str:
    """The app that a guide shows."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (app,) = (str(block) for block in blocks if "argument_parser(" in block)
    return app


@pytest.mark.parametrize("page", GUIDES)
def test_the_app_of_a_guide_takes_what_eos_pipeline_gives_it(page):
    parser = argument_parser("", prefix="p")
    for name in re.findall(r'add_argument\("(--[\w-]+)"', app_in(page)):
        parser.add_argument(name)
    told = parser.parse_args([*Pipeline(**LEAST).application_args, "--checkpoint", "/ck"])
    assert (told.input_topic, told.output_topic) == ("clicks", "clicks.clean")


def test_a_setting_beside_a_pipeline_is_not_passed_over():
    """Two pipelines of one would share a checkpoint, and each would think that it has its own."""
    base = Pipeline(**LEAST, trigger="available-now", stall_after="1 minute")
    dag, recovery, _ = eos_pipeline(base, dag_id="other", checkpoint="/other")
    assert (dag.dag_id, recovery.dag_id) == ("other", "other_recovery")
    assert dag.get_task("run").checkpoint_location == "/other"
    assert dag.params["trigger"] == "available-now"


def test_an_app_is_given_a_topic_for_dead_letters_where_there_is_one():
    letters = Pipeline(**LEAST, dead_letter_topic="bad").application_args
    at = letters.index("--dead-letter-topic")
    assert letters[at + 1] == "bad"
    assert "--dead-letter-topic" not in Pipeline(**LEAST).application_args


def test_without_a_name_of_a_row_recovery_resumes_and_audits_nothing():
    """An audit that finds no name in any row fails, and would keep the pipeline down for ever."""
    _, recovery, _ = eos_pipeline(**LEAST)
    assert "audit" not in recovery.task_ids
    assert recovery.get_task("execute").downstream_task_ids == {"verdict"}
    assert recovery.get_task("verdict").downstream_task_ids == {"resume"}


def test_with_a_name_of_a_row_recovery_audits_by_it():
    _, recovery, _ = eos_pipeline(**LEAST, order_id="value.id")
    audit = recovery.get_task("audit")
    assert (audit.id_expression, audit.dead_letter_topic) == ("value.id", None)
    assert audit.downstream_task_ids == {"verdict"}


def test_before_the_start_it_looks_for_the_topics_that_there_are(monkeypatch):
    asked: list[str] = []

    def leaders(topic: str) -> dict[int, int]:
        asked.append(topic)
        return {0: 1}

    wire = nullcontext(SimpleNamespace(cluster=SimpleNamespace(leaders=leaders)))
    monkeypatch.setattr("airflow_eos.kafka.client.connection.ConnectionPool", lambda _: wire)
    monkeypatch.setattr("airflow_eos.hooks.kafka.KafkaSettingsHook.settings", lambda _: None)
    monkeypatch.setattr(
        "airflow_eos.ops.supervision.preflight.require_prefix_free", lambda *_: None
    )
    started = {"dag_run": SimpleNamespace(run_id="manual__1", conf={})}
    monkeypatch.setattr("airflow_eos.factory.watchdog.get_current_context", lambda: started)
    run, *_ = eos_pipeline(**LEAST)
    run.get_task("preflight").python_callable()
    assert asked == ["clicks", "clicks.clean"]


def test_the_page_of_settings_has_each_field_of_a_pipeline_with_its_default():
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    table = page.partition("## `Pipeline`")[2].partition("\n## ")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", table, re.MULTILINE))
    expected = {each.name: told_default(each) for each in fields(Pipeline)}
    assert list(told.items()) == list(expected.items())


def told_default(field: Field[Any]) -> str:
    if field.name == "conf":
        return "`tuned_spark_conf()`"
    if field.default_factory is not MISSING:
        return f"`{field.default_factory()!r}`"
    if field.default is MISSING:
        return "required"
    default = field.default
    said = repr(spelled(default) if isinstance(default, timedelta) else default)
    return f"`{said}`".replace("'", '"')


# --- What a site says of ordinary tasks reaches neither a watchdog nor an app that runs for ever --


SITE = {
    "CORE__DEFAULT_TASK_RETRIES": "7",
    "CORE__DEFAULT_TASK_RETRY_DELAY": "3600",
    "CORE__DEFAULT_TASK_EXECUTION_TIMEOUT": "86400",
    "CORE__DEFAULT_TASK_WEIGHT_RULE": "upstream",
    "CORE__MAX_CONSECUTIVE_FAILED_DAG_RUNS_PER_DAG": "3",
    "CORE__MAX_ACTIVE_RUNS_PER_DAG": "7",
    "CORE__MAX_ACTIVE_TASKS_PER_DAG": "1",
    "CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
    "SCHEDULER__CATCHUP_BY_DEFAULT": "True",
    "SENSORS__DEFAULT_TIMEOUT": "61",
}
SAY = """
import json, re
from airflow_eos.factory import eos_drill, eos_pipeline

told = dict(application="a.py", checkpoint="/d", prefix="p", input_topic="i", output_topic="o")
dags = [*eos_pipeline(dag_id="etl", order_id="key", **told), eos_drill(checkpoint="/e")]
print("FOUND", json.dumps({
    dag.dag_id: {
        "failed": dag.max_consecutive_failed_dag_runs,
        "runs": dag.max_active_runs,
        "tasks": dag.max_active_tasks,
        "catchup": dag.catchup,
        "timeout": dag.dagrun_timeout,
        "paused": dag.is_paused_upon_creation,
        "of": {
            task.task_id: [
                task.retries,
                task.retry_delay.total_seconds(),
                task.execution_timeout and task.execution_timeout.total_seconds(),
                # Airflow 3.1 names the class of the strategy, later ones the rule.
                re.findall("(?i)(?:down|up)stream|absolute", str(task.weight_rule))[0].lower(),
                getattr(task, "timeout", None),
            ]
            for task in dag.tasks
        },
    }
    for dag in dags
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, Any]:
    """The DAGs as a process makes them that has a site's configuration."""
    home = tmp_path_factory.mktemp("home")
    settings = {f"AIRFLOW__{name}": value for name, value in SITE.items()}
    done = subprocess.run(
        [sys.executable, "-c", SAY],
        env={**os.environ, **settings, "AIRFLOW_HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.rpartition("FOUND ")[2])
    return said


DAGS = ("etl", "etl_recovery", "etl_watchdog", "eos_drill")


@pytest.mark.parametrize("dag_id", DAGS)
def test_no_outage_pauses_a_dag_and_none_waits_for_a_slot_of_its_own(found, dag_id):
    dag = found[dag_id]
    assert dag["failed"] == 0, "three failed minutes, and nobody looks any more"
    assert (dag["runs"], dag["tasks"], dag["catchup"], dag["timeout"]) == (1, 16, False, None)


def test_what_only_acts_on_what_somebody_started_is_not_paused_when_it_is_made(found):
    assert [found[dag_id]["paused"] for dag_id in DAGS] == [None, False, False, None]


@pytest.mark.parametrize("dag_id", DAGS)
def test_no_task_has_a_sites_retries_or_timeout(found, dag_id):
    look_s = 600 if dag_id == "etl_watchdog" else None
    run_s = {"etl": None, "eos_drill": 960}.get(dag_id)
    for task_id, (retries, delay_s, timeout_s, weight, _) in found[dag_id]["of"].items():
        lasts = (dag_id, task_id) in {("etl", each) for each in ("run", "started", "watch")}
        assert retries == (3 if lasts else 0), task_id
        assert (delay_s, weight) == (5, "downstream"), task_id
        assert timeout_s == (run_s if task_id == "run" else look_s), task_id


def test_a_sensor_waits_as_long_as_it_says(found):
    waits = {task_id: of[-1] for task_id, of in found["etl"]["of"].items()}
    assert (waits["started"], waits["watch"]) == (7 * 86_400, 7 * 86_400)


# --- rendering ------------------------------------------------------------------------------------
# Settings of a pipeline that are templates, in the tasks that Airflow does not render them for.


@pytest.fixture
def variables(monkeypatch) -> dict[str, Any]:
    """What a task's templates find under ``var.value``."""
    with DAG("d", schedule=None):
        task = BaseOperator(task_id="t")
    found: dict[str, Any] = {}
    context = {"task": task, "var": {"value": found}}
    monkeypatch.setattr(rendering, "get_current_context", lambda: context)
    return found


def test_a_template_is_rendered_where_its_task_runs(variables):
    variables.update(lake="/mnt/lake", kafka="kafka_eu", topic="clicks.eu")
    given = Pipeline(
        **LEAST
        | {
            "checkpoint": "{{ var.value.lake }}/clicks",
            "prefix": "clicks-{{ var.value.topic }}",
            "kafka_config_id": "{{ var.value.kafka }}",
            "input_topic": "{{ var.value.topic }}",
        }
    )
    here = rendered(given)
    assert here.checkpoint == "/mnt/lake/clicks"
    assert (here.kafka_config_id, here.input_topic) == ("kafka_eu", "clicks.eu")
    assert here.prefix == "clicks-clicks.eu"
    assert here.application_args == [
        *("--input-topic", "clicks.eu", "--output-topic", "clicks.clean"),
        *("--trigger", "{{ params.trigger }}"),
    ]


def test_the_watchdog_looks_at_the_checkpoint_that_the_template_names(variables, tmp_path):
    variables["lake"] = str(tmp_path)
    write_heartbeat(CheckpointStore.open(tmp_path / "ck"), beat("waiting", application_id="app-9"))
    pipeline = Pipeline(**LEAST | {"checkpoint": "{{ var.value.lake }}/ck"})
    assert replacing.last_heartbeat(pipeline).application_id == "app-9"


def test_without_a_template_no_context_is_asked_for(monkeypatch):
    def outside() -> SimpleNamespace:
        raise RuntimeError("no task runs")

    monkeypatch.setattr(rendering, "get_current_context", outside)
    plain = Pipeline(**LEAST)
    assert rendered(plain) is plain
