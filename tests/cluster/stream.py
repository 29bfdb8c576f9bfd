"""One stream on a cluster: its topics, what was fed, how it is submitted, and what became of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from airflow_eos.local import EmbeddedKafka, spark_jars
from airflow_eos.ops.audit.audit import AuditReport, audit
from tests.support.jvm import SHORT_LIVED
from tests.support.pipeline import wait_until
from tests.support.servers.standalone import spark_home
from tests.support.topics import produce, read_topic

APP = Path(__file__).with_name("copy_app.py")
ROOT = Path(__file__).parents[2]
PATIENCE_S = 600
Row = Callable[[str, object], None]


@dataclass
class Stream:
    """Topics, a prefix and a checkpoint of its own.

    Attributes:
        cluster: how the table calls where it runs.
        checkpoint: a path or URL.
        command: what was submitted last.
        record: pytest's ``record_property``, through which the table gets its lines.
        storage_options: to read the checkpoint from here.
    """

    broker: EmbeddedKafka
    folder: Path
    cluster: str
    checkpoint: str
    record: Row
    storage_options: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 3

    def __post_init__(self) -> None:
        self.name = f"c{uuid.uuid4().hex[:8]}"
        self.broker.create_topic(f"{self.name}-in", self.partitions)
        self.broker.create_topic(f"{self.name}-out", self.partitions)
        self.fed = 0
        self.log = self.folder / "submit.log"
        self._since = time.monotonic()
        self.command: list[str] = []
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap_servers

    def feed(self, count: int) -> None:
        """So many more rows, over all partitions."""
        rows = [(f"k{i % 50}", f"{self.name}:{i}") for i in range(self.fed, self.fed + count)]
        produce(self.bootstrap, f"{self.name}-in", rows)
        self.fed += count

    def arguments(self) -> list[str]:
        """What the app is told through Airflow: to read all there is, and stop."""
        told = {
            "input-topic": f"{self.name}-in",
            "output-topic": f"{self.name}-out",
            "trigger": "available-now",
            "max-offsets-per-trigger": "300",
        }
        return [f"--{name}={value}" for name, value in told.items()]

    def submit(
        self,
        master: str,
        conf: Mapping[str, str],
        *,
        options: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
        trigger: str = "200 milliseconds",
        batch: int = 2000,
        kafka: str | None = "bootstrap-servers",
        in_image: bool = False,
        standby: bool = False,
    ) -> subprocess.Popen[bytes]:
        """``spark-submit`` as from a shell; its output goes to ``log``.

        ``kafka`` is None where the app is told by a file; ``in_image`` where app and jars are there
        already, and nothing is sent along.
        """
        # Else spark.pyspark.python would be the driver's, too: it stands above the environment.
        here = {"spark.pyspark.driver.python": sys.executable}
        settings = [f"--conf={name}={value}" for name, value in (here | dict(conf)).items()]
        sent = [] if in_image else ["--jars", ",".join(str(jar) for jar in spark_jars())]
        program = str(spark_home() / "bin" / "spark-submit")
        arguments = {
            "input-topic": f"{self.name}-in",
            "output-topic": f"{self.name}-out",
            **({kafka: self.bootstrap} if kafka else {}),
            "checkpoint": self.checkpoint,
            "prefix": self.name,
            "trigger": trigger,
            "max-offsets-per-trigger": str(batch),
            "transaction-timeout": "2 minutes",
            "batch-within": "30 seconds",
            "recover-within": "30 seconds",
        }
        command = [program, "--master", master, *sent, *settings, *options]
        command += [f"local://{APP}" if in_image else str(APP)]
        command += [f"--{name}={value}" for name, value in arguments.items()]
        command += ["--standby"] if standby else []
        world = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "EOS_"))},
            "PYTHONPATH": str(ROOT),  # of a driver here; no machine of a cluster inherits it
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": SHORT_LIVED,
            **(env or {}),
        }
        world = {name: value for name, value in world.items() if value}
        self.command = command
        with self.log.open("ab") as out:
            process = subprocess.Popen(
                command, env=world, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._running.append(process)
        self.begin()
        return process

    def begin(self) -> None:
        """The table's next seconds are from now."""
        self._since = time.monotonic()

    def visible(self) -> int:
        return len(read_topic(self.bootstrap, f"{self.name}-out"))

    def wait_until_visible(self, process: subprocess.Popen[bytes], rows: int | None = None) -> None:
        """All that was fed, or so many rows; fails at once where the app has ended."""
        while self.visible() < (self.fed if rows is None else rows):
            self.require_progress(process)

    def require_progress(self, process: subprocess.Popen[bytes]) -> None:
        """Wait a moment for the app; fails where it has ended, or nothing was judged for long."""
        time.sleep(0.5)
        late = time.monotonic() - self._since > PATIENCE_S
        if late or process.poll() not in (None, 0):
            raise AssertionError(f"{self.visible()} of {self.fed} rows came\n{self.said()}")

    def judge(self, kill: str) -> AuditReport:
        """Audit all that was delivered until now, and write a line of the table."""
        found = audit(
            {"bootstrap.servers": self.bootstrap},
            f"{self.name}-in",
            f"{self.name}-out",
            id_expression="value",
            checkpoint=self.checkpoint,
            storage_options=self.storage_options or None,
        )
        line = {
            "cluster": self.cluster,
            "kill": kill,
            "lost": found.lost,
            "duplicated": found.duplicated,
            "reordered": found.reordered,
            "seconds": round(time.monotonic() - self._since, 1),
        }
        self.record("line", json.dumps(line))
        self._since = time.monotonic()
        assert found.rows_in == self.fed
        assert found.violations == 0, found.summary()
        return found

    def recover(self) -> None:
        """As a person at a shell, once the heartbeat is old enough."""
        options = [f"--storage-option={k}={v}" for k, v in self.storage_options.items()]
        command = [sys.executable, "-m", "airflow_eos", "recover", self.checkpoint, *options]

        def done() -> bool:
            ran = subprocess.run(
                [*command, "--bootstrap-servers", self.bootstrap],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
            )
            alive = "alive" in ran.stderr or "signs of life" in ran.stderr
            assert ran.returncode == 0 or alive, ran.stdout + ran.stderr
            return ran.returncode == 0

        wait_until(done, timeout=PATIENCE_S, every=2, what="the dead driver's heartbeat to be old")

    def said(self) -> str:
        """What the app said last."""
        return self.log.read_text(errors="replace")[-6000:] if self.log.exists() else "(nothing)"

    def close(self) -> None:
        """End what was submitted and has not ended."""
        for process in self._running:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a driver of client mode: its JVM and its Python, stopped or not."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def stopped(processes: Iterable[int]) -> list[int]:
    """Those that a failpoint has stopped."""
    found = []
    for pid in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                found.append(pid)
    return found


def family(process: subprocess.Popen[bytes]) -> list[int]:
    """A driver's processes."""
    parent = psutil.Process(process.pid)
    return [parent.pid, *(child.pid for child in parent.children(recursive=True))]
