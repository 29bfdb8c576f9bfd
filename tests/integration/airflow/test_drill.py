"""The weekly drill in a real Airflow: a real driver is killed, and the time to recovery is told."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, newest_term, read_heartbeat
from airflow_eos.local import spark_jars
from airflow_eos.local.broker import free_ports
from tests.integration.airflow.test_settled_events import database
from tests.support.real_airflow import RealAirflow

__all__ = ["database"]
pytestmark = [
    pytest.mark.usefixtures("connections"),
    pytest.mark.proof,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]

DAGS = """
from pathlib import Path

from airflow.providers.common.compat.notifier import BaseNotifier
from airflow_eos.factory import eos_drill
from airflow_eos.notifications import DrillNotifier

class ToFile(BaseNotifier):
    def __init__(self, text):
        super().__init__()
        self.text = text

    def notify(self, context):
        with Path({told!r}).open("a") as file:
            print(self.text, file=file)

for name, limit_s in (("in_time", 300), ("too_slow", 1)):
    drill = eos_drill(
        dag_id=name,
        schedule=None,
        limit=limit_s,
        checkpoint=f"{folder}/{{name}}",
        prefix=f"{prefix}-{{name}}",
        input_topic=f"{prefix}.{{name}}.in",
        output_topic=f"{prefix}.{{name}}.out",
        jars={jars!r},
        conf={{"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}},
        notifiers=[DrillNotifier(lambda text: ToFile(text))],
        max_restarts=3,
    )
    globals()[name] = drill
"""
INHERITED = ("AIRFLOW_CONN_KAFKA_DEFAULT", "AIRFLOW_CONN_SPARK_DEFAULT")


def ended(airflow: RealAirflow, dag_id: str) -> dict[str, str]:
    """The states of its tasks, once its run has ended."""
    deadline = time.monotonic() + 500
    while not airflow.rows(
        "select 1 from dag_run where dag_id = %s and state in ('success', 'failed')", dag_id
    ):
        assert time.monotonic() < deadline, airflow.log("scheduler")
        time.sleep(1)
    found = airflow.rows("select task_id, state from task_instance where dag_id = %s", dag_id)
    return dict(found)


def report(airflow: RealAirflow, dag_id: str) -> Any:
    [(value,)] = airflow.rows("select value from xcom where dag_id = %s and key = 'report'", dag_id)
    return json.loads(value) if isinstance(value, str) else value


def test_a_driver_is_killed_and_how_long_until_the_next_commit_is_told(
    tmp_path: Path, database: str, prefix: str, environment: dict[str, str]
) -> None:
    told = tmp_path / "told.txt"
    dags = tmp_path / "dags"
    dags.mkdir()
    jars = ",".join(str(jar) for jar in spark_jars())
    (dags / "drill.py").write_text(
        DAGS.format(told=str(told), folder=tmp_path, prefix=prefix, jars=jars)
    )
    [port] = free_ports(1)
    with RealAirflow(tmp_path / "home", port, dags, database, **environment) as airflow:
        airflow.wait_for_dag("in_time")
        airflow.trigger("in_time")
        states = ended(airflow, "in_time")
        assert states == dict.fromkeys(("topics", "run", "drill", "stop"), "success"), states
        found = report(airflow, "in_time")
        print(found)  # noqa: T201 - the figure
        assert "was killed" in found["killed"]
        assert 1 < found["seconds"] < 300
        assert found["successor"] != found["driver"]
        assert "The drill went well" in told.read_text()

        store = CheckpointStore.open(tmp_path / "in_time")
        beat = read_heartbeat(store)
        assert beat is not None
        assert (beat.phase, beat.drained_by) == ("stopped", "in_time"), "nothing is left running"
        assert newest_term(store) == 2, "one was killed, and one has taken its place"

        # No JVM is up within a second: that drill fails, says how long it was, and ends its app.
        airflow.trigger("too_slow")
        states = ended(airflow, "too_slow")
        assert (states["drill"], states["stop"]) == ("failed", "success"), states
        assert airflow.rows("select state from dag_run where dag_id = 'too_slow'") == [("failed",)]
        beat = read_heartbeat(CheckpointStore.open(tmp_path / "too_slow"))
        assert beat is not None
        assert "The drill" in told.read_text().splitlines()[-1]


@pytest.fixture
def prefix(topic) -> str:
    """One of this test."""
    return str(topic("drill"))


@pytest.fixture
def environment(connections) -> dict[str, str]:
    """What a worker needs for Spark and Kafka here."""
    import os

    names = (*INHERITED, "PATH", "PYSPARK_PYTHON", "SPARK_LOCAL_IP", "SPARK_SUBMIT_OPTS")
    return {name: os.environ[name] for name in names}
