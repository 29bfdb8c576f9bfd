"""A Spark standalone cluster: a master, and workers that are machines of their own."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.broker import HOST, free_ports
from airflow_eos.local.jars import java_program
from airflow_eos.local.process import Embedded, guarded
from tests.support.servers.process import wait_until_ready

_BARE_PATH = "/usr/bin:/bin"
_READY_SECONDS = 150.0  # several machines come up at once, on the two cores of one
_ROUNDS = 50  # of killing what was started while its parent was being killed


class Machine:
    """One machine; its name is that of its folder.

    Args:
        name: for people.

    Attributes:
        folder: its disk: home, logs, and where its programs work.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix=f"airflow-eos-{name}-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What its program says."""
        return self.folder / "log"

    def run(
        self,
        command: Sequence[str],
        answers: Callable[[], bool],
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start the one program that starts all others here; returns when it answers.

        Args:
            command: the program and its arguments.
            answers: whether it is ready.
            env: added to a bare environment: of this process nothing is inherited.

        Raises:
            LocalEnvironmentError: it ended, or was not ready in time.
        """
        world = {
            "PATH": _BARE_PATH,
            "HOME": str(self.folder),
            "JAVA_HOME": str(Path(java_program()).resolve().parents[1]),
            "LANG": "C.UTF-8",
        }
        self._process = guarded(
            command, folder=self.folder, log=self.log, env={**world, **(env or {})}
        )
        try:
            wait_until_ready(
                self._process, answers, called=self.name, log=self.log, seconds=_READY_SECONDS
            )
        except BaseException:  # Ctrl-C too must leave nothing behind
            self.lose()
            raise

    def pids(self) -> list[int]:
        """The processes that are on it now."""
        if self._process is None:
            return []
        return [
            pid
            for pid in _all_pids()
            if _session(pid) == self._process.pid or _works_in(pid, self.folder)
        ]

    def lose(self) -> None:
        """Kill (SIGKILL) all that runs on it; its disk stays as it is. Twice is harmless."""
        if self._process is None:
            return
        for _ in range(_ROUNDS):
            pids = [pid for pid in self.pids() if pid != self._process.pid]
            if not pids:
                break
            for number in (signal.SIGSTOP, signal.SIGKILL):  # a stopped one starts no other
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
        # The guard last: it is the session, and ends by itself once its program has.
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._process = None

    def close(self) -> None:
        """Lose it, and its disk."""
        self.lose()
        shutil.rmtree(self.folder, ignore_errors=True)


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session(pid: int) -> int | None:
    """None where it has ended; a zombie too, which its parent has yet to take away."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    state, _parent, _group, session, *_ = stat.rpartition(")")[2].split()
    return None if state == "Z" else int(session)


def _works_in(pid: int, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(folder)
    except OSError:
        return False


# --- standalone -----------------------------------------------------------------------------------
# A Spark standalone cluster: a master, and workers that are machines of their own.


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
