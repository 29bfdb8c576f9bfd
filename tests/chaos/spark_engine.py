"""The same histories with a real Spark: ``tests/support/app.py`` as the driver.

Slower by a factor of ten to twenty, and true in what the loop engine plays: Spark's logs, its
workers, its state store, its Kafka source (or ours, ``ArrowKafkaSource``), and the store that the
checkpoint is on. Rows carry no run here: whose they are is told by the decided ranges of offsets.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pyspark

from airflow_eos import errors
from airflow_eos.core.checkpoint import read_heartbeat
from airflow_eos.local.broker import create_topic
from tests.chaos.arena import Arena
from tests.chaos.driver import ENDED_BY_ERROR
from tests.chaos.processes import Process, wait_until
from tests.chaos.scenario import Incident, Scenario
from tests.chaos.settings import ARROW, SPARK, DriverSettings
from tests.chaos.spark_hosts import Hosts, SparkProcess
from tests.chaos.stage import Stage, goes_alone
from tests.chaos.topic_input import TopicInput
from tests.support.app import AppSettings
from tests.support.jvm import spark_submit_opts

ROOT = Path(__file__).parents[2]
APP = ROOT / "tests" / "support" / "app.py"
_READY_S = 120.0
_ERROR = re.compile(r"^([\w.]+(?:Error|Exception)): ", re.MULTILINE)
_OF_A_WORKER = re.compile(
    r'(?:^  File "[^"\n]*pyspark/daemon\.py", .*\n(?:    .*\n)?)+^[\w.]+: .*\n?', re.MULTILINE
)
"""What Spark's worker daemon says into the same log when its driver is gone: no driver runs it."""
_OF_SPARK = ("pyspark.", "py4j.")
_UNCAUGHT = 1
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


class SparkStage(Stage):
    """Feeds a topic instead of files, and starts apps instead of forks.

    Args:
        source: ``ARROW`` copies rows in every history; a range is read by several tasks where the
            scenario would have rows dealt out, and then their order is nobody's.
        hosts: JVMs that drivers are attached to; None: each has one of its own.
        standbys: a rival stands by behind the driver, and takes over where that one ends.
    """

    pace = 8.0  # it takes seconds to plan its first batch, and a batch of a cold JVM takes longer
    look_s = 0.1
    reached_s = 60.0
    bound_s = 900.0
    start_s = _READY_S
    batches_s = 240.0  # with the start of a JVM in it

    def __init__(
        self,
        arena: Arena,
        scenario: Scenario,
        *,
        source: str = SPARK,
        hosts: Hosts | None = None,
        standbys: bool = False,
    ) -> None:
        self._source = source
        self._standbys = standbys
        self._hosts = hosts
        self._pair = hosts.take() if hosts is not None else None
        kinds = {"keyed": "shuffle"}
        if source == ARROW:
            kinds = {"keyed": "split", "shuffle": "split", "count": "map"}
        kind = kinds.get(scenario.kind, scenario.kind)
        super().__init__(arena, msgspec.structs.replace(scenario, kind=kind))
        create_topic(arena.bootstrap, f"{self.name}-in", scenario.partitions, {})
        self._input = TopicInput(arena.bootstrap, f"{self.name}-in")

    @property
    def mode(self) -> str:
        return "counts" if self.scenario.kind == "count" else "rows"

    def settings(self, name: str, incident: Incident, *, failpoints: str = "") -> DriverSettings:
        place, _, action = failpoints.partition("=")
        told = f"{_PLACES.get(place, place)}={action}" if place else ""
        return super().settings(name, incident, failpoints=told)

    def admitted(self, driver: Process) -> bool:
        """Its heartbeat is there, which begins when nothing is left that could refuse it."""
        heartbeat = read_heartbeat(driver.settings.store())
        return heartbeat is not None and heartbeat.pid == driver.pid

    def ended_by(self, driver: Process) -> str:
        return last_error((self.folder / f"{driver.settings.name}.log").read_text())

    def ended(self, driver: Process, code: int | None) -> None:
        """An error that no fault explains is the judge's; Spark's own may be any."""
        if code not in {ENDED_BY_ERROR, _UNCAUGHT}:
            return
        by = self.ended_by(driver)
        name, _, text = by.partition(": ")
        kind = getattr(errors, name, None)
        explained = driver.settings.explains(kind(text)) if kind else name.startswith(_OF_SPARK)
        if explained:
            self.journal.note("ended", name=driver.settings.name, by=by[:300])
        else:
            self.journal.note("crash", text=f"{driver.settings.name}: {by or f'exit {code}'}")

    def kill(self, process: Process, incident: Incident) -> None:
        super().kill(process, incident)
        if self._pair is not None and not goes_alone(incident):
            self._pair.lose(process.settings.name)

    def launch(self, settings: DriverSettings) -> Process:
        where, split = self.arena.where, self.scenario.kind == "split"
        app = AppSettings(
            bootstrap_servers=settings.bootstrap,
            input_topic=f"{self.name}-in",
            output_topic=settings.topic,
            checkpoint=settings.checkpoint,
            storage_options=settings.storage_options,
            prefix=settings.prefix,
            jars=",".join(map(str, where.jars)),
            kind="arrow" if self._source == ARROW else settings.kind,
            max_rows_per_task=-(-settings.batch_rows // settings.width) if split else None,
            timeout_s=settings.timeout_s,
            until_caught_up=settings.name.startswith("final"),
            max_offsets_per_trigger=settings.batch_rows * settings.partitions,
            # Spark refuses to change it where there is state.
            shuffle_partitions=3 if settings.kind == "count" else settings.width,
            master=self._master,
            attached=self._pair is not None,
            standby=self._standbys and settings.name.startswith("rival"),
            journal=str(settings.journal),
            outputs=settings.outputs if len(settings.outputs) > 1 else (),
            dsn=settings.dsn,
            files=str(settings.files),
            without_decisions=settings.control == "no_decision",
            spark_conf=where.spark_conf
            | {"spark.sql.streaming.minBatchesToRetain": str(settings.retained)},
        )
        log = (self.folder / f"{settings.name}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, str(APP), msgspec.json.encode(app).decode()],
            env=self._environment(settings),
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return SparkProcess(process, settings, log)

    def _environment(self, settings: DriverSettings) -> dict[str, str]:
        shared = {
            **os.environ,
            "EOS_FAILPOINTS": settings.failpoints,
            "EOS_FAILPOINTS_DIR": settings.failpoints_dir,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        if self._pair is not None:
            return shared | self._pair.door(settings.name)
        return shared | {
            "SPARK_HOME": str(self._home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": spark_submit_opts(),
        }

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

    def await_work(self, driver: Process) -> None:
        """A JVM takes its time to start; what befalls it should befall a query at work."""
        started_at_ms = time.time_ns() // 1_000_000

        def at_work() -> bool:
            heartbeat = read_heartbeat(self.store)
            return heartbeat is not None and heartbeat.beat_at_ms > started_at_ms

        wait_until(lambda: at_work() or driver.exit_code is not None, _READY_S, every_s=self.look_s)

    def finish(self) -> None:
        """What drivers left running in a JVM that outlives them is lost first, as with it."""
        if self._pair is not None:
            self._pair.rest()
        super().finish()

    def end_all(self) -> None:
        super().end_all()
        if self._hosts is not None and self._pair is not None:
            self._hosts.give_back(self._pair)
            self._pair = None


def last_error(log: str) -> str:
    """The line by which a driver says why it ended, '' if there is none."""
    own = _OF_A_WORKER.sub("", log)
    named = [own[found.start() :] for found in _ERROR.finditer(own)]
    return named[-1].partition("\n")[0] if named else ""
