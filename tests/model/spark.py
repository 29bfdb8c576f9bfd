"""The parts of Spark that a driver stands on, no kinder than they are.

``HDFSMetadataLog.add`` looks whether the name is free, writes beside it and renames; between the
look and the rename anything may happen, and the later rename stands. A purge makes old names free
again. ``tests/integration/checkpoint/test_real_spark_logs.py`` holds these against Spark's own
classes. Three things of Spark's are left out: a second look just before the rename, so that two win
here more often; that a log remembers its own two latest entries; and that a purge of few numbers
does not look for what came below them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.spark_log import parse_query_id
from airflow_eos.errors import CheckpointFormatError
from tests.model.broker import Rows

Unit = Sequence[Rows]
"""What one offset of the source stands for: rows, dealt out to tasks."""


class Objects(Protocol):
    """What Spark writes to: the model's store, or a disk where Spark's own classes are beside."""

    def put(self, path: str, file: bytes, *, mode: Literal["overwrite"]) -> object:
        """The later one stands."""


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


class MetadataLog:
    """``HDFSMetadataLog``: one entry for each batch number, in a folder of the checkpoint."""

    def __init__(self, store: CheckpointStore, objects: Objects, folder: str) -> None:
        self._store = store
        self._objects = objects
        self._folder = folder

    def add(self, batch: int, content: bytes) -> bool:
        """False where an entry stands; whoever looked before may write over another one's."""
        path = f"{self._folder}/{batch}"
        try:
            if self._store.head(path) is not None:
                return False
            self._objects.put(path, content, mode="overwrite")
        except OSError as error:
            raise SparkError(f"{path} cannot be written") from error
        return True

    def get(self, batch: int) -> bytes | None:
        return self._store.get(f"{self._folder}/{batch}")

    def latest(self) -> int | None:
        return max((int(entry.name) for entry in self._store.list(self._folder)), default=None)

    def purge(self, before: int) -> None:
        for old in range(before):
            path = f"{self._folder}/{old}"
            if self._store.head(path) is not None:
                self._store.delete([path])


class MicroBatches:
    """``MicroBatchExecution`` of one driver: what to run next, and its two logs."""

    def __init__(self, store: CheckpointStore, objects: Objects) -> None:
        self._store = store
        self._objects = objects
        self._offsets = MetadataLog(store, objects, "offsets")
        self._commits = MetadataLog(store, objects, "commits")
        self.end = 0
        self._next = 0

    def identify(self) -> None:
        """``StreamMetadata``: the query's id, read, or made and written once."""
        data = self._store.get("metadata")
        if data is None:
            if self._store.list("offsets") or self._store.list("commits"):
                raise SparkError("[STREAMING_CHECKPOINT_MISSING_METADATA_FILE]")  # from 4.2 on
            made = b'{"id":"%s"}' % str(uuid.uuid4()).encode()
            self._objects.put("metadata", made, mode="overwrite")
            return
        try:
            parse_query_id(data, "metadata")
        except CheckpointFormatError as error:
            raise SparkError("Malformed metadata") from error

    def restored(self) -> Planned | None:
        """``populateStartOffsets``: the batch to run again, if the newest one is not complete."""
        newest = self._offsets.latest()
        if newest is None:
            return None
        end, stamp = self._read(newest)
        start = self._read(newest - 1)[0] if newest else 0
        if self._commits.latest() == newest:
            self.end, self._next = end, newest + 1
            return None
        return self._planned(Planned(newest, start, end, stamp))

    def skip(self, planned_at_ms: int) -> bool:
        """``StreamingCheckpointManager.repartition`` that need not wait for the batch in flight.

        A control batch, which ends where the newest complete one did. False: there is none.
        """
        newest, complete = self._offsets.latest(), self._commits.latest()
        if newest is None or complete not in (newest, newest - 1):
            return False
        end, _ = self._read(complete)
        control = Planned(newest + 1, end, end, planned_at_ms)
        self._offsets.add(control.batch, control.content)
        return self._commits.add(control.batch, b"v1\n{}")

    def plan(self, units: int, planned_at_ms: int) -> Planned:
        """``constructNextBatch``: as many units more, written to the offset log."""
        planned = Planned(self._next, self.end, self.end + units, planned_at_ms)
        if not self._offsets.add(planned.batch, planned.content):
            raise SparkError(f"CONCURRENT_STREAM_LOG_UPDATE offsets/{planned.batch}")
        return self._planned(planned)

    def complete(self, batch: int, retained: int) -> None:
        if not self._commits.add(batch, b"v1\n{}"):
            raise SparkError(f"CONCURRENT_STREAM_LOG_UPDATE commits/{batch}")
        for log in (self._offsets, self._commits):
            log.purge(max(0, batch - retained))

    def _planned(self, planned: Planned) -> Planned:
        self.end, self._next = planned.end, planned.batch + 1
        return planned

    def _read(self, batch: int) -> tuple[int, int]:
        data = self._offsets.get(batch)
        if data is None:
            raise SparkError(f"offsets/{batch} doesn't exist")
        try:
            _, stamp, offsets = data.decode().split("\n")
            json.loads(offsets)
        except ValueError as error:
            raise SparkError(f"Incomplete log file offsets/{batch}") from error
        return int(json.loads(offsets)["in"]["0"]), int(json.loads(stamp)["batchTimestampMs"])
