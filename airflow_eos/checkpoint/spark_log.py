"""Spark's own files of one checkpoint, found and read as what they say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from airflow_eos.checkpoint.backend import StoredObject
from airflow_eos.checkpoint.logs import (
    CommitEntry,
    OffsetsEntry,
    parse_commit,
    parse_kafka_start,
    parse_offsets,
    parse_query_id,
)
from airflow_eos.checkpoint.paths import METADATA, SOURCES, is_batch
from airflow_eos.errors import CheckpointFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_eos.checkpoint.logs import KafkaOffsets
    from airflow_eos.checkpoint.mending import Mend
    from airflow_eos.checkpoint.store import CheckpointStore

Log = Literal["offsets", "commits"]


class SparkLog:
    """``metadata``, ``offsets/``, ``commits/`` and ``sources/`` of one checkpoint.

    What is absent is None. CheckpointFormatError where a file is truncated, foreign or of an
    unknown version; StoreError where the store does not answer.
    """

    def __init__(self, store: CheckpointStore, mends: Sequence[Mend] = ()) -> None:
        self._store = store
        self._mended = {each.path: each for each in mends}
        self.location = store.location

    def query_id(self) -> str | None:
        """The query that began this checkpoint."""
        data = self._get(METADATA)
        return None if data is None else parse_query_id(data, self._where(METADATA))

    def offsets(self, batch: int) -> OffsetsEntry | None:
        """What the batch reads; nothing where it is planned, and nobody can read its entry."""
        path = f"offsets/{batch}"
        data = self._get(path)
        if data is None and path in self._mended:
            return OffsetsEntry(0, None, None, {})
        return None if data is None else parse_offsets(data, self._where(path))

    def commit(self, batch: int) -> CommitEntry | None:
        """That the batch is complete."""
        path = f"commits/{batch}"
        data = self._get(path)
        if data is None and path in self._mended:
            return CommitEntry(0, 0)
        return None if data is None else parse_commit(data, self._where(path))

    def began(self, source: str) -> KafkaOffsets | None:
        """Where a Kafka source began, which is recorded of one that has a number for a name.

        None also where that cannot be read: a start refuses it where it matters.
        """
        if not is_batch(source):
            return None  # a named source keeps its beginning elsewhere
        path = f"{SOURCES}/{source}/0"
        data = self._get(path)
        return parse_kafka_start(data, self._where(path)) if data and data.strip(b"\0") else None

    def find(self, log: Log, batch: int) -> StoredObject | None:
        """The file of a batch, looked at and not read."""
        path = f"{log}/{batch}"
        its = self._mended.get(path)
        if its is None:
            return self._store.head(path)
        if its.content is None and log == "commits" and not self._is_planned(batch + 1):
            return None
        # The time of what was lost is lost with it: the mend's stands for now.
        now_ms = time.time_ns() // 1_000_000
        return self._store.head(path) or StoredObject(path, str(batch), 0, now_ms)

    def newest(self, log: Log) -> StoredObject | None:
        """The newest file of a log, by a listing; hidden files are none.

        Nothing else tells: a driver that slept adds again what was purged.
        """
        found = self._store.list(log)
        for entry in found:
            if not is_batch(entry.name):
                raise CheckpointFormatError(
                    f"{self._where(entry.path)} is foreign: expected only batch numbers there. "
                    "Find out what wrote it and move it away."
                )
        there: dict[int, StoredObject | None] = {int(entry.name): entry for entry in found}
        for path in self._mended:
            if path.startswith(f"{log}/"):
                batch = int(path.rpartition("/")[2])
                there[batch] = self.find(log, batch)
        standing = [batch for batch, entry in there.items() if entry is not None]
        return there[max(standing)] if standing else None

    def _is_planned(self, batch: int) -> bool:
        path = f"offsets/{batch}"
        return path in self._mended or self._store.head(path) is not None

    def _get(self, path: str) -> bytes | None:
        """As it is read once it is mended."""
        its = self._mended.get(path)
        if its is None:
            return self._store.get(path)
        return None if its.content is None else its.content.encode()

    def _where(self, path: str) -> str:
        return f"{self.location}/{path}"
