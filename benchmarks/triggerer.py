"""Runs ``airflow triggerer`` with a database of its own, and gives it deferred tasks.

The tasks do not run: the rows of a deferred task, a task instance and its trigger, are written as
Airflow writes them. All that follows is Airflow's own.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from airflow_eos.local.broker import free_ports
from benchmarks.report import ROOT

DAG = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("watched", schedule=None):
    for number in range({tasks}):
        EmptyOperator(task_id=str(number))
"""
_READY_S = 120.0
Defer = Callable[[Sequence[Any]], None]
"""A function that defers the tasks, each with its trigger."""


@dataclass(frozen=True)
class Triggerer:
    """A running triggerer."""

    process: psutil.Process
    database: Path

    def cpu_s(self) -> float:
        """Return the CPU seconds of the triggerer's processes."""
        return sum(
            each.user + each.system
            for process in (self.process, *self.process.children(recursive=True))
            for each in [process.cpu_times()]
        )

    def wait_until_alive(self) -> None:
        """Wait for the triggerer's first heartbeat."""
        self._wait("SELECT count(*) FROM job WHERE latest_heartbeat IS NOT NULL")

    def wait_until_all_watch(self) -> None:
        """Wait until the triggerer has taken every trigger."""
        self._wait("SELECT count(*) = 0 FROM trigger WHERE triggerer_id IS NULL")

    def resumed(self) -> dict[int, float]:
        """Return the tasks whose triggers have fired, and when, in seconds since the epoch."""
        query = "SELECT task_id, scheduled_dttm FROM task_instance WHERE state = 'scheduled'"
        return {
            int(task): datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()
            for task, at in self._rows(query)
        }

    def _wait(self, query: str) -> None:
        deadline = time.monotonic() + _READY_S
        while self._rows(query) != [(1,)]:
            if time.monotonic() > deadline or not self.process.is_running():
                raise SystemExit(f"The triggerer did not come so far within {_READY_S} s: {query}")
            time.sleep(0.5)

    def _rows(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self.database, timeout=30)) as database:
            return database.execute(query).fetchall()


@contextmanager
def triggerer(
    home: Path, tasks: int
) -> Iterator[tuple[Triggerer, Callable[[Sequence[Any]], None]]]:
    """Start a triggerer with a DAG of so many tasks; yield it, and a function to defer them."""
    dags = home / "dags"
    dags.mkdir(parents=True)
    (dags / "watched.py").write_text(DAG.format(tasks=tasks))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(*free_ports(1)),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "PYTHONPATH": str(ROOT),
    }
    airflow = [sys.executable, "-m", "airflow"]
    for arguments in (["db", "migrate"], ["dags", "reserialize"]):
        subprocess.run([*airflow, *arguments], env=environment, check=True, capture_output=True)

    def defer(triggers: Sequence[Any]) -> None:
        told = json.dumps([each.serialize() for each in triggers])
        command = [sys.executable, "-m", __name__]
        subprocess.run(command, input=told, env=environment, check=True, text=True, cwd=ROOT)

    with (home / "triggerer.log").open("w") as log:
        process = subprocess.Popen(
            [*airflow, "triggerer"], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        started = Triggerer(psutil.Process(process.pid), home / "airflow.db")
        started.wait_until_alive()
        yield started, defer
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()


def main() -> None:
    """Defer the tasks with the triggers on stdin, in a process with the triggerer's Airflow."""
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    told = json.load(sys.stdin)
    with create_session() as session:
        serialized = SerializedDagModel.get("watched", session=session)
        assert serialized is not None
        run = serialized.dag.create_dagrun(
            run_id="watched",
            run_after=datetime.now(UTC),
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state=DagRunState.RUNNING,
            session=session,
        )
        for task in run.get_task_instances(session=session):
            trigger = Trigger(*told[int(task.task_id)])
            session.add(trigger)
            session.flush()
            task.state, task.trigger_id = TaskInstanceState.DEFERRED, trigger.id
            task.next_method, task.next_kwargs = "execute_complete", {}


if __name__ == "__main__":
    main()
