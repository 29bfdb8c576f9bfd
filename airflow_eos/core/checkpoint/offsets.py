"""Checks and repairs of Spark's offset log by the decisions, which win where the two differ.

Spark's ``add`` looks whether the name is free, writes beside it and renames; two drivers can both
do it, and the later rename stands, even after ``commits/N`` (S3A copies, which takes longer still).
A restart would then read another range than the one that was delivered, without complaint. So a
COMMIT decision keeps ``offsets/N`` as its attempt was evaluated with it:

* what the file says is believed only if its time stamp is the one Spark evaluated the batch with;
* a starting driver puts the newest two entries right, after it has taken its term;
* its first batch looks at both again, since a late rename may have come between that and Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence

from airflow_eos.core.checkpoint.backend import (
    COMMITS,
    DECISIONS,
    METADATA,
    METADATA_COPY,
    OFFSETS,
    SOURCES,
    SPENT,
)
from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.inputs import require_held
from airflow_eos.core.checkpoint.layout import batch_folders, newest_planned
from airflow_eos.core.checkpoint.mend import Mend
from airflow_eos.core.checkpoint.mending import damage, decided_offsets, mend, newest_known
from airflow_eos.core.checkpoint.spark_log import (
    OffsetsEntry,
    SparkLog,
    kafka_offsets,
    parse_offsets,
)
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.protocol.participant import ANEW, decision_lost
from airflow_eos.errors import CheckpointFormatError, ContinuityError, Remedy, SupersededError


class OffsetLog:
    """``offsets/`` of one checkpoint, as far as a driver relies on it."""

    def __init__(self, store: CheckpointStore, decisions: DecisionLog) -> None:
        self._store = store
        self._decisions = decisions
        self._durable: set[str] = set()

    def evaluated(self, batch_id: int, evaluated_at_ms: int) -> str:
        """Return the content of ``offsets/N`` with which this process evaluates the batch.

        Args:
            evaluated_at_ms: Spark's time stamp of the batch that it evaluates now
                (``batchTimestampMs``, what ``current_timestamp()`` gives in it).

        Raises:
            SupersededError: the file is gone, or another driver's.
            CheckpointFormatError: the file cannot be read.
        """
        content = self._content(batch_id)
        if content is None:
            raise SupersededError(
                f"Batch {batch_id}: {OFFSETS}/{batch_id} is gone from {self._store.location} while "
                f"the batch runs. {_NEXT}"
            )
        where = f"{self._store.location}/{OFFSETS}/{batch_id}"
        written_for_ms = parse_offsets(content.encode(), where).batch_timestamp_ms
        if written_for_ms != evaluated_at_ms:
            raise SupersededError(
                f"Batch {batch_id}: {where} was planned at {written_for_ms}, but this driver "
                f"evaluates a batch planned at {evaluated_at_ms} (ms since the epoch): another "
                f"driver has replaced it. {_NEXT}"
            )
        return content

    def require_begins_where_promised(self, batch_id: int) -> None:
        """Require that the batch begins where the newest promise before it ended, row by row.

        Raises:
            SupersededError: another driver has replaced the entry that says where it begins.
            ContinuityError: Spark was told to begin elsewhere, or offsets stand for other rows.
        """
        self.require_as_decided(batch_id - 1)
        require_continuous(self._store, SparkLog(self._store), batch_id)
        require_held(self._store, self._decisions)

    def require_as_decided(self, batch_id: int) -> None:
        """Require that the batch's entry says what its first COMMIT decision says, if any.

        Raises:
            SupersededError: the entry says something else.
        """
        decided = decided_offsets(self._decisions, batch_id)
        if decided is not None and self._content(batch_id) != decided:
            raise SupersededError(
                f"{self._store.location}/{OFFSETS}/{batch_id} is not what batch {batch_id} was "
                f"delivered with: another driver has replaced it since this one started. {_NEXT}"
            )

    def repair(self, unreadable: Callable[[], Iterable[Mend]] = tuple) -> None:
        """Repair the files that Spark will read; only for a driver that has taken its term.

        See :mod:`.mending`. Spark never reads older entries again.

        Args:
            unreadable: called after that, for entries that are whole, and of no use to a start.

        Raises:
            CheckpointFormatError: a file that Spark will read is lost for good.
        """
        mend(self._store, damage(self._store, self._decisions))
        mend(self._store, unreadable())

    def make_durable(self, batch_id: int) -> None:
        """Sync what a decision of this batch rests on, on a disk: Spark syncs none of its files.

        Files from before this run's first batch are synced once, then those that each batch adds.
        Not the state of the query, of which each task writes files.
        """
        if not self._store.is_on_a_disk:
            return  # a bucket answers what is durable; HDFS, what its data nodes have in memory
        new = {METADATA, f"{OFFSETS}/{batch_id}", f"{COMMITS}/{batch_id - 1}"}
        if not self._durable:
            self._keep_the_query_id()
            new |= {each.path for log in (OFFSETS, COMMITS) for each in self._store.list(log)}
        for source in self._store.folders(SOURCES):
            new |= {each.path for each in self._store.list(f"{SOURCES}/{source}")}
        self._store.make_durable(*sorted(new - self._durable))
        self._durable |= new

    def _keep_the_query_id(self) -> None:
        """Copy ``metadata``: nothing else holds the query's id, by which events are told apart."""
        data = self._store.get(METADATA)
        if data and data != self._store.get(METADATA_COPY):
            self._store.put(METADATA_COPY, data)

    def _content(self, batch_id: int) -> str | None:
        data = self._store.get(f"{OFFSETS}/{batch_id}")
        return None if data is None else data.decode("utf-8", errors="replace")


def require_continuous(store: CheckpointStore, log: SparkLog, batch_id: int) -> None:
    """Refuse a batch that would begin earlier or later than the newest promise before it ended.

    A batch begins where the entry before it ends. Where that entry's batch was promised, its
    decision says so. Where not, it is Spark's own: a control batch, which changes the state and
    reads nothing (``StreamingCheckpointManager.repartition``). A control batch must end where the
    newest promise did; or the newest batch that another guarantee wrote since. Where it ends
    elsewhere, it has skipped a batch if it ends where that one began; else its decision is lost, or
    somebody has put it there.

    Raises:
        ContinuityError: the batch begins elsewhere; with both ends.
    """
    decisions = DecisionLog(store)
    if decided_offsets(decisions, batch_id) is not None:
        return  # checked before it was promised; a sleeper may have promised an earlier one since
    before = batch_id - 1
    for batch in (each for each in reversed(batch_folders(store, DECISIONS)) if each <= before):
        text = decided_offsets(decisions, batch)
        if text is None:
            continue
        promised = parse_offsets(text.encode(), f"{store.location}/{DECISIONS}/{batch}")
        if batch < before:
            _require_ends(store, log, promised, batch, before)
        return


def _require_ends(
    store: CheckpointStore, log: SparkLog, promised: OffsetsEntry, batch: int, before: int
) -> None:
    marked = batch_folders(store, SPENT)
    written = max((each for each in marked if batch < each <= before), default=None)
    owner, expected = (batch, promised) if written is None else (written, log.offsets(written))
    found = log.offsets(before)
    if expected is None or found is None or _same_ends(expected, found):
        return
    raise _elsewhere(store, log, before, owner, found, expected)


def _elsewhere(
    store: CheckpointStore,
    log: SparkLog,
    before: int,
    owner: int,
    found: OffsetsEntry,
    expected: OffsetsEntry,
) -> ContinuityError:
    """Return the error, by where the entry before ends: a skipped batch, or a lost decision."""
    ends = (
        f"{store.location}: batch {before + 1} would begin at {_told(found)}, where {OFFSETS}/"
        f"{before} ends, but what is known to be delivered before it ended with batch {owner} at "
        f"{_told(expected)}: rows would come twice, or not at all. No decision names batch "
        f"{before}: "
    )
    began = log.offsets(owner - 1) if owner else None
    skipped = began is not None and _same_ends(began, found)
    if not skipped and not _same_ends_as_it_stands(store, owner, found):
        return ContinuityError(
            f"{ends}another sink, as Spark's own, ran batch {before}; or its decision was lost, "
            "though Spark completes no batch before its rows are delivered; or files were put "
            "there by hand. Nothing was read.",
            *decision_lost(before),
        )
    moved = ", ".join(
        f"{OFFSETS}/{each} and {COMMITS}/{each}"
        for each in range(owner + 1, (newest_planned(store) or before) + 1)
    )
    if skipped:
        moved += f" and {COMMITS}/{owner}"
    how = (
        f"skipped batch {owner} in flight"
        if skipped
        else f"went by {OFFSETS}/{owner} as a superseded driver has left it; the next start puts "
        "that right"
    )
    return ContinuityError(
        f"{ends}it is a control batch of Spark's, a state repartition that {how}. Nothing was "
        "read.",
        Remedy(
            change=f"move {moved} out of {store.location}",
            start=True,
            costs="a repartition of the state that was made meanwhile is undone: make it again "
            "after a drain",
        ),
    )


def _same_ends_as_it_stands(store: CheckpointStore, batch: int, found: OffsetsEntry) -> bool:
    """Whether the file of the batch, which differs from what was promised, ends there."""
    try:
        stands = SparkLog(store).offsets(batch)
    except CheckpointFormatError:
        return False
    return stands is not None and _same_ends(stands, found)


def require_same_sources(store: CheckpointStore, topics: Sequence[Collection[str] | None]) -> None:
    """Refuse a query whose sources Spark would mistake for others.

    Spark tells sources apart by their positions. With another number of them it ends with an
    error; where two have changed places it plans a batch of one with the offsets of the other, and
    no start gets past that. Both come after the term, which has stopped whoever ran.

    Args:
        topics: those that each source of the query reads, None where that is not known.

    Raises:
        ContinuityError: Spark would mistake them; or it does not start again from such a log.
        CheckpointFormatError: what Spark will read of the log is lost for good.
    """
    decisions = DecisionLog(store)
    log = SparkLog(store, damage(store, decisions))
    newest = newest_known(store, decisions)
    entry = None if newest is None else log.offsets(newest)
    if newest and entry is not None and not entry.ends:  # unreadable, and put aside
        newest -= 1
        entry = log.offsets(newest)
    if entry is None or not entry.ends:
        return
    where = f"{store.location}/{OFFSETS}/{newest}"
    if entry.version > 1:
        raise ContinuityError(
            f"{where} is of Spark's offset log {entry.version}: {OFFSET_LOG_2}. {_NOTHING_YET}",
            ANEW,
        )
    if len(topics) != len(entry.ends):
        raise ContinuityError(
            f"{where} is of {len(entry.ends)} sources, and the query has {len(topics)}. Spark "
            f"tells them apart by their positions. {_NOTHING_YET}",
            *_AS_BEFORE,
        )
    for position, (reads, end) in enumerate(zip(topics, entry.ends.values(), strict=True)):
        gone = (kafka_offsets(end or "") or {}).keys() - set(reads or ())
        if reads is not None and gone:
            raise ContinuityError(
                f"{where} is of topic {', '.join(sorted(gone))} in source {position}, which reads "
                f"{', '.join(sorted(reads))} in the query: what was not read of it would be lost, "
                f"or sources have changed places. {_NOTHING_YET}",
                *_AS_BEFORE,
            )


def _same_ends(expected: OffsetsEntry, found: OffsetsEntry) -> bool:
    """Whether every source that had an end has the same; a newer source began after it."""
    theirs, ours = _ends(found), _ends(expected)
    if expected.version != found.version and not theirs.keys() & ours.keys():
        return list(theirs.values()) == list(ours.values())  # numbers then, names now
    return all(theirs.get(name) == end for name, end in ours.items())


def _ends(entry: OffsetsEntry) -> dict[str, object]:
    return {
        name: kafka_offsets(raw) or json.loads(raw)
        for name, raw in entry.ends.items()
        if raw is not None
    }


def _told(entry: OffsetsEntry) -> str:
    return "; ".join(raw for raw in entry.ends.values() if raw is not None)


_NOTHING_YET = "Nothing was read, and nobody who runs was stopped."
_AS_BEFORE = (Remedy(change="start the query with the sources that it had", start=True), ANEW)
OFFSET_LOG_2 = (
    "with it, Spark 4.2.0 does not start again over a batch that was in flight when the driver "
    "died ('None.get')"
)
_NEXT = (
    "Nothing of ours was made visible and nothing is lost. Make sure that no other driver runs "
    "this checkpoint, then start the query again: it takes the range that the decisions name."
)
