"""A broker, a private Airflow, and pipelines to be killed in it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    Heartbeat,
    newest_term,
    read_heartbeat,
    request_drain,
)
from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.local import EmbeddedKafka, spark_jars
from airflow_eos.recovery import AuditReport, audit
from demo.airflow import PARTS, PrivateAirflow
from demo.leftovers import end_every_process_with, processes_with
from demo.orders import ORDER_ID_HEADER, write_orders
from demo.rest import DagRun
from tests.support.jvm import spark_submit_opts
from tests.support.pipeline import wait_until

ROOT = Path(__file__).parents[2]
DAGS = {"kills_attended", "kills_deferred", "kills_timed"}
ROWS = 4000
PATIENCE_S = 240
NOTICED_S = 20
"""After this long without a task's heartbeat Airflow calls it dead; by default 300."""


@dataclass(frozen=True)
class Stage:
    """Where the pipelines run."""

    broker: EmbeddedKafka
    airflow: PrivateAirflow
    folder: Path

    def pipeline(self, name: str) -> Pipeline:
        """One with topics and a checkpoint of its own, and rows to read."""
        made = Pipeline(self, name, self.folder / name / "checkpoint")
        made.checkpoint.mkdir(parents=True)
        for topic in (made.input, made.output, made.rejected):
            self.broker.create_topic(topic, 2)
        write_orders(self.broker.bootstrap_servers, made.input, ROWS, lambda _: None)
        return made

    def restart(self, part: str) -> None:
        """Kill one of Airflow's processes, alone, and start it again."""
        self.airflow._processes[part].kill()
        self._start_again(part)

    def restart_everything(self) -> None:
        """Kill all that Airflow is and has started, at once, and start Airflow again."""
        home = f"AIRFLOW_HOME={self.airflow._home}"
        kill(*processes_with(home))
        end_every_process_with(home)  # one that was just being started
        for part in PARTS:
            self._start_again(part)

    def _start_again(self, part: str) -> None:
        process = self.airflow._processes[part]
        process.wait()
        log = self.airflow._home / f"{part}.log"
        log.rename(log.with_name(f"{part}-{process.pid}.log"))
        self.airflow._spawn(part)


@dataclass
class Pipeline:
    """One app, its run in Airflow, and what can be seen of both."""

    stage: Stage
    name: str
    checkpoint: Path
    run: DagRun | None = None

    def __post_init__(self) -> None:
        self.input, self.output = f"{self.name}-in", f"{self.name}-out"
        self.rejected = f"{self.name}-rejected"
        self.store = CheckpointStore.open(self.checkpoint)

    def start(self, dag_id: str) -> None:
        """Trigger its run, and wait until the app delivers."""
        conf = {
            "checkpoint": str(self.checkpoint),
            "input": self.input,
            "output": self.output,
            "rejected": self.rejected,
        }
        answer = self.stage.airflow.api._call(
            "POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf}
        )
        self.run = DagRun(answer["dag_id"], answer["dag_run_id"], answer["state"])
        self.until(lambda: self.committed >= 2, "the app to deliver")

    @property
    def committed(self) -> int:
        return read_state(self.store).latest_commit or 0

    @property
    def heartbeat(self) -> Heartbeat:
        found = read_heartbeat(self.store)
        assert found is not None
        return found

    @property
    def drivers(self) -> int:
        """How many have ever taken a term."""
        return newest_term(self.store)

    @property
    def task(self) -> dict[str, Any]:
        """The task instance, as Airflow's interface shows it."""
        assert self.run is not None
        path = f"/api/v2/dags/{self.run.dag_id}/dagRuns/{self.run.run_id}/taskInstances/run"
        found: dict[str, Any] = self.stage.airflow.api._call("GET", path)
        return found

    def parents(self) -> list[int]:
        """Pids of the driver's: spark-submit, the task's process, its worker, …"""
        return [each.pid for each in psutil.Process(self.heartbeat.pid).parents()]

    def read_all(self) -> bool:
        """Whether every row is behind a committed batch."""
        state = read_state(self.store)
        read = [
            sum(ends.values()) for source in state.sources for ends in (source.end or {}).values()
        ]
        return state.in_flight is None and sum(read) >= ROWS

    def drain(self) -> None:
        """As a person does it, once everything was read; of every driver, until the task ends."""
        self.until(self.read_all, "all rows to be read")
        asked: int | None = None

        def ended() -> bool:
            nonlocal asked
            if (term := self.heartbeat.term) != asked:
                request_drain(self.store, requested_by="kills", reason="all is read", term=term)
                asked = term
            return self.task["state"] in {"success", "failed"}

        self.until(ended, "the task's end")

    def until(self, reached: Any, what: str) -> None:
        """Wait for something."""
        wait_until(reached, timeout=PATIENCE_S, every=0.5, what=f"{self.name}: {what}")

    def audit(self) -> AuditReport:
        """What readers have seen against what was written."""
        return audit(
            {"bootstrap.servers": self.stage.broker.bootstrap_servers},
            self.input,
            self.output,
            id_expression=f"headers.{ORDER_ID_HEADER}",
            dead_letter_topic=self.rejected,
            checkpoint=str(self.checkpoint),
        )


@contextmanager
def stage() -> Iterator[Stage]:
    """Start everything; nothing of it is left at the end, nor where this is ended by SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="airflow-eos-kills-") as name:
        folder = Path(name)
        with (
            PrivateAirflow(folder / "airflow", Path(__file__).parent / "dags") as airflow,
            EmbeddedKafka() as broker,
        ):
            airflow.start(
                connections={
                    "kafka_default": {
                        "conn_type": "kafka",
                        "extra": {"bootstrap.servers": broker.bootstrap_servers},
                    },
                    "spark_default": {"conn_type": "spark", "host": "local[2]"},
                },
                settings={},
                noticed_s=NOTICED_S,
                environment={
                    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
                    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
                    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
                    "KILLS_APPLICATION": str(ROOT / "spark_apps" / "orders_etl.py"),
                    "KILLS_JARS": ",".join(str(jar) for jar in spark_jars()),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_SUBMIT_OPTS": spark_submit_opts(),
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONPATH": str(ROOT),
                },
            )
            airflow.wait_until_ready(DAGS)
            yield Stage(broker, airflow, folder)


def kill(*pids: int) -> None:
    """SIGKILL, all of them before any of them can do something about it."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
