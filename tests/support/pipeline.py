"""Run the test app as its own process, feed it, kill it, and read what readers see."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.coordinator import end_transactions
from airflow_eos.kafka.transactions.identity import OpenTransaction
from airflow_eos.kafka.transactions.listing import list_open
from airflow_eos.local import EmbeddedKafka, spark_jars
from tests.support.app import AppSettings, configured, deliver
from tests.support.host import Host
from tests.support.jvm import spark_submit_opts
from tests.support.kinds.theirs import INSTALLED
from tests.support.topics import produce, read_topic

KILLED = -signal.SIGKILL
APP = Path(__file__).parent / "app.py"
ROOT = Path(__file__).parents[2]
OF_A_JVM = {"master", "tuned", "jars"}  # which a driver is given only with one of its own


@dataclass
class Pipeline:
    """One pipeline of the test app with topics, a prefix and a checkpoint of its own."""

    broker: EmbeddedKafka
    folder: Path
    name: str = field(default_factory=lambda: f"p{uuid.uuid4().hex[:8]}")
    partitions: int = 3
    settings: Mapping[str, Any] = field(default_factory=dict)
    output: Mapping[str, str] = field(default_factory=dict)
    """Configuration of the output topic."""
    host: Host | None = None
    """Where drivers run; each in a JVM of its own where this is None."""

    def __post_init__(self) -> None:
        self.broker.create_topic(f"{self.name}-in", self.partitions)
        self.broker.create_topic(f"{self.name}-out", 4, self.output)
        self.expected: list[tuple[str, str]] = []
        self._next = 0

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap_servers

    @property
    def checkpoint(self) -> str:
        return str(self.folder / "checkpoint")

    def feed(self, count: int, keys: int = 50) -> None:
        produce(self.bootstrap, f"{self.name}-in", self.expect(count, keys))

    def expect(self, count: int, keys: int = 50) -> list[tuple[str, str]]:
        """The rows that ``feed`` gives next; where they were recorded, they need no feeding."""
        rows = [(f"k{i % keys}", f"{self.name}:{i}") for i in range(self._next, self._next + count)]
        self._next += count
        self.expected += rows
        return rows

    def app(self, **changes: Any) -> AppSettings:
        given = {
            "bootstrap_servers": self.bootstrap,
            "input_topic": f"{self.name}-in",
            "output_topic": f"{self.name}-out",
            "checkpoint": self.checkpoint,
            "prefix": self.name,
            "jars": ",".join(str(jar) for jar in spark_jars()),
        }
        return AppSettings(**(given | dict(self.settings) | changes))

    def elsewhere(self) -> Pipeline:
        """The same pipeline, for a driver with a JVM of its own."""
        there = copy.copy(self)
        there.host = None
        return there

    def start(self, *, failpoints: str = "", **changes: Any) -> subprocess.Popen[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        assert self.host is None or not changes.keys() & OF_A_JVM, changes
        environment = {
            **os.environ,
            "EOS_FAILPOINTS": failpoints,
            "EOS_FAILPOINTS_DIR": str(self.folder),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{INSTALLED}",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": spark_submit_opts(),
            **(self.host.door() if self.host else {}),
        }
        settings = self.app(attached=self.host is not None, **changes)
        return subprocess.Popen(
            [sys.executable, str(APP), msgspec.json.encode(settings).decode()],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(
        self, *, failpoints: str = "", expect: int = 0, timeout: float = 500, **changes: Any
    ) -> str:
        """Run the app to its end; the exit status must be as expected (-9: killed)."""
        process = self.start(failpoints=failpoints, **changes)
        output = finish(process, timeout)
        assert process.returncode == expect, f"exit {process.returncode}\n{output[-6000:]}"
        return output

    def run_in_time(self, *, failpoints: str, timeout_s: float, **changes: Any) -> None:
        """It promises rows, and is killed, while its transactions last: longer ones if need be.

        A batch that a busy machine holds up longer than them is not promised, and runs again.
        """
        for longer in (1, 2, 4, 8, 16):
            lasting = {"timeout_s": timeout_s * longer, **changes}
            process = self.start(failpoints=failpoints, **lasting)
            output = finish(process, 500)
            if process.returncode == KILLED:
                return
        raise AssertionError(f"exit {process.returncode}\n{output[-6000:]}")

    def resume(self, spark: SparkSession, **changes: Any) -> None:
        """Run the app to its end in this process: who comes after one that was killed.

        A process of its own would cost a JVM, and what the dead one left is on disk and on the
        broker all the same. What a JVM is started with cannot be changed here.
        """
        assert not changes.keys() & OF_A_JVM, changes
        assert "EOS_FAILPOINTS" not in os.environ
        settings = self.app(**changes)
        session = configured(spark.newSession(), settings)
        query = deliver(session, settings)
        try:
            assert query.awaitTermination(500), f"the app did not end: {query.status}"
        finally:
            query.stop()

    def visible(self) -> list[tuple[str, str]]:
        return read_topic(self.bootstrap, f"{self.name}-out")

    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        with ConnectionPool(
            KafkaSettings.from_librdkafka({"bootstrap.servers": self.bootstrap})
        ) as wire:
            return list_open(wire, self.name)

    def lose_what_is_open(self) -> None:
        """As the timeout of its transactions would, which takes seconds."""
        settings = KafkaSettings.from_librdkafka({"bootstrap.servers": self.bootstrap})
        lost = [each.identity for each in self.open_transactions()]
        with ConnectionPool(settings) as wire:
            end_transactions(wire, lost, commit=False)
        wait_until(lambda: self.open_transactions() == (), what="the markers")

    def assert_ordered(self) -> None:
        """Rows of a key come in the order of the input."""
        seen, fed = defaultdict(list), defaultdict(list)
        for key, value in self.visible():
            seen[key].append(value)
        for key, value in self.expected:
            fed[key].append(value)
        assert seen == fed, "rows of a key changed their order"

    def assert_counts(self) -> None:
        """The counts of kind ``count``: each key's last one is right, and none came twice."""
        counts: dict[str, list[int]] = defaultdict(list)
        for key, count in self.visible():
            counts[key].append(int(count))
        total = Counter(key for key, _ in self.expected)
        assert {key: seen[-1] for key, seen in counts.items()} == dict(total)
        for key, seen in counts.items():
            assert seen == sorted(set(seen)), f"{key} went back or came twice: {seen}"

    def assert_exactly_once(self) -> None:
        """Every row that was fed is visible, once."""
        seen = self.visible()
        found, expected = Counter(seen), Counter(self.expected)
        assert expected - found == Counter(), f"lost {(expected - found).total()} rows"
        assert found - expected == Counter(), f"duplicated {(found - expected).total()} rows"


def finish(process: subprocess.Popen[str], timeout: float) -> str:
    """Wait for the app, then end whatever it left of its process group (the JVM)."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        kill(process)
        raise AssertionError(f"the app did not end: {(error.output or b'')[-6000:]!r}") from error
    kill(process)
    return output


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL the app and all its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(120)


def wait_until(
    condition: Callable[[], bool], *, timeout: float = 300, every: float = 0.05, what: str
) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout} s for: {what}"
        time.sleep(every)
