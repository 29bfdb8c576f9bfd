"""A stream older than Airflow keeps its rows: they are deleted under it, and it comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_eos.core.checkpoint import CheckpointStore, read_heartbeat, read_state
from airflow_eos.local import EmbeddedKafka, spark_jars
from airflow_eos.local.broker import free_ports
from airflow_eos.recovery import audit
from tests.integration.airflow.test_drill import environment
from tests.integration.airflow.test_settled_events import database
from tests.support.real_airflow import RealAirflow

__all__ = ["database", "environment"]
pytestmark = [
    pytest.mark.usefixtures("connections"),
    pytest.mark.proof,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]

ROWS = 500
PATIENCE_S = 420
DAGS = """
from airflow_eos.factory import eos_pipeline
from airflow_eos.factory.drill import SCRATCH

run, recovery, watchdog = eos_pipeline(
    dag_id="stream",
    application=SCRATCH["application"],
    checkpoint={checkpoint!r},
    prefix={input!r},
    input_topic={input!r},
    output_topic={output!r},
    jars={jars!r},
    stall_after=20,
    conf={{"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}},
)
"""


class Stream:
    """The pipeline, as the world around it sees it."""

    def __init__(self, broker: EmbeddedKafka, names: tuple[str, str], folder: Path) -> None:
        self.broker, (self.input, self.output) = broker, names
        self.store = CheckpointStore.open(folder)
        self.written = 0

    def write(self) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers})
        for number in range(self.written, self.written + ROWS):
            producer.produce(self.input, key=str(number), value=str(number))
        assert producer.flush(60) == 0
        self.written += ROWS

    def audit(self) -> Any:
        return audit(
            {"bootstrap.servers": self.broker.bootstrap_servers},
            self.input,
            self.output,
            id_expression="key",
            checkpoint=self.store.location,
        )

    def has_all(self) -> bool:
        if read_state(self.store).query_id is None:
            return False  # nothing has begun, of which an audit says nothing
        return bool(self.audit().ok)

    def driver(self) -> str | None:
        beat = read_heartbeat(self.store)
        return None if beat is None else beat.application_id


def wait(until: Callable[[], bool], what: str, airflow: RealAirflow) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline, f"{what}: {airflow.log('scheduler')}"
        time.sleep(2)


def grown_old(airflow: RealAirflow) -> None:
    """What a month and ten days make of a run that goes on."""
    runs = """update dag_run set start_date = start_date - interval '40 days',
        run_after = run_after - interval '40 days' where dag_id = 'stream' returning 1"""
    tasks = """update task_instance set start_date = start_date - interval '40 days'
        where dag_id = 'stream' returning 1"""
    xcoms = """update xcom set timestamp = timestamp - interval '40 days'
        where dag_id = 'stream' returning 1"""
    for change in (runs, tasks, xcoms):
        assert airflow.rows(change)


@pytest.mark.parametrize("deferred", [False, True], ids=["watched by its task", "deferred"])
def test_a_stream_whose_rows_airflow_deleted_is_brought_back_and_nobody_called_it_a_wish(
    tmp_path: Path,
    database: str,
    kafka_broker: EmbeddedKafka,
    topic: Callable[..., str],
    environment: dict[str, str],
    deferred: bool,
) -> None:
    names = (topic("old", 2), topic("clean", 2))
    stream = Stream(kafka_broker, names, tmp_path / "checkpoint")
    dags = tmp_path / "dags"
    dags.mkdir()
    told = {"checkpoint": str(tmp_path / "checkpoint"), "input": names[0], "output": names[1]}
    jars = ",".join(str(jar) for jar in spark_jars())
    (dags / "stream.py").write_text(DAGS.format(**told, jars=jars))
    environment |= {
        "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": str(deferred),
        "AIRFLOW__CORE__PARALLELISM": "4",
    }
    [port] = free_ports(1)
    with RealAirflow(tmp_path / "home", port, dags, database, **environment) as airflow:
        for dag_id in ("stream", "stream_recovery", "stream_watchdog"):
            airflow.wait_for_dag(dag_id)
        stream.write()
        airflow.trigger("stream")
        wait(stream.has_all, "the first rows to be delivered", airflow)
        if deferred:
            state = "select state from task_instance where dag_id = 'stream' and task_id = 'run'"
            wait(lambda: airflow.rows(state) == [("deferred",)], "the task to defer", airflow)
        first = stream.driver()

        grown_old(airflow)
        airflow.clean((datetime.now(UTC) - timedelta(days=30)).isoformat())
        gone = "select 1 from dag_run where dag_id = 'stream' and run_id like 'manual__%%'"
        assert airflow.rows(gone) == [], "what this is about: a run that is under way is deleted"

        beat = None

        def drained() -> bool:
            nonlocal beat
            beat = read_heartbeat(stream.store)
            return beat is not None and (beat.phase == "stopped" or beat.application_id != first)

        wait(drained, "the app to be drained in the name of its task", airflow)
        began = time.monotonic()
        stream.write()  # now: the first one delivers what comes while it drains
        if beat is not None and beat.application_id == first:
            assert beat.drained_by == "airflow"
            assert "a user has stopped" not in str(beat.reason), "nobody knows that"
        wait(stream.has_all, "another driver to deliver what came meanwhile", airflow)
        print(f"down for {time.monotonic() - began:.0f} s")  # noqa: T201 - the figure

        assert stream.driver() != first
        report = stream.audit()
        assert (report.ok, report.rows_in, report.open_rows) == (True, 2 * ROWS, 0)
        by = airflow.rows("select run_id from dag_run where dag_id = 'stream'")
        assert [run_id for (run_id,) in by] == [f"resume__{first}__0"], "brought back once"
