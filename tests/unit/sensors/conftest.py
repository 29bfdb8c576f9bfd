"""A checkpoint that a test writes as Spark would, and a Kafka connection."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_eos.core.checkpoint import CheckpointStore, claim, read_heartbeat, write_heartbeat
from airflow_eos.core.checkpoint.heartbeat import ENDED
from tests.support.beats import heartbeat
from tests.support.pipelines import kafka_pipeline


class Checkpoint:
    """Spark's files, with ages: ``age`` in seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.beats = 0
        self.store = CheckpointStore.open(folder)
        self.location = self.store.location

    def plan(self, batch: int, end: int, age: float = 0) -> None:
        ends = json.dumps({"in": {"0": end}})
        self._write(
            f"offsets/{batch}",
            f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{{}}}}\n{ends}',
            age,
        )

    def commit(self, batch: int, end: int, age: float = 0) -> None:
        self.plan(batch, end, age)
        self._write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}', age)

    def beat(self, phase: str = "waiting", *, age: float = 0, started: float = 3600) -> None:
        now_ms = time.time_ns() // 1_000_000
        beat = heartbeat(
            phase,  # type: ignore[arg-type]
            host=socket.gethostname(),
            batch_id=None,
            beat_at_ms=now_ms - round(age * 1000),
            started_at_ms=now_ms - round(started * 1000),
        )
        write_heartbeat(self.store, beat)

    def goes_on(self) -> None:
        """As the driver that beats is seen to go on."""
        self.beats += 1
        beat = read_heartbeat(self.store)
        if beat is not None and beat.phase not in ENDED:
            later = beat.beat_at_ms + self.beats
            write_heartbeat(self.store, msgspec.structs.replace(beat, beat_at_ms=later))

    def claim(self, prefix: str) -> None:
        claim(self.store, kafka_pipeline(prefix))

    def _write(self, path: str, text: str, age: float) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = file.with_name(f".{file.name}.{threading.get_ident()}")  # who sleeps may be others
        whole.write_text(text)
        os.utime(whole, (time.time() - age,) * 2)
        whole.replace(file)


@pytest.fixture
def checkpoint(tmp_path) -> Checkpoint:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "metadata").write_text('{"id":"6a1c9b3e-0000-4000-8000-000000000000"}')
    return Checkpoint(folder)


@pytest.fixture(autouse=True)
def connection(monkeypatch) -> None:
    extra: dict[str, Any] = {"bootstrap.servers": "kafka:9092", "sasl.password": "hunter-two-five"}
    monkeypatch.setenv(
        "AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra})
    )
