"""A real Airflow whose API server goes away, and whose triggerer watches beyond a task's time."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, Heartbeat, StartedBy, write_heartbeat
from airflow_eos.core.checkpoint.drain import BY_AIRFLOW, request_to
from airflow_eos.core.checkpoint.heartbeat import Phase
from airflow_eos.local import EmbeddedKafka
from demo.airflow import PrivateAirflow
from demo.rest import DagRun
from tests.support.beats import beating, beside, heartbeat
from tests.support.pipeline import wait_until

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(1500)]

PATIENCE_S = 600
DAGS = """
from datetime import timedelta

from airflow.sdk import DAG
from airflow_eos.factory import eos_pipeline
from airflow_eos.operators import SparkStreamingOperator

run, *_ = eos_pipeline(
    dag_id="stream",
    application={app!r},
    checkpoint={checkpoint!r},
    prefix={topic!r},
    input_topic={topic!r},
    output_topic={topic!r},
)
with DAG("deferred", schedule=None) as deferred:
    SparkStreamingOperator(
        task_id="run",
        application="/no/such/app.py",
        checkpoint_location={deferred!r},
        deferrable=True,
        poke_interval=1,
        execution_timeout=timedelta(seconds=30),
    )
"""


class World:
    def __init__(self, airflow: PrivateAirflow, folder: Path) -> None:
        self.airflow, self.home, self.began = airflow, folder / "airflow", folder / "began"
        self.stores = {
            name: CheckpointStore.open(folder / name) for name in ("checkpoint", "deferred")
        }

    def state(self, run: DagRun, task_id: str) -> str | None:
        query = "select state from task_instance where run_id = ? and task_id = ?"
        with sqlite3.connect(self.home / "airflow.db", timeout=60) as database:
            found = database.execute(query, (run.run_id, task_id)).fetchone()
        return found[0] if found else None

    def until(self, run: DagRun, task_id: str, *states: str) -> None:
        wait_until(
            lambda: self.state(run, task_id) in states,
            timeout=PATIENCE_S,
            every=0.5,
            what=f"{task_id} to be {states}, not {self.state(run, task_id)}",
        )

    def log(self, run: DagRun, task_id: str) -> str:
        found = (self.home / "logs").rglob(f"run_id={run.run_id}/task_id={task_id}/*.log")
        return "".join(each.read_text(errors="replace") for each in found)


@pytest.fixture
def world(
    kafka_broker: EmbeddedKafka, topic: Callable[..., str], tmp_path: Path
) -> Iterator[World]:
    dags, app = tmp_path / "dags", tmp_path / "app.py"
    dags.mkdir()
    began = tmp_path / "began"
    app.write_text(
        f"import pathlib, time\npathlib.Path({str(began)!r}).touch()\ntime.sleep(3600)\n"
    )
    told = {name: str(tmp_path / name) for name in ("checkpoint", "deferred")}
    for place in told.values():
        Path(place).mkdir()
    (dags / "stream.py").write_text(DAGS.format(app=str(app), topic=topic("outage"), **told))
    with PrivateAirflow(tmp_path / "airflow", dags) as airflow:
        kafka = {"bootstrap.servers": kafka_broker.bootstrap_servers}
        airflow.start(
            connections={
                "kafka_default": {"conn_type": "kafka", "extra": kafka},
                "spark_default": {"conn_type": "spark", "host": "local[1]"},
            },
            settings={},
            # A supervisor ends its task after so many; each takes some seconds.
            environment={"AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "20"},
        )
        airflow.wait_until_ready({"stream", "deferred"})
        yield World(airflow, tmp_path)


def of(run: DagRun, dag_id: str, phase: Phase = "waiting", **said: Any) -> Heartbeat:
    us = StartedBy(dag_id=dag_id, task_id="run", run_id=run.run_id, map_index=-1, submission="s1")
    return heartbeat(phase, term=1, started_by=us, batch_id=None, **said)


def server_is_away_from(world: World, run: DagRun, task_id: str, *, once: str) -> None:
    """Kill Airflow's server once the task has said this; start another one that it asks again."""
    said = lambda words: words in world.log(run, task_id)  # noqa: E731
    wait_until(lambda: said(once), timeout=PATIENCE_S, every=0.5, what=f"a look of {task_id}")
    server = world.airflow._processes["api-server"]
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    asked = "Airflow did not answer; asking again"
    wait_until(lambda: said(asked), timeout=PATIENCE_S, every=0.5, what="no answer")
    world.airflow._spawn("api-server")


def test_who_waits_for_a_driver_outlasts_an_outage_of_airflows_own_server(world: World) -> None:
    """`started` died of it, and the run was red after a correct delivery; so did `watch`."""
    run, store = world.airflow.api.trigger("stream"), world.stores["checkpoint"]
    # What comes before an operator and after it is Airflow's own: an outage there costs a try.
    wait_until(world.began.exists, timeout=PATIENCE_S, every=0.5, what="the app to begin")
    server_is_away_from(world, run, "started", once="Poking callable")
    with beating(store, of(run, "stream"), every_s=0.2):
        world.until(run, "started", "success", "failed")
        assert world.state(run, "started") == "success"
        server_is_away_from(world, run, "watch", once="the driver started")
    write_heartbeat(store, of(run, "stream", "stopped", end="finished"))
    world.until(run, "watch", "success", "failed")
    assert world.state(run, "watch") == "success"
    assert [world.log(run, each).count("Traceback") for each in ("started", "watch")] == [0, 0]


def test_a_deferred_task_ends_at_its_execution_timeout_and_stops_its_app(world: World) -> None:
    """It ran for ever: Airflow counts none of the time in which a task is deferred."""
    run, store = world.airflow.api.trigger("deferred"), world.stores["deferred"]

    def drives(ended: threading.Event) -> None:
        n, stopped = 0, False
        while not stopped and not ended.wait(0.2):
            n, stopped = n + 1, request_to(store, "s1") is not None
            phase: Phase = "stopped" if stopped else "waiting"
            write_heartbeat(store, of(run, "deferred", phase, beat_at_ms=n))

    with beside(drives):
        world.until(run, "run", "deferred")
        world.until(run, "run", "failed", "success")
        assert world.state(run, "run") == "failed"
    asked = request_to(store, "s1")
    assert asked is not None
    assert (asked.requested_by, "execution_timeout" in asked.reason) == (BY_AIRFLOW, True)
    assert "ran into its execution_timeout" in world.log(run, "run")
