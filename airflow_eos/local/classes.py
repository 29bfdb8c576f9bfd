"""An archive of the broker's classes (JEP 350): loading them is most of what a start costs.

It is made once for a Java and an environment, by a broker that lives for one transaction.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from functools import cache
from pathlib import Path

from confluent_kafka import Producer

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.client import create_topic, live_brokers
from airflow_eos.local.jars import KAFKA_VERSION, cache_folder
from airflow_eos.local.java import java_program
from airflow_eos.local.layout import HOST, PLAIN, lay_out, new_cluster_id, server_properties
from airflow_eos.local.node import BrokerProcess, class_path

_SECONDS = 60.0
_HEAP_MB = 512
_KEPT = 4  # environments; 50 MB each


@cache
def class_archive() -> Path:
    """The archive of this environment, for ``-XX:SharedArchiveFile``; made by the first who asks.

    A Java that cannot use the file goes on without. So where none can be made, it is left empty.

    Raises:
        LocalEnvironmentError: no Java, no jars, or no broker comes up.
    """
    folder = cache_folder() / "classes"
    archive = folder / f"kafka-{KAFKA_VERSION}-{_environment()}.jsa"
    if archive.exists():
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():  # another process may have made it meanwhile
            _make(archive)
            _prune(folder)
    return archive


def _environment() -> str:
    """Java refuses an archive of another Java, or of a jar that was touched since."""
    files = [Path(java_program()).resolve(), *map(Path, class_path().split(os.pathsep))]
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:12]


def _make(archive: Path) -> None:
    fresh = archive.with_suffix(".new")
    with tempfile.TemporaryDirectory(prefix="airflow-eos-kafka-") as work:
        [node] = lay_out(1, Path(work) / "data", Path(work) / "logs", [])
        formatting = BrokerProcess(node, _HEAP_MB).start_format(
            server_properties(node, [node], {}, {}), new_cluster_id(), {}
        )
        formatting.wait(_SECONDS)
        broker = BrokerProcess(node, _HEAP_MB, [f"-XX:ArchiveClassesAtExit={fresh}"])
        broker.start()
        try:
            _use(broker, f"{HOST}:{node.ports[PLAIN]}")
        finally:
            written = broker.stop()  # it writes while it ends
    if written:  # else it was cut short; the next start tries again
        fresh.touch()
        fresh.replace(archive)


def _use(broker: BrokerProcess, address: str) -> None:
    """One transaction: its classes belong into the archive."""
    deadline = time.monotonic() + _SECONDS
    while not live_brokers(address):
        if not broker.running or time.monotonic() > deadline:
            raise LocalEnvironmentError(
                f"a Kafka broker did not come up within {_SECONDS:.0f} s:\n{broker.log_tail()}\n"
                "Try again; the machine may be too busy"
            )
        time.sleep(0.1)
    create_topic(address, "classes", 1, {})
    producer = Producer(
        {"bootstrap.servers": address, "transactional.id": "classes", "log_level": 0}
    )
    producer.init_transactions(_SECONDS)
    producer.begin_transaction()
    producer.produce("classes", b"")
    producer.commit_transaction(_SECONDS)


def _prune(folder: Path) -> None:
    archives = sorted(folder.glob("*.jsa"), key=lambda file: file.stat().st_mtime)
    for old in archives[:-_KEPT]:  # a broker that has mapped it keeps it
        old.unlink(missing_ok=True)
