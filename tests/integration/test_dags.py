"""The example DAGs as a real Airflow reads them, in a home of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DAGS = Path(__file__).parents[2] / "dags"
APPS = {path.stem for path in (DAGS.parent / "spark_apps").glob("*.py")} - {"orders_etl"}
TASKS: dict[str, dict[str, set[str]]] = {
    "eos_orders_etl": {
        "preflight": {"run", "started"},
        "started": {"watch"},
        "run": set(),
        "watch": set(),
    },
    "eos_recovery": {
        "plan": {"who_decides"},
        "who_decides": {"ask", "execute"},
        "ask": {"execute"},
        "execute": {"audit"},
        "audit": {"verdict"},
        "verdict": {"resume"},
        "resume": set(),
    },
    "eos_watchdog": {
        "should_be_running": {"progress", "timeouts"},
        "progress": {"needs_recovery", "well"},
        "timeouts": {"needs_recovery"},
        "needs_recovery": {"recover"},
        "recover": set(),
        "well": set(),
    },
    "eos_drill": {
        "topics": {"run", "drill", "stop"},
        "run": set(),
        "drill": {"stop"},
        "stop": set(),
    },
    "eos_settled": {"emit": set()},
    "eos_settled_report": {"report": set()},
    "eos_rows_are_there": {"are_there": {"act"}, "act": set()},
    "eos_settled_bell": {"look": set()},
}
TASKS |= {f"eos_{app}": {"run": set()} for app in APPS}
READ = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
bag = DagBag(dag_folder=sys.argv[1])
print("RESULT" + json.dumps({
    "errors": bag.import_errors,
    "tasks": {
        name: {t.task_id: sorted(t.downstream_task_ids) for t in dag.tasks}
        for name, dag in bag.dags.items()
    },
    "serialized": {n: DagSerialization.serialize_dag(dag) for n, dag in bag.dags.items()},
}, default=str))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """An Airflow home with a database."""
    folder: Path = tmp_path_factory.mktemp("airflow")
    airflow(folder, "db", "migrate")
    return folder


def environment(home: Path, **more: str) -> dict[str, str]:
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        **more,
    }


def airflow(home: Path, *arguments: str) -> str:
    answer = subprocess.run(
        [str(Path(sys.executable).with_name("airflow")), *arguments],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def read_dags(home: Path, **more: str) -> dict[str, Any]:
    answer = subprocess.run(
        [sys.executable, "-c", READ, str(DAGS)],
        env=environment(home, **more),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "RESULT" in answer.stdout, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout.partition("RESULT")[2].splitlines()[0])
    return found


def test_the_dags_have_the_tasks_that_the_guide_names_and_no_secrets(home):
    found = read_dags(home)

    assert found["errors"] == {}
    assert found["tasks"] == {
        name: {task: sorted(after) for task, after in tasks.items()}
        for name, tasks in TASKS.items()
    }
    stored = json.dumps(found["serialized"]).lower()
    assert not [word for word in ("password", "secret", "sasl", "token") if word in stored]


def test_airflow_lists_no_import_errors(home):
    assert "No data found" in airflow(home, "dags", "list-import-errors", "--local")
    airflow(home, "dags", "reserialize")
    assert "No data found" in airflow(home, "dags", "list-import-errors")


def test_the_variable_changes_what_differs(home):
    variable = json.dumps({"checkpoint": "s3://lake/ckpt", "watchdog_schedule": "*/5 * * * *"})

    found = read_dags(home, AIRFLOW_VAR_EOS_ORDERS_ETL=variable)

    assert found["errors"] == {}
    assert "s3://lake/ckpt" in json.dumps(found["serialized"]["eos_recovery"])
    assert "*/5 * * * *" in json.dumps(found["serialized"]["eos_watchdog"])


def test_a_misspelt_setting_is_an_import_error_that_names_it(home):
    found = read_dags(
        home,
        AIRFLOW_VAR_EOS_ORDERS_ETL='{"chekpoint": "/data"}',
        AIRFLOW_VAR_EOS_EXAMPLES='{"word_cuont": {}}',
    )

    errors = {Path(file).name: error for file, error in found["errors"].items()}
    assert "chekpoint" in errors["eos_orders.py"]
    assert "word_cuont" in errors["eos_examples.py"]
