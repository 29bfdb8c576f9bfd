"""The broker, its topics and the folder of one benchmark run; all removed at its end."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from airflow_eos.local import AT_FULL_SPEED, EmbeddedKafka
from benchmarks.java import java
from benchmarks.report import ROOT

_BROKER = {
    # By the broker's clock, so that the log shows how fast it was written.
    "log.message.timestamp.type": "LogAppendTime",
    "log.segment.bytes": str(1 << 30),
    "delete.topic.enable": "true",
    "log.segment.delete.delay.ms": "1000",
    "num.network.threads": "3",
    "num.io.threads": "8",
}


class Reached(Protocol):
    """The part of a stage that a query needs."""

    @property
    def bootstrap(self) -> str:
        """The broker's address."""

    @property
    def folder(self) -> Path:
        """The folder of the checkpoints."""


@dataclass(frozen=True)
class Elsewhere:
    """A stage of another process, for queries in this one."""

    bootstrap: str
    folder: Path


@dataclass
class Stage:
    """One broker and a folder for checkpoints."""

    kafka: EmbeddedKafka
    folder: Path

    @property
    def bootstrap(self) -> str:
        """The broker's address."""
        return self.kafka.bootstrap_servers

    def topic(self, name: str, partitions: int = 4) -> str:
        """Create a topic, and return its name."""
        return self.kafka.create_topic(name, partitions)

    def drop(self, *topics: str) -> None:
        """Delete topics, so that disk and page cache are free for the next variant."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for deleted in admin.delete_topics(list(topics)).values():
            deleted.result(30)

    def airflow(self) -> dict[str, str]:
        """Return the environment for a process that runs Airflow's operators, with connections."""
        kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": self.bootstrap}}
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(kafka),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def read(self, topic: str) -> dict[str, Any]:
        """Read a topic ``read_committed``; return its rows, the sum of hashes, append times."""
        found: dict[str, Any] = java("CheckTopic", self.bootstrap, topic)
        return found


@contextmanager
def staged(**properties: str) -> Iterator[Stage]:
    """Start a broker and make a folder; end and remove both at the end."""
    folder = Path(tempfile.mkdtemp(prefix="airflow-eos-bench-"))
    try:
        # With the default heap: a broker needs the page cache, not its heap.
        with EmbeddedKafka(_BROKER | properties, java_options=AT_FULL_SPEED) as kafka:
            yield Stage(kafka, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def refuse(what: str, found: object, expected: object) -> None:
    """End the benchmark where ``found`` is not as expected: its figures would mean nothing."""
    if found != expected:
        raise SystemExit(f"{what}: found {found}, expected {expected}. No figure is given.")
