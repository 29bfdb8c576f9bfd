"""Spark's own files of one checkpoint, found and read as what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from airflow_eos.checkpoint.logs import (
    parse_commit,
    parse_kafka_start,
    parse_offsets,
    parse_query_id,
)
from airflow_eos.checkpoint.paths import METADATA, SOURCES, is_batch
from airflow_eos.errors import CheckpointFormatError

if TYPE_CHECKING:
    from airflow_eos.checkpoint.backend import StoredObject
    from airflow_eos.checkpoint.logs import CommitEntry, KafkaOffsets, OffsetsEntry
    from airflow_eos.checkpoint.store import CheckpointStore

Log = Literal["offsets", "commits"]


class SparkLog:
    """``metadata``, ``offsets/``, ``commits/`` and ``sources/`` of one checkpoint.

    What is absent is None. CheckpointFormatError where a file is truncated, foreign or of an
    unknown version; StoreError where the store does not answer.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self.location = store.location

    def query_id(self) -> str | None:
        """The query that began this checkpoint."""
        data = self._store.get(METADATA)
        return None if data is None else parse_query_id(data, self._where(METADATA))

    def offsets(self, batch: int) -> OffsetsEntry | None:
        """What the batch reads."""
        path = f"offsets/{batch}"
        data = self._store.get(path)
        return None if data is None else parse_offsets(data, self._where(path))

    def commit(self, batch: int) -> CommitEntry | None:
        """That the batch is complete."""
        path = f"commits/{batch}"
        data = self._store.get(path)
        return None if data is None else parse_commit(data, self._where(path))

    def began(self, source: str) -> KafkaOffsets | None:
        """Where a Kafka source began, which is recorded of one that has a number for a name."""
        if not is_batch(source):
            return None  # a named source keeps its beginning elsewhere
        path = f"{SOURCES}/{source}/0"
        data = self._store.get(path)
        return None if data is None else parse_kafka_start(data, self._where(path))

    def find(self, log: Log, batch: int) -> StoredObject | None:
        """The file of a batch, looked at and not read."""
        return self._store.head(f"{log}/{batch}")

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
        return max(found, key=lambda entry: int(entry.name), default=None)

    def _where(self, path: str) -> str:
        return f"{self.location}/{path}"
