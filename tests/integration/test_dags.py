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
APPS = {path.stem for path in (DAGS.parent / "spark_apps").glob("*.py")}
APPS -= {"orders_etl", "orders_arrow"}  # two forms of what eos_orders.py runs
APPS -= {"connect_orders"}  # whose query a server runs
TASKS: dict[str, dict[str, set[str]]] = {
    "eos_orders_etl": {
        "preflight": {"run", "started"},
        "started": {"watch"},
        "run": set(),
        "watch": set(),
    },
    "eos_recovery": {
        "plan": {"who_decides"},
        "who_decides": {"certain", "execute"},
        "certain": {"ask"},
        "ask": {"execute"},
        "execute": {"audit"},
        "audit": {"verdict"},
        "verdict": {"resume"},
        "resume": set(),
    },
    "eos_watchdog": {"look": set()},
    "eos_orders_etl_upgrade": {
        "versions": {"rehearse"},
        "rehearse": {"who_approves"},
        "who_approves": {"ask", "require_approved"},
        "ask": {"require_approved"},
        "require_approved": {"hand_over", "new"},
        "new": set(),
        "hand_over": {"watched"},
        "watched": {"undo"},
        "undo": {"former", "hand_back"},
        "former": set(),
        "hand_back": set(),
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
    "eos_settled_cut": {"read": set()},
    "eos_settled_bell": {"look": set()},
}
TASKS |= {f"eos_{app}": {"run": set()} for app in APPS}
TASKS["eos_pipeline_orders"] = {"run": {"recover"}, "recover": set()}
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

# Of the tasks only how they end, which is what a state is made of.
RUN = """
import sys
from airflow.dag_processing.dagbag import DagBag
dag = DagBag(dag_folder=sys.argv[1]).dags["eos_pipeline_orders"]
def execute(task, context):
    if task.task_id == sys.argv[2]:
        raise RuntimeError(task.task_id)
for task in dag.tasks:
    type(task).execute, task.retries = execute, 0
run = dag.test()
found = {each.task_id: str(each.state) for each in run.get_task_instances()}
print("RESULT", found["run"], found["recover"], str(run.state))
"""

# Whom Airflow asks for variables and connections, database or API server, is beyond one of these.
PARSED_ALONE = """
import importlib.util, sys
def asked(event, args):
    if event in ("sqlite3.connect", "socket.connect"):
        raise SystemExit(f"ASKED {event} {args}")
sys.addaudithook(asked)
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("parsed", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["parsed"] = module
    spec.loader.exec_module(module)
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
        timeout=300,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def read_dags(home: Path, **more: str) -> dict[str, Any]:
    answer = subprocess.run(
        [sys.executable, "-c", READ, str(DAGS)],
        env=environment(home, **more),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "RESULT" in answer.stdout, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout.partition("RESULT")[2].splitlines()[0])
    return found


@pytest.mark.long
def test_the_dags_have_the_tasks_that_the_guide_names_and_no_secrets(home):
    found = read_dags(home)

    assert found["errors"] == {}
    assert found["tasks"] == {
        name: {task: sorted(after) for task, after in tasks.items()}
        for name, tasks in TASKS.items()
    }
    stored = json.dumps(found["serialized"]).lower()
    assert not [word for word in ("password", "secret", "sasl", "token") if word in stored]


@pytest.mark.long
def test_airflow_lists_no_import_errors(home):
    airflow(home, "dags", "reserialize")
    assert "No data found" in airflow(home, "dags", "list-import-errors")


def parse_alone(home: Path, *files: Path) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", PARSED_ALONE, *map(str, files)],
        env=environment(home, _AIRFLOW_PROCESS_CONTEXT="server"),  # who asks the database itself
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (answer.returncode == 0) != ("ASKED" in answer.stderr), answer.stderr
    return answer.stderr if answer.returncode else ""


def test_no_dag_asks_airflows_database_while_it_is_parsed(home, tmp_path):
    """Airflow parses each file every 30 s: in a fleet that is a query a second, for nothing."""
    assert parse_alone(home, *sorted(DAGS.glob("*.py"))) == ""
    asks = tmp_path / "asks.py"
    asks.write_text("from airflow.sdk import Variable\nVariable.get('eos', default=1)\n")
    assert "ASKED" in parse_alone(home, asks), "or nothing would be seen"


@pytest.mark.parametrize(
    ("fails", "states"),
    [("run", "failed success failed"), ("nothing", "success success success")],
)
def test_a_pipeline_that_failed_is_not_green_since_it_was_recovered(home, fails, states):
    """Airflow calls a run by its last tasks: a recovery behind a failure would be its success."""
    answer = subprocess.run(
        [sys.executable, "-c", RUN, str(DAGS), fails],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert f"RESULT {states}" in answer.stdout, answer.stdout[-6000:] + answer.stderr[-3000:]


@pytest.mark.long
def test_the_environment_changes_what_differs(home):
    given = json.dumps({"checkpoint": "s3://lake/ckpt", "watchdog_schedule": "*/5 * * * *"})

    found = read_dags(home, EOS_ORDERS_ETL=given)

    assert found["errors"] == {}
    assert "s3://lake/ckpt" in json.dumps(found["serialized"]["eos_recovery"])
    assert "*/5 * * * *" in json.dumps(found["serialized"]["eos_watchdog"])


@pytest.mark.long
def test_a_misspelt_setting_is_an_import_error_that_names_it(home):
    found = read_dags(
        home, EOS_ORDERS_ETL='{"chekpoint": "/data"}', EOS_EXAMPLES='{"word_cuont": {}}'
    )

    errors = {Path(file).name: error for file, error in found["errors"].items()}
    assert "chekpoint" in errors["eos_orders.py"]
    assert "word_cuont" in errors["eos_examples.py"]
