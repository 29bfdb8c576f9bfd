"""A Spark standalone cluster: a master, and workers that are machines of their own."""

from __future__ import annotations

import http.client
import importlib.util
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.embedded import Embedded
from airflow_eos.local.layout import HOST, free_ports
from airflow_eos.local.machine import Machine

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_DAEMON = {
    "SPARK_DAEMON_MEMORY": "192m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "SPARK_LOCAL_IP": HOST,
}


class EmbeddedStandalone(Embedded):
    """A master and some workers; each in a session, a folder and a bare environment of its own.

    No process of theirs inherits anything of ours: a Python worker is what ``python3`` is on a bare
    ``PATH``, or what the app brings along.

    Args:
        workers: how many at the start; at least 1.
        cores, memory_mb: what each offers.

    Attributes:
        workers: those that were not lost.

    Raises:
        LocalEnvironmentError: from ``start``: no Java, no pyspark, or it does not come up.
    """

    def __init__(self, workers: int = 3, *, cores: int = 1, memory_mb: int = 1024) -> None:
        self._count = workers
        self._offer = ("--cores", str(cores), "--memory", f"{memory_mb}m")
        self._names = itertools.count(1)
        self._master: Machine | None = None
        self._port = self._page = 0
        self.workers: list[Machine] = []

    @property
    def url(self) -> str:
        """For ``--master``."""
        return f"spark://{HOST}:{self._port}"

    def start(self) -> None:
        """Start all of it; returns when each worker has registered."""
        self._port, self._page = free_ports(2)
        self._master = Machine("master")
        ports = ("--host", HOST, "--port", str(self._port), "--webui-port", str(self._page))
        self._master.run(
            [spark_class(), _MASTER, *ports], lambda: self._alive() is not None, env=_world()
        )
        try:
            with ThreadPoolExecutor(self._count) as at_once:
                list(at_once.map(lambda _: self.add_worker(), range(self._count)))
        except BaseException:  # Ctrl-C too must leave nothing behind
            self.close()
            raise

    def add_worker(self) -> Machine:
        """One more machine; returns when it has registered."""
        machine = Machine(f"worker-{next(self._names)}")
        (port,) = free_ports(1)
        work = machine.folder / "work"
        command = [spark_class(), _WORKER, "--host", HOST, "--port", str(port), *self._offer]
        command += ["--webui-port", "0", "--work-dir", str(work), self.url]
        self.workers.append(machine)
        scratch = {"SPARK_LOCAL_DIRS": str(machine.folder / "scratch")}
        machine.run(command, partial(self._knows, port), env=_world() | scratch)
        return machine

    def lose(self, machine: Machine) -> None:
        """Lose a worker, with its executors and their Python workers."""
        machine.lose()
        self.workers.remove(machine)
        machine.close()

    def close(self) -> None:
        """End all of it and remove its folders. Closing twice is harmless."""
        for machine in self.workers:
            machine.close()
        self.workers.clear()
        if self._master is not None:
            self._master.close()
            self._master = None

    def executors(self) -> int:
        """How many run for the app that runs; 0 where none does."""
        state = self._state() or {}
        return sum(
            each["coresused"] > 0 for each in state.get("workers", ()) if each["state"] == "ALIVE"
        )

    def _knows(self, port: int) -> bool:
        return port in (self._alive() or ())

    def _alive(self) -> list[int] | None:
        """The ports of the workers that the master has; None where it does not answer yet."""
        state = self._state()
        if state is None:
            return None
        return [int(each["port"]) for each in state["workers"] if each["state"] == "ALIVE"]

    def _state(self) -> dict[str, Any] | None:
        page = http.client.HTTPConnection(HOST, self._page, timeout=5)
        try:
            page.request("GET", "/json/")
            return dict(json.loads(page.getresponse().read()))
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            page.close()


def spark_home() -> Path:
    """Of the installed pyspark.

    Raises:
        LocalEnvironmentError: pyspark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LocalEnvironmentError(
            "pyspark is not installed: pip install 'airflow-provider-eos[spark]'"
        )
    return Path(spec.origin).parent


def spark_class() -> str:
    """The program that runs a class of Spark."""
    return str(spark_home() / "bin" / "spark-class")


def _world() -> dict[str, str]:
    return {"SPARK_HOME": str(spark_home()), **_DAEMON}
