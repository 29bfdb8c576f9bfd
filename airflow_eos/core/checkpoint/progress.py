"""The progress of a query, by its checkpoint alone, at a cost that does not grow with its age."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from airflow_eos.core.checkpoint.backend import COMMITS, OFFSETS, SOURCES, STATE, StoredObject
from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.mend import Mend
from airflow_eos.core.checkpoint.mending import damage
from airflow_eos.core.checkpoint.spark_log import (
    KafkaOffsets,
    OffsetsEntry,
    SparkLog,
    kafka_offsets,
)
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.protocol.decision import Evidence, encode
from airflow_eos.errors import CheckpointFormatError, ConfigurationError, Remedy

_FILES = "rocksdbSstFileSize"
_LOOKS = 3
"""Looks before a checkpoint is called damaged: a running query moves on while it is read."""


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """The range of one source in a batch: rows from ``start`` (included) to ``end`` (excluded).

    ``name`` is the position, or the name that a newer Spark gives it; ``raw`` the JSON that Spark
    wrote for the end, ``-`` where there is none. ``start`` is None where it is not recorded.
    """

    index: int
    kind: Literal["kafka", "other"]
    start: KafkaOffsets | None
    end: KafkaOffsets | None
    raw: str
    name: str = ""

    @property
    def rows(self) -> int | None:
        """The number of offsets between start and end; None for a new partition or topic.

        An upper bound of the rows: transaction markers and compacted rows take offsets too.
        """
        if self.start is None or self.end is None:
            return None
        total = 0
        for topic, partitions in self.end.items():
            for partition, end in partitions.items():
                start = self.start.get(topic, {}).get(partition)
                if start is None or start > end:  # a topic created anew under the same name
                    return None
                total += end - start
        return total


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The progress of a query. Times in ms since the epoch, by the store's clock.

    ``in_flight`` is the batch that was planned and is not committed. ``committed_at_ms`` is when
    ``commits/<latest>`` was written, ``planned_at_ms`` when ``offsets/<latest>`` was. ``sources``
    belong to the batch ``latest_offsets``. All None, and empty, where no query has run. ``mends``
    repair what is damaged: the state is told as it will be after the next start has mended it.
    """

    query_id: str | None
    latest_offsets: int | None
    latest_commit: int | None
    in_flight: int | None
    committed_at_ms: int | None
    planned_at_ms: int | None
    sources: tuple[SourceProgress, ...]
    mends: tuple[Mend, ...] = ()


def read_state(store: CheckpointStore) -> CheckpointState:
    """Read the query's progress: about ten small requests, one of them a listing of ``offsets/``.

    Spark keeps as many entries there as it retains batches, whatever the age of the checkpoint. No
    heartbeat says where to look: the newest driver's last one may lag by more than Spark retains,
    and a former driver that wakes up may have added that number again.

    Raises:
        CheckpointFormatError: a file is truncated, foreign or of an unknown version, or the two
            logs do not fit together; and nothing tells what was there.
        StoreError: the store did not answer.
    """
    try:
        return _read(SparkLog(store))
    except CheckpointFormatError:
        state = read_mended(store, DecisionLog(store))
        if not state.mends:
            raise
        return state


def require_begun(store: CheckpointStore, state: CheckpointState) -> None:
    """Refuse a location where no query ever began, since nothing there tells of any.

    Raises:
        ConfigurationError: the checkpoint has neither a query's id nor batches.
    """
    if state.query_id is None and state.latest_offsets is None:
        raise ConfigurationError(
            f"{store.location} holds no Spark checkpoint: no metadata, no offsets/, no eos/.",
            Remedy(change="give the checkpointLocation of the query"),
        )


def begun_sources(store: CheckpointStore) -> tuple[SourceProgress, ...]:
    """Return the sources of a query that has planned no batch, as far as Spark wrote their begin.

    Their end is that begin: nothing of them was read. None where it is not Kafka's, or not known.
    """
    log, begun = SparkLog(store), []
    for index, name in enumerate(sorted(store.folders(SOURCES))):
        at = log.began(name)
        begun.append(SourceProgress(index, "kafka" if at else "other", at, at, "-", name))
    return tuple(begun)


def read_mended(store: CheckpointStore, decisions: DecisionLog) -> CheckpointState:
    """Read the state as :func:`read_state`, after a look at all that could be damaged."""
    mends = damage(store, decisions)
    return replace(_read(SparkLog(store, mends)), mends=mends)


def _read(log: SparkLog) -> CheckpointState:
    for look in range(1, _LOOKS + 1):
        state = _look(log, last=look == _LOOKS)
        if state is not None:
            return state
    raise CheckpointFormatError(
        f"{log.location}: {OFFSETS}/ changed {_LOOKS} times while it was read, or files of "
        "it are missing. Stop the query, then look again."
    )


def _look(log: SparkLog, *, last: bool = False) -> CheckpointState | None:
    """Read the state once; None where the query moved on between two requests."""
    query_id = log.query_id()
    planned = log.newest("offsets")
    if planned is None:
        committed = log.newest("commits")
        if committed is None:
            return CheckpointState(query_id, None, None, None, None, None, ())
        batch = -1
    else:
        batch = int(planned.name)
        # Asked after offsets/N was seen, so "N is not committed" was true at an instant.
        committed = (
            log.find("commits", batch)
            or (log.find("commits", batch - 1) if batch else None)
            or log.newest("commits")
        )
    done = int(committed.name) if committed else None
    if planned is None or (done if done is not None else -1) not in {batch, batch - 1}:
        if last:
            raise _apart(log, planned, committed)
        return None
    sources = _sources(log, batch)
    if sources is None or (done is not None and log.commit(done) is None):
        return None
    return CheckpointState(
        query_id=query_id,
        latest_offsets=batch,
        latest_commit=done,
        in_flight=None if done == batch else batch,
        committed_at_ms=committed.modified_at_ms if committed else None,
        planned_at_ms=planned.modified_at_ms,
        sources=sources,
    )


def _apart(
    log: SparkLog, planned: StoredObject | None, committed: StoredObject | None
) -> CheckpointFormatError:
    return CheckpointFormatError(
        f"{log.location}: the latest of {OFFSETS}/ is {planned and planned.name}, the latest of "
        f"{COMMITS}/ is {committed and committed.name}: expected the same number, or offsets one "
        "ahead. Files were lost, or an older copy was put in place while a driver still ran. "
        "Restore both folders from a copy of the checkpoint: which batches were delivered cannot "
        "be told from what is left."
    )


def _sources(log: SparkLog, batch: int) -> tuple[SourceProgress, ...] | None:
    """Return the sources of the batch; None where its file was purged since it was seen."""
    entry = log.offsets(batch)
    if entry is None:
        return None
    before = log.offsets(batch - 1) if batch else None
    if before is not None and entry.version == before.version == 1:
        _require_as_many(log, batch, len(entry.ends), len(before.ends))
    progress = []
    for index, (name, raw) in enumerate(entry.ends.items()):
        end = kafka_offsets(raw) if raw is not None else None
        start: KafkaOffsets | None = None
        if end is not None:
            start = _start(log, name, before, is_first=batch == 0)
        kind: Literal["kafka", "other"] = "other" if end is None else "kafka"
        progress.append(SourceProgress(index, kind, start, end, raw or "-", name))
    return tuple(progress)


def _require_as_many(log: SparkLog, batch: int, found: int, expected: int) -> None:
    """Refuse a v1 file cut at the end of a line: whole by itself, only its neighbour shows it."""
    if found != expected:
        raise CheckpointFormatError(
            f"{log.location}/{OFFSETS}/{batch} has {found} sources, the batch before had "
            f"{expected}: expected the same number. It is truncated. Restore it from a copy of "
            "the checkpoint."
        )


def _start(
    log: SparkLog, name: str, before: OffsetsEntry | None, *, is_first: bool
) -> KafkaOffsets | None:
    """Return where the batch before ended, or where the source began in this batch."""
    begin = before.ends.get(name) if before is not None else None
    if begin is not None:
        return kafka_offsets(begin)
    if before is None and not is_first:
        return None  # the batch before is gone
    return log.began(name)


# --- state size -----------------------------------------------------------------------------------
# ``eos/state.json``: how large a query's state is, and what it costs a batch; for people.


class StateSize(Evidence, frozen=True, kw_only=True):
    """The size and cost of all stateful operators' state after ``batch_id``; times in ms.

    ``update_ms`` and ``commit_ms`` are added up over the tasks, of which there are ``tasks``, so
    that their sum can exceed ``batch_ms``, which is by the clock. ``file_bytes`` is what RocksDB
    has on the executors' disks; None for Spark's default store, which has its state in memory.

    ``late_rows`` came behind the watermark, so that Spark has left them out; added up over the
    ``late_counted`` batches, of all so far, whose progress was seen.
    """

    batch_id: int
    rows: int
    memory_bytes: int
    file_bytes: int | None
    tasks: int
    update_ms: int
    commit_ms: int
    batch_ms: int
    late_rows: int
    late_counted: int

    @classmethod
    def of(cls, query: Any, before: StateSize | None = None) -> StateSize | None:
        """Return the size after the newest batch of Spark's ``StreamingQuery``; None: nothing new.

        That is where it has no state, or no batch has ended since ``before``, the size noted last;
        late rows are counted on from there.
        """
        progress = query.lastProgress
        operators = progress["stateOperators"] if progress is not None else []
        if not operators or (before is not None and progress["batchId"] <= before.batch_id):
            return None

        def total(name: str) -> int:
            return sum(int(operator[name]) for operator in operators)

        files = [operator["customMetrics"].get(_FILES) for operator in operators]
        late, counted = (0, 0) if before is None else (before.late_rows, before.late_counted)
        for update in reversed(query._jsq.recentProgress()):  # noqa: SLF001 - few of them
            if update.batchId() > progress["batchId"]:
                continue  # the batch has ended since: the next note counts it
            if before is not None and update.batchId() <= before.batch_id:
                break
            late += sum(each.numRowsDroppedByWatermark() for each in update.stateOperators())
            counted += 1
        return cls(
            batch_id=int(progress["batchId"]),
            rows=total("numRowsTotal"),
            memory_bytes=total("memoryUsedBytes"),
            file_bytes=None if None in files else sum(files),
            tasks=total("numStateStoreInstances"),
            update_ms=total("allUpdatesTimeMs") + total("allRemovalsTimeMs"),
            commit_ms=total("commitTimeMs"),
            batch_ms=int(progress["durationMs"]["triggerExecution"]),
            late_rows=late,
            late_counted=counted,
        )


def read_state_size(store: CheckpointStore) -> StateSize | None:
    """Return the newest note of the state's size; None where there is no readable one."""
    try:
        return store.read(STATE, StateSize)
    except CheckpointFormatError:
        return None  # the next batch writes it anew


def write_state_size(store: CheckpointStore, size: StateSize) -> None:
    """Replace the note of the state's size."""
    store.put(STATE, encode(size))
