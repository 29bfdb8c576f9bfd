"""``MicroBatchExecution`` of Spark 4.2 and its logs in small: read, planned, committed, purged."""

from __future__ import annotations

import json
import math
import re
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.failpoints import failpoint
from tests.chaos.journal import Journal, now_ms
from tests.chaos.spark_data import Ends, Offset, SparkError, ends_of

NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_CACHED = 2
_ONE_BY_ONE = 3


class MetadataLog:
    """``HDFSMetadataLog``: one text for each batch number, in a folder."""

    def __init__(self, folder: Path, *, gap_s: float = 0.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._gap_s = gap_s
        self._cache: dict[int, str] = {}
        self._purged_before = 0

    def add(self, batch: int, text: str) -> bool:
        """False where an entry stands; raises where one came between two looks."""
        target = self._folder / str(batch)
        if batch in self._cache or target.exists():
            return False
        failpoint(f"{self._folder.name}-looked")
        hidden = self._folder / f".{batch}.{uuid.uuid4()}.tmp"
        hidden.write_text(text)
        if target.exists():
            raise SparkError(f"MULTIPLE_STREAMING_QUERIES_CONCURRENTLY_USING_PATH {target}")
        failpoint(f"{self._folder.name}-renaming")
        time.sleep(self._gap_s)
        try:
            hidden.rename(target)
        except FileNotFoundError as error:  # another folder was put here meanwhile
            raise SparkError(f"RENAME_SRC_PATH_NOT_FOUND {hidden}") from error
        self._cache[batch] = text
        for oldest in list(self._cache)[:-_CACHED]:
            del self._cache[oldest]
        return True

    def get(self, batch: int) -> str | None:
        if batch in self._cache:
            return self._cache[batch]
        try:
            return (self._folder / str(batch)).read_text()
        except FileNotFoundError:
            return None

    def latest(self) -> int | None:
        """The greatest number, in the folder or in memory."""
        return max((*self.listed(), *self._cache), default=None)

    def listed(self) -> list[int]:
        """What lies in the folder; anything that is a number counts as a batch."""
        names = (entry.name for entry in self._folder.iterdir() if entry.is_file())
        return sorted(int(name) for name in names if NUMBER.fullmatch(name))

    def purge(self, before: int) -> None:
        """Remove the numbers below; up to three since the last time without listing."""
        some = range(self._purged_before, before)
        if len(some) > _ONE_BY_ONE:
            found = [*self.listed(), *self._cache]
            some = range(min(found, default=before), before)
        for batch in some:
            (self._folder / str(batch)).unlink(missing_ok=True)
            self._cache.pop(batch, None)
        self._purged_before = before


def offsets_text(end: Offset, timestamp_ms: int) -> str:
    """An ``offsets/N`` of a single source."""
    about = {"batchWatermarkMs": 0, "batchTimestampMs": timestamp_ms, "conf": {}}
    lines = ("v1", json.dumps(about), json.dumps(end))
    return "\n".join(lines)


def read_end(text: str) -> Offset:
    found: Offset = json.loads(text.splitlines()[2])
    return found


def read_timestamp_ms(text: str) -> int:
    return int(json.loads(text.splitlines()[1])["batchTimestampMs"])


# --- spark loop -----------------------------------------------------------------------------------
# ``MicroBatchExecution`` of Spark 4.2 in small: what it reads at a start, plans, commits, purges.
#
# What a batch ranges over is kept in memory, as Spark keeps it: ``offsets/N`` is read at a start
# and never again, so what another driver writes there afterwards is not noticed.


_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


@dataclass(frozen=True)
class PlannedBatch:
    """A batch as the driver holds it in memory; ``timestamp_ms`` is its ``batchTimestampMs``."""

    number: int
    start: Offset
    end: Offset
    timestamp_ms: int


class Planner(Protocol):
    """What Spark asks of a source (``MicroBatchStream``) to plan batches."""

    def initial(self) -> Offset:
        """Where the first batch starts: asked for until there is a second."""
        ...

    def latest(self, start: Offset) -> Offset:
        """Where the batch that starts there ends; the start itself where nothing is new."""
        ...


class MicroBatches:
    """The batches of one run of a query on one checkpoint.

    ``retained`` is ``spark.sql.streaming.minBatchesToRetain``. Spark purges beside the batch (in
    a thread of its own); here it is done before the batch begins, the earliest that it can be.
    """

    def __init__(
        self,
        checkpoint: Path,
        source: Planner,
        journal: Journal,
        *,
        retained: int = 100,
        gap_s: float = 0.0,
    ) -> None:
        self._checkpoint = checkpoint
        self._source = source
        self._journal = journal
        self._retained = retained
        self._gap_s = gap_s
        self._running: PlannedBatch | None = None
        self._start: Offset = {}
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
            self._start = self._source.initial()
            return None
        end, timestamp_ms = self._read(latest)
        self._start = self._read(latest - 1)[0] if latest else self._source.initial()
        if self._commits.latest() == latest:
            self._start, self._next = end, latest + 1
            return None
        self._next = latest
        self._running = PlannedBatch(latest, self._start, end, timestamp_ms)
        return self._running

    def plan(self) -> PlannedBatch | None:
        """``constructNextBatch``: up to where the source says; None where it has nothing new.

        Spark purges what is older than ``retained`` batches as soon as it has planned the next.
        """
        end = self._source.latest(self._start)
        if end == self._start:
            return None
        planned = PlannedBatch(self._next, self._start, end, now_ms())
        text = offsets_text(end, planned.timestamp_ms)
        if not self._offsets.add(planned.number, text):
            raise SparkError(f"CONCURRENT_STREAM_LOG_UPDATE offsets/{planned.number}")
        self._journal.note(
            "planned", batch=planned.number, ends=ends_of(end), ms=planned.timestamp_ms
        )
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
        self._start, self._next, self._running = batch.end, batch.number + 1, None

    def _read(self, batch: int) -> tuple[Offset, int]:
        text = self._offsets.get(batch)
        if text is None:
            raise SparkError(f"batch {batch} doesn't exist")
        return read_end(text), read_timestamp_ms(text)

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
        is_named = (self._checkpoint / "metadata").exists()
        if not is_named and (self._offsets.listed() or self._commits.listed()):
            raise SparkError("STREAMING_CHECKPOINT_MISSING_METADATA_FILE")  # from 4.2 on
        write_unless_there(self._checkpoint, "metadata", json.dumps({"id": str(uuid.uuid4())}))


def write_unless_there(checkpoint: Path, name: str, text: str) -> None:
    """As Spark writes what it writes once: two who looked both write, and the later one stands."""
    target = checkpoint / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = checkpoint / f".{uuid.uuid4()}.tmp"
        hidden.write_text(text)
        hidden.rename(target)


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
    return None if data is None else ends_of(read_end(data.decode()))
