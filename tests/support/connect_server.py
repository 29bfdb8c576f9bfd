"""A Spark Connect server with the jar of ``format("eos")``, and clients of it.

What drives a query there is a process that the server starts: where it dies is told by a file that
the process reads when it starts, since a server outlives many of them.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyspark
from pyspark.sql.connect.session import SparkSession

from airflow_eos.local import spark_jars
from airflow_eos.sinks.format import JAR
from tests.support.jvm import spark_submit_opts

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
JARS = ",".join(map(str, (*spark_jars(), JAR)))
_DRIVER = "airflow_eos.sinks.format"


def environment(folder: Path) -> dict[str, str]:
    """Of a JVM whose drivers are told by ``folder`` where to die."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\n. "{folder}/failpoints"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (folder / "failpoints").touch()
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": spark_submit_opts(),
    }


def die_at(folder: Path, failpoints: str, **more: str) -> None:
    """Let the next driver die there, once: ``decided=kill``; ``more`` of its environment."""
    told = {"EOS_FAILPOINTS": failpoints, "EOS_FAILPOINTS_DIR": str(folder), **more}
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in told.items()]
    (folder / "failpoints").write_text("".join(lines))
    for hit in folder.glob("*.hit"):
        hit.unlink()


class ConnectServer:
    """The server's process."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = port or free.getsockname()[1]
        conf = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": self.port,
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
        }
        self._log = (folder / "server.log").open("a")
        self._process = subprocess.Popen(
            [
                *(str(SPARK / "bin" / "spark-submit"), "--master", "local[2]", "--jars", JARS),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *(word for pair in conf.items() for word in ("--conf", "=".join(map(str, pair)))),
                "spark-internal",
            ],
            env=environment(folder),
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    @property
    def remote(self) -> str:
        """Where clients find it; waits until they do."""
        until = time.monotonic() + 120
        while self._process.poll() is None and time.monotonic() < until:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return f"sc://127.0.0.1:{self.port}"
            time.sleep(0.1)
        raise AssertionError((self.folder / "server.log").read_text()[-6000:])

    @contextmanager
    def client(self) -> Iterator[SparkSession]:
        """A session of its own."""
        session = SparkSession.builder.remote(self.remote).create()
        try:
            yield session
        finally:
            session.client.set_retry_policies([])  # a server that was killed says nothing more
            session.stop()

    def drivers(self) -> list[psutil.Process]:
        """The processes that drive queries."""
        found = psutil.Process(self._process.pid).children(recursive=True)
        return [
            each
            for each in found
            if each.status() != psutil.STATUS_ZOMBIE and _DRIVER in each.cmdline()
        ]

    def kill_jvm(self) -> None:
        """The JVM alone: who drives its queries is left behind."""
        self._process.kill()
        self._process.wait(60)

    def close(self) -> None:
        """End it, with all that it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)
        self._log.close()


@contextmanager
def connect_server(folder: Path, port: int = 0) -> Iterator[ConnectServer]:
    """A server for a while, on a free port where none is given."""
    folder.mkdir(parents=True, exist_ok=True)
    server = ConnectServer(folder, port)
    try:
        yield server
    finally:
        server.close()


def start(
    session: SparkSession,
    source: Mapping[str, str],
    checkpoint: str,
    options: Mapping[str, Any],
    *columns: str,
    trigger: Mapping[str, Any] | None = None,
) -> Any:
    """Start a query of a client from one topic into ``format("eos")``; until all is read."""
    rows = session.readStream.format("kafka").options(**source).load()
    return (
        rows.selectExpr(*(columns or ("key", "value")))
        .writeStream.format("eos")
        .options(**options)
        .option("checkpointLocation", checkpoint)
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
