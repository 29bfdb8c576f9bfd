"""A real Airflow on PostgreSQL: its processes, killed and started again, and what is stored."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, LiteralString, Self

import psutil
import psycopg

ROOT = Path(__file__).parents[2]
AIRFLOW = str(Path(sys.executable).with_name("airflow"))
SERVICES = ("api-server", "dag-processor", "scheduler", "triggerer")


class RealAirflow:
    """All services of an Airflow, each a process, in a home of its own."""

    def __init__(self, home: Path, port: int, dags: Path, database: str, **more: str) -> None:
        """``database`` is ``postgresql://…``: SQLite has no row locks, on which Airflow relies.

        ``more`` is environment.
        """
        self.home, self.port, self._database = home, port, database
        self.kills = 0
        alchemy = database.replace("postgresql://", "postgresql+psycopg://")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._orphans: dict[str, int] = {}
        here = f"http://127.0.0.1:{port}"
        settings = {
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__DAGS_FOLDER": str(dags),
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": "2",
            "CORE__FERNET_KEY": base64.urlsafe_b64encode(b"f" * 32).decode(),
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "CORE__EXECUTION_API_SERVER_URL": f"{here}/execution/",
            "API__HOST": "127.0.0.1",
            "API__PORT": str(port),
            "API__BASE_URL": here,
            "API__WORKERS": "1",
            "API__SECRET_KEY": "of a test",
            "API_AUTH__JWT_SECRET": "of a test, and long enough for its algorithm",
            "DATABASE__SQL_ALCHEMY_CONN": alchemy,
            "DATABASE__SQL_ALCHEMY_CONN_ASYNC": alchemy,
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
            # The dead are noticed in seconds, where the defaults are minutes.
            "SCHEDULER__JOB_HEARTBEAT_SEC": "1",
            "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "20",
            "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "45",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
            "TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
            "LOGGING__LOGGING_LEVEL": "INFO",
        }
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")},
            "AIRFLOW_HOME": str(home),
            "PYTHONPATH": str(ROOT),
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
            **more,
        }

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [AIRFLOW, "db", "migrate"],
            env=self._environment,
            check=True,
            capture_output=True,
            timeout=300,
        )
        for service in SERVICES:
            self.start(service)
            if service == "api-server":  # or the first tasks fail for want of it
                self._wait_for_answers()
        return self

    def __exit__(self, *_: object) -> None:
        for service, process in self._processes.items():
            _end(process.pid)
            process.wait()
            _end(self._orphans.get(service))
        # An app that a test has not ended has a session of its own.
        for each in psutil.process_iter():
            with suppress(psutil.Error):
                if each.environ().get("AIRFLOW_HOME") == str(self.home):
                    each.kill()

    def start(self, service: str) -> None:
        with (self.home / f"{service}.log").open("ab") as log:
            process = subprocess.Popen(
                [AIRFLOW, service],
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes[service] = process

    def kill(self, service: str) -> None:
        """Kill the service and not its children: they go on, as orphans, until the next kill."""
        process = self._processes[service]
        _end(self._orphans.pop(service, None))
        assert process.poll() is None, f"{service} had ended by itself: {self.log(service)}"
        process.kill()
        process.wait()
        self._orphans[service] = process.pid
        self.kills += 1

    def log(self, service: str) -> str:
        return (self.home / f"{service}.log").read_text(errors="replace")[-4000:]

    def events(self, asset: str) -> list[Any]:
        """The ``extra`` of every event of the asset, in the order in which they were stored."""
        query = (
            "select e.extra from asset_event e join asset a on a.id = e.asset_id "
            "where a.name = %s order by e.id"
        )
        return [extra for (extra,) in self.rows(query, asset)]

    def rows(self, query: LiteralString, *given: Any) -> list[Any]:
        with psycopg.connect(self._database) as database:
            return database.execute(query, given).fetchall()

    def _wait_for_answers(self) -> None:
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(1)
            else:
                return
        raise AssertionError(self.log("api-server"))

    def trigger(self, dag_id: str) -> None:
        """Start one run, as a person does."""
        subprocess.run(
            [AIRFLOW, "dags", "trigger", dag_id],
            env=self._environment,
            check=True,
            capture_output=True,
            timeout=300,
        )

    def clean(self, before: str) -> None:
        """Let Airflow's own housekeeping delete what is older."""
        subprocess.run(
            [AIRFLOW, "db", "clean", "--clean-before-timestamp", before, "--yes", "--skip-archive"],
            env=self._environment,
            check=True,
            capture_output=True,
            timeout=300,
        )

    def wait_for_dag(self, dag_id: str, timeout: float = 500) -> None:
        deadline = time.monotonic() + timeout
        while not self.rows("select 1 from dag where dag_id = %s", dag_id):
            assert time.monotonic() < deadline, self.log("dag-processor")
            time.sleep(1)


def _end(group: int | None) -> None:
    """Kill whoever is left of a process group that was started here."""
    if group is not None:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
