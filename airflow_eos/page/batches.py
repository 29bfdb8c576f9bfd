"""The newest batches of a checkpoint, read anew only where something has changed.

Two listings say which batches stand and when they were committed. What ``offsets/N`` says is read
once and kept for as long as its object stays the same one: an idle pipeline costs no reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from airflow_eos.checkpoint.backend import is_batch
from airflow_eos.checkpoint.progress import SourceProgress
from airflow_eos.checkpoint.spark_log import SparkLog, kafka_offsets

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore, StoredObject
    from airflow_eos.checkpoint.spark_log import Log, OffsetsEntry

KEPT = 24
"""So many of the newest batches are looked at."""


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch of Spark's logs; times in ms since the epoch.

    ``planned_at_ms`` by the driver's clock (the store's where an old Spark wrote none),
    ``committed_at_ms`` by the store's, None while it is in flight. ``rows`` None: not known.
    """

    batch: int
    planned_at_ms: int
    committed_at_ms: int | None
    rows: int | None


class Batches:
    """The newest batches of one checkpoint."""

    def __init__(self) -> None:
        self._read: dict[StoredObject, OffsetsEntry] = {}

    def newest(self, store: CheckpointStore, count: int = KEPT) -> tuple[PlannedBatch, ...]:
        """The newest ``count``, the oldest first.

        Raises:
            CheckpointFormatError: a file cannot be read.
            StoreError: the store did not answer.
        """
        log = SparkLog(store)
        planned = _by_batch(store, "offsets")
        # Listed after: what is committed here was planned there.
        committed = _by_batch(store, "commits")
        wanted = sorted(planned)[-(count + 1) :]
        entries = {batch: self._entry(log, planned[batch]) for batch in wanted}
        # In one step, for whoever else asks at this moment.
        self._read = {planned[n]: entry for n, entry in entries.items() if entry is not None}
        found = []
        for batch in wanted[-count:]:
            entry = entries[batch]
            if entry is None:  # purged since it was listed
                continue
            done = committed.get(batch)
            found.append(
                PlannedBatch(
                    batch=batch,
                    planned_at_ms=entry.batch_timestamp_ms or planned[batch].modified_at_ms,
                    committed_at_ms=done.modified_at_ms if done is not None else None,
                    rows=_rows(log, batch, entry, entries.get(batch - 1)),
                )
            )
        return tuple(found)

    def _entry(self, log: SparkLog, listed: StoredObject) -> OffsetsEntry | None:
        return self._read.get(listed) or log.offsets(int(listed.name))


def _by_batch(store: CheckpointStore, log: Log) -> dict[int, StoredObject]:
    return {int(each.name): each for each in store.list(log) if is_batch(each.name)}


def _rows(
    log: SparkLog, batch: int, entry: OffsetsEntry, before: OffsetsEntry | None
) -> int | None:
    """Of all sources, reckoned as a source's progress is; None where one of them is unknown."""
    total = 0
    for index, (name, raw) in enumerate(entry.ends.items()):
        end = kafka_offsets(raw) if raw is not None else None
        begin = before.ends.get(name) if before is not None else None
        start = kafka_offsets(begin) if begin is not None else None
        if start is None and batch == 0:
            start = log.began(name)
        kind: Literal["kafka", "other"] = "other" if end is None else "kafka"
        rows = SourceProgress(index, kind, start, end, raw or "-", name).rows
        if rows is None:
            return None
        total += rows
    return total
