"""A checkpoint whose batches are settled as fast as a disk writes: its logs are data."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path

from airflow_eos.core.checkpoint.backend import decision_path
from airflow_eos.core.protocol.decision import PreparedWork, encode
from tests.support.pipelines import commit_of

ROWS = 10
"""Of each batch, from partition 0 of the topic."""


class SettledLogs:
    """Spark's and our own files of a pipeline, as they are once a batch is settled."""

    def __init__(self, folder: Path, topic: str = "orders", watermark_step_ms: int = 1) -> None:
        self.folder, self.topic = folder, topic
        self.watermark_step_ms = watermark_step_ms
        self.pipeline = str(uuid.uuid4())
        self.next = 0
        self._write("metadata", json.dumps({"id": self.pipeline}))
        self._write("sources/0/0", f"\0v1\n{self._ends(0)}")

    def settle(self, count: int = 1) -> None:
        """Settle the next batches, each written in Spark's order."""
        for batch in range(self.next, self.next + count):
            offsets = self.plan(batch)
            self.decide(batch, offsets)
            self.commit(batch)
            self.next = batch + 1

    def plan(self, batch: int) -> str:
        before_ms = max(0, batch - 1) * self.watermark_step_ms
        numbers = {"batchWatermarkMs": before_ms, "batchTimestampMs": 1_700_000_000_000 + batch}
        offsets = f"v1\n{json.dumps(numbers)}\n{self._ends(batch + 1)}"
        self._write(f"offsets/{batch}", offsets)
        return offsets

    def decide(self, batch: int, offsets: str, rows: Mapping[str, int] | None = None) -> None:
        works = [
            PreparedWork("kafka", name, f"{name}-{batch}", n, "0" * 32, 0, None, {})
            for name, n in (rows or {"sink": ROWS}).items()
        ]
        decision = commit_of(batch, *works, offsets=offsets, decided_by="a test")
        self._write(decision_path(batch, 1), encode(decision).decode())

    def commit(self, batch: int) -> None:
        watermark_ms = batch * self.watermark_step_ms
        self._write(f"commits/{batch}", f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}')

    def purge(self, before: int) -> None:
        """As Spark does, and we with it: the newest ones are kept."""
        for batch in range(before):
            for path in (f"offsets/{batch}", f"commits/{batch}", decision_path(batch, 1)):
                (self.folder / path).unlink(missing_ok=True)

    def _ends(self, batches: int) -> str:
        return json.dumps({self.topic: {"0": batches * ROWS}})

    def _write(self, path: str, text: str) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = target.with_name(f".{target.name}.tmp")
        hidden.write_text(text)
        hidden.rename(target)
