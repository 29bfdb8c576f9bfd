"""The same histories with a real Spark: ``tests/support/app.py`` as the driver.

Slower by a factor of ten to twenty, and true in what the loop engine plays: Spark's logs, its
workers, its state store, its Kafka source. Rows carry no run here: whose they are is told by the
decided ranges of offsets.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import msgspec
import psutil
import pyspark
from confluent_kafka import KafkaError, Message, Producer

from airflow_eos.local import spark_jars
from airflow_eos.local.client import create_topic
from tests.chaos.arena import Arena
from tests.chaos.processes import Process, wait_until
from tests.chaos.scenario import Incident, Scenario
from tests.chaos.settings import DriverSettings
from tests.chaos.stage import Stage
from tests.support.app import AppSettings
from tests.support.jvm import SHORT_LIVED

ROOT = Path(__file__).parents[2]
APP = ROOT / "tests" / "support" / "app.py"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_READY_S = 120.0
_ERROR = re.compile(r"^(\w+Error): ", re.MULTILINE)
_PLACES = {
    "between": "settled",
    "returned": "settled",
    "commits-looked": "settled",
    "commits-renaming": "settled",
    "offsets-looked": "before-prepare",
    "offsets-renaming": "before-prepare",
    "offsets-purged": "before-prepare",
    "planned": "before-prepare",
}
"""Where no failpoint can be in Spark's loop: the place of the product that is next to it."""

_SHORTEST_S = 3.0  # a batch of a cold JVM takes longer than the loop engine's shortest timeout


class SparkProcess(Process):
    """The app and its JVM; Python workers are children of the JVM."""

    def __init__(
        self, process: subprocess.Popen[str], settings: DriverSettings, log: IO[str]
    ) -> None:
        self.settings = settings
        self.pid = process.pid
        self._process = process
        self._log = log

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def signal(self, name: str, *, group: bool) -> None:
        number = signal.Signals[f"SIG{name}"]
        for process in self._family() if group else [psutil.Process(self.pid)]:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def executors(self) -> list[psutil.Process]:
        """JVMs of a local cluster."""
        return [each for each in self._family() if _EXECUTOR in _command(each)]

    def end(self) -> None:
        super().end()
        self._log.close()

    def _family(self) -> list[psutil.Process]:
        """All of its session: the JVM outlives an app that is killed, for a moment."""
        return [each for each in psutil.process_iter() if _session(each.pid) == self.pid]


def _session(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, ValueError):
        return 0


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _environment(settings: DriverSettings, home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "EOS_FAILPOINTS": settings.failpoints,
        "EOS_FAILPOINTS_DIR": settings.failpoints_dir,
        "PYTHONPATH": str(ROOT),
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": SHORT_LIVED,
    }


class SparkStage(Stage):
    """Feeds a topic instead of files, and starts apps instead of forks."""

    reached_s = 60.0
    bound_s = 480.0
    start_s = _READY_S
    batches_s = 240.0  # with the start of a JVM in it

    def __init__(self, arena: Arena, scenario: Scenario) -> None:
        if scenario.kind == "keyed":
            scenario = msgspec.structs.replace(scenario, kind="shuffle")
        super().__init__(arena, scenario)
        create_topic(arena.bootstrap, f"{self.name}-in", scenario.partitions, {})

    @property
    def mode(self) -> str:
        return "counts" if self.scenario.kind == "count" else "rows"

    def settings(self, name: str, incident: Incident, *, failpoints: str = "") -> DriverSettings:
        place, _, action = failpoints.partition("=")
        told = f"{_PLACES.get(place, place)}={action}" if place else ""
        return super().settings(name, incident, failpoints=told)

    def admitted(self, driver: Process) -> bool:
        """Its heartbeat is there, which begins when nothing is left that could refuse it."""
        try:
            heartbeat = (driver.settings.checkpoint / "eos" / "driver.json").read_bytes()
        except FileNotFoundError:
            return False
        return bool(json.loads(heartbeat)["pid"] == driver.pid)

    def ended_by(self, driver: Process) -> str:
        log = (self.folder / f"{driver.settings.name}.log").read_text()
        named = [log[found.start() :] for found in _ERROR.finditer(log)]
        return named[-1].partition("\n")[0] if named else ""

    def launch(self, settings: DriverSettings) -> Process:
        app = AppSettings(
            bootstrap_servers=settings.bootstrap,
            input_topic=f"{self.name}-in",
            output_topic=settings.topic,
            checkpoint=str(settings.checkpoint),
            prefix=settings.prefix,
            jars=",".join(map(str, spark_jars())),
            kind=settings.kind,
            timeout_s=max(settings.timeout_s, _SHORTEST_S),
            until_caught_up=settings.name.startswith("final"),
            max_offsets_per_trigger=settings.batch_rows * settings.partitions,
            # Spark refuses to change it where there is state.
            shuffle_partitions=3 if settings.kind == "count" else settings.width,
            master=self._master,
            journal=str(settings.journal),
            spark_conf={"spark.sql.streaming.minBatchesToRetain": str(settings.retained)},
        )
        log = (self.folder / f"{settings.name}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, str(APP), msgspec.json.encode(app).decode()],
            env=_environment(settings, self._home()),
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return SparkProcess(process, settings, log)

    @property
    def _master(self) -> str:
        """Executors in the driver's JVM; where one is to be killed, in JVMs of their own."""
        apart = any(incident.executor for incident in self.scenario.incidents)
        return "local-cluster[2,1,1024]" if apart else "local[2,3]"

    def _home(self) -> Path:
        """A Spark home of our own: a local cluster's workers write into it."""
        home = self.folder / "spark-home"
        if not home.exists():
            home.mkdir()
            for part in Path(pyspark.__file__).parent.iterdir():
                (home / part.name).symlink_to(part)
        return home

    def feed(self, count: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.arena.bootstrap,
                "enable.idempotence": True,
                "log_level": 3,
            }
        )
        written: list[tuple[int, int, str, str]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            key, value = message.key() or b"", message.value() or b""
            written.append(
                (message.partition() or 0, message.offset() or 0, key.decode(), value.decode())
            )

        for partition, key, value in self.rows(count):
            producer.produce(
                f"{self.name}-in", value, key, partition=partition, on_delivery=delivered
            )
        assert producer.flush(60) == 0
        self.journal.note("input", rows=sorted(written))

    def await_work(self, driver: Process) -> None:
        """A JVM takes its time to start; what befalls it should befall a query at work."""
        heartbeat = self.folder / "checkpoint" / "eos" / "driver.json"
        started_at = time.time()

        def at_work() -> bool:
            return heartbeat.exists() and heartbeat.stat().st_mtime > started_at

        wait_until(lambda: at_work() or driver.exit_code is not None, _READY_S)
