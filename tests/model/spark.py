"""The parts of Spark that a driver stands on, no kinder than they are.

``HDFSMetadataLog.add`` looks whether the name is free, writes beside it and renames; between the
look and the rename anything may happen, and the later rename stands. A purge makes old names free
again. ``tests/integration/checkpoint/test_real_spark_logs.py`` holds this against Spark's own
classes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_eos.checkpoint import CheckpointStore
from tests.model.broker import Rows
from tests.model.store import SteppedStore

Unit = Sequence[Rows]
"""What one offset of the source stands for: rows, dealt out to tasks."""


class SparkError(Exception):
    """Spark ends the query: a conflict in its logs, a failed job, a store that did not answer."""


@dataclass(frozen=True)
class Planned:
    """One entry of the offset log: units ``start`` to ``end`` (excluded) of the source."""

    batch: int
    start: int
    end: int
    planned_at_ms: int

    @property
    def content(self) -> bytes:
        stamp = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": self.planned_at_ms})
        return f'v1\n{stamp}\n{{"in":{{"0":{self.end}}}}}'.encode()


class MicroBatches:
    """``MicroBatchExecution`` of one driver: what to run next, and its two logs."""

    def __init__(self, store: CheckpointStore, objects: SteppedStore) -> None:
        self._store = store
        self._objects = objects
        self.end = 0
        self._next = 0

    def restored(self) -> Planned | None:
        """``populateStartOffsets``: the batch to run again, if the newest one is not complete."""
        newest = self._latest("offsets")
        if newest is None:
            return None
        end, stamp = self._read(newest)
        start = self._read(newest - 1)[0] if newest else 0
        if self._latest("commits") == newest:
            self.end, self._next = end, newest + 1
            return None
        return self._planned(Planned(newest, start, end, stamp))

    def plan(self, units: int, planned_at_ms: int) -> Planned:
        """``constructNextBatch``: as many units more, written to the offset log."""
        planned = Planned(self._next, self.end, self.end + units, planned_at_ms)
        self._add("offsets", planned.batch, planned.content)
        return self._planned(planned)

    def complete(self, batch: int, retained: int) -> None:
        self._add("commits", batch, b"v1\n{}")
        for log in ("offsets", "commits"):
            for old in range(max(0, batch - retained)):
                if self._store.head(f"{log}/{old}") is not None:
                    self._store.delete([f"{log}/{old}"])

    def _planned(self, planned: Planned) -> Planned:
        self.end, self._next = planned.end, planned.batch + 1
        return planned

    def _latest(self, log: str) -> int | None:
        return max((int(entry.name) for entry in self._store.list(log)), default=None)

    def _read(self, batch: int) -> tuple[int, int]:
        data = self._store.get(f"offsets/{batch}")
        if data is None:
            raise SparkError(f"offsets/{batch} doesn't exist")
        _, stamp, offsets = data.decode().split("\n")
        return int(json.loads(offsets)["in"]["0"]), int(json.loads(stamp)["batchTimestampMs"])

    def _add(self, log: str, batch: int, content: bytes) -> None:
        try:
            taken = self._store.head(f"{log}/{batch}") is not None
            if not taken:
                self._objects.put(f"{log}/{batch}", content, mode="overwrite")
        except OSError as error:
            raise SparkError(f"{log}/{batch} cannot be written") from error
        if taken:
            raise SparkError(f"CONCURRENT_STREAM_LOG_UPDATE {log}/{batch}")
