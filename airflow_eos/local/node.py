"""One broker process: format its storage, start it, stop it, kill it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.embedded import guarded
from airflow_eos.local.jars import broker_jars
from airflow_eos.local.java import java_program, logging_jars
from airflow_eos.local.layout import Node

_HERE = Path(__file__).parent
_STOP_SECONDS = 30.0  # a clean stop moves leaders away and flushes; usually it takes one second


def class_path() -> str:
    """The broker's jars, fetched the first time, and those it logs through.

    Raises:
        LocalEnvironmentError: no Java, no pyspark or no network.
    """
    return os.pathsep.join(str(path) for path in (*logging_jars(), *broker_jars()))


class BrokerProcess:
    """The process of one node; its folders outlive it.

    Args:
        node: id, folders and ports.
        heap_mb: maximum Java heap in MiB.
        java_options: further options of the JVM, which win over ours.
        kept: its data stays where the process that wanted it is gone.
    """

    def __init__(
        self, node: Node, heap_mb: int, java_options: Sequence[str] = (), *, kept: bool = False
    ) -> None:
        self.node = node
        self._removed = node.data / "nothing" if kept else node.data
        self._heap_mb = heap_mb
        self._java_options = tuple(java_options)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start_format(
        self, properties: str, cluster_id: str, features: Mapping[str, int]
    ) -> subprocess.Popen[bytes]:
        """Write ``server.properties`` and start to format the storage; the caller waits for it.

        Storage that is formatted already stays as it is.

        Args:
            properties: text of ``server.properties``.
            cluster_id: the same for every node.
            features: levels of features that differ from the release's own.
        """
        self.node.data.mkdir(parents=True, exist_ok=True)
        self.node.logs.mkdir(parents=True)
        self._properties.write_text(properties, encoding="utf-8")
        levels = [item for name, level in features.items() for item in ("-f", f"{name}={level}")]
        arguments = ["format", "-g", "-t", cluster_id, "-c", str(self._properties), *levels]
        return self._spawn("kafka.tools.StorageTool", arguments, "format.log")

    def start(self) -> None:
        """Start the broker; it is not ready yet when this returns.

        Raises:
            LocalEnvironmentError: it runs already.
        """
        if self.running:
            raise LocalEnvironmentError(
                f"broker {self.node.id} runs already: stop or kill it before it is started again"
            )
        self._process = self._spawn("kafka.Kafka", [str(self._properties)], "stdout.log")

    def stop(self) -> bool:
        """End the broker as an administrator would; False where it had to be killed after all."""
        if self._process is None:
            return True
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def kill(self) -> None:
        """End the broker with SIGKILL, guard and all, and wait until it is gone."""
        if self._process is None:
            return
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def format_tail(self) -> str:
        """What the formatting said last."""
        return self._tail("format.log") or "(no output)"

    def log_tail(self, lines: int = 5) -> str:
        """The last lines that tell why the broker ended, from its log, else from its output."""
        return self._tail("server.log", lines) or self._tail("stdout.log", lines) or "(no output)"

    def _tail(self, name: str, lines: int = 5) -> str:
        path = self.node.logs / name
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        kept = [line for line in text.splitlines() if not line.startswith("\tat ")]
        return "\n".join(kept[-lines:])

    @property
    def _properties(self) -> Path:
        return self.node.data / "server.properties"

    def _spawn(self, main: str, arguments: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        java = [
            java_program(),
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",  # starts faster and takes less memory than G1 on a small heap
            "-XX:-UsePerfData",  # leaves no file in the system's temporary folder
            # A broker of minutes gains nothing from the optimising compiler, and it costs half the
            # CPU of a start.
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            "-Xlog:cds*=off",  # an archive of another Java is no news
            f"-Dlog4j2.configurationFile={_HERE / 'log4j2.xml'}",
            f"-Deos.log.dir={self.node.logs}",
            *("-cp", class_path()),
            *self._java_options,
        ]
        return guarded([*java, main, *arguments], folder=self._removed, log=self.node.logs / log)
