"""A private Airflow with its own home: starts its four processes, and ends them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.broker import HOST, free_ports
from demo.leftovers import end_every_process_with
from demo.patience import Patience
from demo.rest import AirflowApi

PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")
_END_S = 10.0


class PrivateAirflow:
    """Airflow with a real scheduler, listening on this machine only; a context manager.

    Args:
        home: folder for its database and logs; only the owner of its parent may read the secrets.
        dags: the DAGs folder.
        parallelism: how many tasks may run at a time.
        tell: called with a message where Airflow is slow to answer.

    Attributes:
        url: address of the user interface, without a login.
        api: client of its REST API.
    """

    def __init__(
        self,
        home: Path,
        dags: Path,
        *,
        parallelism: int = 4,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        if importlib.util.find_spec("airflow") is None:
            raise LocalEnvironmentError(
                "Airflow is not installed: pip install 'airflow-provider-eos[airflow,spark]', or "
                "use `make demo` in a clone, which installs everything."
            )
        self._home = home
        [port, triggerer_port, worker_port] = free_ports(3)
        self.url = f"http://{HOST}:{port}"
        self.api = AirflowApi(self.url, tell=tell, check=self._require_alive)
        self._env = os.environ | _settings(home, dags, port, parallelism)
        self._env |= {
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(triggerer_port),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_port),
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        """Begin to create the database; the caller may use the seconds that this takes."""
        self._home.mkdir(parents=True)
        self._spawn("db", "migrate")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of Airflow and its children; closing twice is harmless."""
        for process in self._processes.values():
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + _END_S
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            _signal_group(process, signal.SIGKILL)
            process.wait()
        # Tasks and the apps that they started have process groups of their own.
        end_every_process_with(f"AIRFLOW_HOME={self._home}")

    def start(
        self,
        *,
        connections: Mapping[str, Mapping[str, Any]],
        settings: Mapping[str, Any],
        noticed_s: int | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start every part of Airflow; the parts are not ready yet when this returns.

        Args:
            connections: id → connection, in Airflow's JSON form.
            settings: environment variables for the DAG files: name → value, as JSON.
            noticed_s: seconds without a heartbeat after which a task is dead; None: Airflow's 300.
            environment: further environment variables for every part.

        Raises:
            LocalEnvironmentError: the database could not be created.
        """
        for name, connection in connections.items():
            self._env[f"AIRFLOW_CONN_{name.upper()}"] = json.dumps(connection)
        for name, value in settings.items():
            self._env[name] = json.dumps(value)
        if noticed_s is not None:
            self._env |= {
                "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(noticed_s),
                "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
                "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "3",
            }
        self._env |= environment
        if self._processes["db"].wait() != 0:
            raise LocalEnvironmentError(
                f"Airflow could not create its database:\n{self._tail('db')}"
            )
        for part in PARTS:
            self._spawn(part)

    def wait_until_ready(self, dags: set[str]) -> None:
        """Return when every part is healthy and these DAGs are known and unpaused.

        Raises:
            LocalEnvironmentError: a part has ended, a DAG cannot be imported, or nothing changes.
        """
        patience = Patience("Airflow to start and to read its DAGs")
        known: set[str] = set()
        while not (self.api.healthy() and dags <= (known := self.api.known_dags())):
            self._require_alive()
            patience.see((self.api.health(), known))
            time.sleep(0.5)
        for error in self.api.import_errors():
            raise LocalEnvironmentError(f"A DAG file cannot be imported:\n{error}")
        for dag_id in sorted(dags):
            self.api.unpause(dag_id)

    def _require_alive(self) -> None:
        for part in PARTS:
            if self._processes[part].poll() is not None:
                raise LocalEnvironmentError(f"Airflow's {part} has ended:\n{self._tail(part)}")

    def _spawn(self, part: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._home / f"{part}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", part, *arguments],
                env=self._env,
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, so that its children end with it
            )
        self._processes[part] = process
        return process

    def _tail(self, part: str) -> str:
        text = (self._home / f"{part}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-10:])


def _settings(home: Path, dags: Path, port: int, parallelism: int) -> dict[str, str]:
    sections: dict[str, dict[str, object]] = {
        "CORE": {
            "DAGS_FOLDER": dags,
            "LOAD_EXAMPLES": False,
            "EXECUTOR": "LocalExecutor",
            "PARALLELISM": parallelism,
            "SIMPLE_AUTH_MANAGER_ALL_ADMINS": True,
            "EXECUTION_API_SERVER_URL": f"http://{HOST}:{port}/execution/",
            "FERNET_KEY": "",
        },
        "API": {"HOST": HOST, "PORT": port, "BASE_URL": f"http://{HOST}:{port}", "WORKERS": 1},
        "API_AUTH": {"JWT_SECRET": secrets.token_hex(32)},
        "DATABASE": {"SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}"},
        "DAG_PROCESSOR": {"MIN_FILE_PROCESS_INTERVAL": 3600, "PARSING_PROCESSES": 1},
        "USAGE_DATA_COLLECTION": {"ENABLED": False},
    }
    environment = {
        f"AIRFLOW__{section}__{name}": str(value)
        for section, entries in sections.items()
        for name, value in entries.items()
    }
    environment["AIRFLOW__API__SECRET_KEY"] = secrets.token_hex(32)
    environment["AIRFLOW_HOME"] = str(home)
    # Else setproctitle wipes the environment in ps, by which the workers are found and ended.
    environment["SPT_NOENV"] = "1"
    # find-spark-home and the tasks must find this environment's programs first.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return environment


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
