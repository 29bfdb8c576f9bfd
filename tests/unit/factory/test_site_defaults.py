"""What a site says of ordinary tasks reaches neither a watchdog nor an app that runs for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
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
        assert retries == (3 if (dag_id, task_id) == ("etl", "run") else 0), task_id
        assert (delay_s, weight) == (5, "downstream"), task_id
        assert timeout_s == (run_s if task_id == "run" else look_s), task_id


def test_a_sensor_waits_as_long_as_it_says(found):
    waits = {task_id: of[-1] for task_id, of in found["etl"]["of"].items()}
    assert (waits["started"], waits["watch"]) == (600, 7 * 86_400)
    assert found["etl_watchdog"]["of"]["progress"][-1] == 300
