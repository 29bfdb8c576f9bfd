"""``MicroBatchExecution`` of Spark 4.2 in small: what it reads at a start, plans, commits, purges.

What a batch ranges over is kept in memory, as Spark keeps it: ``offsets/N`` is read at a start
and never again, so what another driver writes there afterwards is not noticed.
"""

from __future__ import annotations

import json
import math
import uuid
from dataclasses import dataclass
from pathlib import Path

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.failpoints import failpoint
from tests.chaos.journal import Journal, now_ms
from tests.chaos.spark_data import Ends, SparkError
from tests.chaos.spark_files import (
    NUMBER,
    MetadataLog,
    offsets_text,
    read_ends,
    read_timestamp_ms,
)

_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


@dataclass(frozen=True)
class PlannedBatch:
    """A batch as the driver holds it in memory; ``timestamp_ms`` is its ``batchTimestampMs``."""

    number: int
    starts: Ends
    ends: Ends
    timestamp_ms: int


class MicroBatches:
    """The batches of one run of a query on one checkpoint.

    ``retained`` is ``spark.sql.streaming.minBatchesToRetain``. Spark purges beside the batch (in
    a thread of its own); here it is done before the batch begins, the earliest that it can be.
    """

    def __init__(
        self,
        checkpoint: Path,
        topic: str,
        partitions: int,
        journal: Journal,
        *,
        retained: int = 100,
        gap_s: float = 0.0,
    ) -> None:
        self._checkpoint = checkpoint
        self._topic = topic
        self._journal = journal
        self._retained = retained
        self._gap_s = gap_s
        self._running: PlannedBatch | None = None
        self._starts: Ends = dict.fromkeys(range(partitions), 0)
        self._next = 0

    def evaluated_at(self, batch: int) -> int:
        """The ``batchTimestampMs`` that the batch is evaluated with, as this driver planned it."""
        assert self._running is not None
        assert self._running.number == batch
        return self._running.timestamp_ms

    def resume(self) -> PlannedBatch | None:
        """``populateStartOffsets``: the batch that has to run again, if there is one.

        The first thing to be called: nothing is read or written before.
        """
        self._begin()
        latest = self._offsets.latest()
        if latest is None:
            return None
        ends, timestamp_ms = self._read(latest)
        if latest:
            self._starts = self._read(latest - 1)[0]
        if self._commits.latest() == latest:
            self._starts, self._next = ends, latest + 1
            return None
        self._next = latest
        self._running = PlannedBatch(latest, self._starts, ends, timestamp_ms)
        return self._running

    def plan(self, available: Ends, most: int) -> PlannedBatch | None:
        """``constructNextBatch``: the next ``most`` rows of each partition; None if there are none.

        Spark purges what is older than ``retained`` batches as soon as it has planned the next.
        """
        ends = {p: min(available[p], start + most) for p, start in self._starts.items()}
        if ends == self._starts:
            return None
        planned = PlannedBatch(self._next, self._starts, ends, now_ms())
        text = offsets_text(self._topic, ends, planned.timestamp_ms)
        if not self._offsets.add(planned.number, text):
            raise SparkError(f"CONCURRENT_STREAM_LOG_UPDATE offsets/{planned.number}")
        self._journal.note("planned", batch=planned.number, ends=ends, ms=planned.timestamp_ms)
        if planned.number and self._offsets.get(planned.number - 1) is None:
            raise SparkError(f"batch {planned.number - 1} doesn't exist")
        if self._retained < planned.number:
            self._purge(planned.number - self._retained)
        self._running = planned
        return planned

    def commit(self, batch: PlannedBatch) -> None:
        """``markMicroBatchEnd``: the batch is over, the next begins where it ended."""
        if not self._commits.add(batch.number, _COMMIT):
            raise SparkError(f"CONCURRENT_STREAM_LOG_UPDATE commits/{batch.number}")
        self._journal.note("committed", batch=batch.number)
        self._starts, self._next, self._running = batch.ends, batch.number + 1, None

    def _read(self, batch: int) -> tuple[Ends, int]:
        text = self._offsets.get(batch)
        if text is None:
            raise SparkError(f"batch {batch} doesn't exist")
        return read_ends(text), read_timestamp_ms(text)

    def _purge(self, before: int) -> None:
        """``offsets`` first, then ``commits``; what goes is written down for the judge."""
        store = CheckpointStore.open(self._checkpoint)
        note_logs(store, self._journal, before=before)
        self._offsets.purge(before)
        failpoint("offsets-purged")
        self._commits.purge(before)

    def _begin(self) -> None:
        self._offsets = MetadataLog(self._checkpoint / "offsets", gap_s=self._gap_s)
        self._commits = MetadataLog(self._checkpoint / "commits", gap_s=self._gap_s)
        (self._checkpoint / "state").mkdir(parents=True, exist_ok=True)
        (self._checkpoint / "sources" / "0").mkdir(parents=True, exist_ok=True)
        start = json.dumps({self._topic: self._starts})
        for name, text in (
            ("metadata", json.dumps({"id": str(uuid.uuid4())})),
            ("sources/0/0", f"\0v1\n{start}"),
        ):
            if not (self._checkpoint / name).exists():
                hidden = self._checkpoint / f".{uuid.uuid4()}.tmp"
                hidden.write_text(text)
                hidden.rename(self._checkpoint / name)


def latest_commit(store: CheckpointStore) -> int:
    """The newest batch that the log calls committed, -1 if none."""
    return max(_listed(store, "commits"), default=-1)


def note_logs(
    store: CheckpointStore, journal: Journal, *, since: int = 0, before: float = math.inf
) -> None:
    """Write down what the logs hold (from ``since`` to below ``before``), for the checker."""
    for batch in _listed(store, "offsets"):
        ends = _ends(store, batch) if since <= batch < before else None
        if ends is not None:
            journal.note("offsets", batch=batch, ends=ends)
    for batch in _listed(store, "commits"):
        if since <= batch < before:
            journal.note("commits", batch=batch)


def committed_rows(store: CheckpointStore) -> int:
    """How many rows of the input the logs call committed."""
    ends = None
    if (latest := latest_commit(store)) >= 0:
        ends = _ends(store, latest)
    return 0 if ends is None else sum(ends.values())


def _listed(store: CheckpointStore, log: str) -> list[int]:
    names = (entry.name for entry in store.list(log))
    return sorted(int(name) for name in names if NUMBER.fullmatch(name))


def _ends(store: CheckpointStore, batch: int) -> Ends | None:
    data = store.get(f"offsets/{batch}")
    return None if data is None else read_ends(data.decode())
