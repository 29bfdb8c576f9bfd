"""Spark's offset log held against the decisions, which are right where the two differ.

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
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.backend import (
    COMMITS,
    DECISIONS,
    METADATA,
    METADATA_COPY,
    OFFSETS,
    SOURCES,
    SPENT,
    is_batch,
)
from airflow_eos.checkpoint.decisions import DecisionLog
from airflow_eos.checkpoint.mending import damage, decided_offsets, mend, newest_known
from airflow_eos.checkpoint.spark_log import OffsetsEntry, SparkLog, kafka_offsets, parse_offsets
from airflow_eos.checkpoint.terms import newest_planned
from airflow_eos.errors import CheckpointFormatError, ContinuityError, Remedy, SupersededError
from airflow_eos.protocol.participant import ANEW, decision_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from airflow_eos.checkpoint.mending import Mend
    from airflow_eos.checkpoint.store import CheckpointStore


class OffsetLog:
    """``offsets/`` of one checkpoint, as far as a driver relies on it."""

    def __init__(self, store: CheckpointStore, decisions: DecisionLog) -> None:
        self._store = store
        self._decisions = decisions
        self._durable: set[str] = set()

    def evaluated(self, batch_id: int, evaluated_at_ms: int) -> str:
        """The content of ``offsets/N`` with which this process evaluates the batch.

        Args:
            batch_id: N.
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
        """The batch begins where the newest promise before it ended: exactly once, row by row.

        Raises:
            SupersededError: another driver has replaced the entry that says where it begins.
            ContinuityError: Spark was told to begin elsewhere.
        """
        self.require_as_decided(batch_id - 1)
        require_continuous(self._store, SparkLog(self._store), batch_id)

    def require_as_decided(self, batch_id: int) -> None:
        """The entry of the batch says what its first COMMIT decision says, if there is one.

        Raises:
            SupersededError: it says something else.
        """
        decided = decided_offsets(self._decisions, batch_id)
        if decided is not None and self._content(batch_id) != decided:
            raise SupersededError(
                f"{self._store.location}/{OFFSETS}/{batch_id} is not what batch {batch_id} was "
                f"delivered with: another driver has replaced it since this one started. {_NEXT}"
            )

    def repair(self, unreadable: Callable[[], Iterable[Mend]] = tuple) -> None:
        """Put right what Spark will read; only for a driver that has taken its term.

        See :mod:`.mending`. Older entries Spark never reads again.

        Args:
            unreadable: asked then: what is whole, and of no use to a start.

        Raises:
            CheckpointFormatError: what it will read is lost for good.
        """
        mend(self._store, damage(self._store, self._decisions))
        mend(self._store, unreadable())

    def make_durable(self, batch_id: int) -> None:
        """Sync what a decision of this batch rests on, on a disk: Spark syncs none of its files.

        What was there before the first batch of this run once, then what each batch adds. Not the
        state of the query, of which each task writes files.
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
        """Nothing else holds it, and events are told by it."""
        data = self._store.get(METADATA)
        if data and data != self._store.get(METADATA_COPY):
            self._store.put(METADATA_COPY, data)

    def _content(self, batch_id: int) -> str | None:
        data = self._store.get(f"{OFFSETS}/{batch_id}")
        return None if data is None else data.decode("utf-8", errors="replace")


def require_continuous(store: CheckpointStore, log: SparkLog, batch_id: int) -> None:
    """Refuse a batch that would begin earlier or later than the newest promise before it ended.

    A batch begins where the entry before it ends. Where that batch was promised, it says so itself.
    Where it was not, it is Spark's own: a control batch, which changes the state and reads nothing
    (``StreamingCheckpointManager.repartition``). It must end where the newest promise did; or the
    newest batch that another guarantee wrote since. Where it ends elsewhere, it has skipped a batch
    if it ends where that one began; else its decision is lost, or somebody has put it there.

    Raises:
        ContinuityError: it does not, with both ends.
    """
    decisions = DecisionLog(store)
    if decided_offsets(decisions, batch_id) is not None:
        return  # asked before it was promised; a sleeper may have promised one before it since
    before = batch_id - 1
    names = (name for name in store.folders(DECISIONS) if is_batch(name))
    for batch in sorted((int(name) for name in names if int(name) <= before), reverse=True):
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
    marked = [int(name) for name in store.folders(SPENT) if is_batch(name)]
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
    """By what it ends at, the batch before has skipped one, or was one."""
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
            f"{ends}its decision was lost, though Spark completes no batch before its rows are "
            "delivered; or files were put there by hand. Nothing was read.",
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
    """Whether the file itself, which is not what its batch was promised with, ends there."""
    try:
        stands = SparkLog(store).offsets(batch)
    except CheckpointFormatError:
        return False
    return stands is not None and _same_ends(stands, found)


def require_same_sources(
    store: CheckpointStore, sources: Mapping[str, Collection[str] | None]
) -> None:
    """Refuse a query of which Spark would mistake, leave out or read again what a source has.

    Spark tells sources apart by their names, or by their positions where they have none (its
    offset log 1, and 2 without source evolution). Where two have changed places it plans a batch
    of the others' offsets, which no start gets past; what the newest entry does not name it begins
    where that source first began; and it leaves unread what a planned batch was to read of a source
    that the query has no more.

    Args:
        store: the checkpoint.
        sources: of the query, by what the log knows them, their names or positions from 0; with
            the Kafka topics that each reads, None where that is not known.

    Raises:
        ContinuityError: so it would be.
        CheckpointFormatError: what Spark will read of the log is lost for good.
    """
    decisions = DecisionLog(store)
    log = SparkLog(store, damage(store, decisions))
    newest = newest_known(store, decisions)
    entry = None if newest is None else log.offsets(newest)
    if newest and entry is not None and not entry.ends:  # nobody can read it: put aside
        newest -= 1
        entry = log.offsets(newest)
    if newest is None or entry is None or not entry.ends:
        return
    where = f"{store.location}/{OFFSETS}/{newest}"
    named = not all(map(is_batch, sources))
    was_named = not all(map(is_batch, entry.ends))
    if named != was_named or (not named and len(sources) != len(entry.ends)):
        raise ContinuityError(
            f"{where} is of {_sources_told(entry.ends)}, and the query has "
            f"{_sources_told(sources)}: Spark would not know which is which. {_NOTHING_YET}",
            _AS_BEFORE,
            ANEW,
        )
    for name, topics in sources.items():
        read = kafka_offsets(entry.ends.get(name) or "") or {}
        if topics is not None and (gone := sorted(read.keys() - set(topics))):
            raise ContinuityError(
                f"{where} is of topic {', '.join(gone)} in source {name}, which reads "
                f"{', '.join(sorted(topics))} in the query: rows of it would be lost, or sources "
                f"have changed places. {_NOTHING_YET}",
                _AS_BEFORE,
                ANEW,
            )
    if named:
        _require_none_left_out(store, log, newest, entry, sources)


def _require_none_left_out(
    store: CheckpointStore,
    log: SparkLog,
    newest: int,
    entry: OffsetsEntry,
    sources: Collection[str],
) -> None:
    """Nothing of a named source that goes is in flight, and none comes back."""
    where = f"{store.location}/{OFFSETS}/{newest}"
    before = log.offsets(newest - 1) if newest else None
    gone = [
        name
        for name, end in entry.ends.items()
        if name not in sources and end != (before.ends.get(name) if before else None)
    ]
    if gone and log.find("commits", newest) is None:
        raise ContinuityError(
            f"{where} is of a batch in flight, which reads rows of {_sources_told(gone)}; the "
            f"query has {_sources_told(sources)}, and Spark would leave them out. {_NOTHING_YET}",
            Remedy(
                change="start the query once more with all sources and "
                "trigger={'availableNow': True}, and take the source out after that",
                start=True,
            ),
        )
    for name in sources:
        if name not in entry.ends and (last := _once_read(store, log, name)) is not None:
            raise ContinuityError(
                f"{where} is not of the source {name!r}, which {last}: Spark would read it again "
                f"from where it first began. {_NOTHING_YET}",
                Remedy(
                    change=f"give it another name than {name!r}, and startingOffsets from where "
                    "it is to go on",
                    start=True,
                    costs="rows before them are not read, and rows behind them are read, whether "
                    "or not they were before",
                ),
            )


def _once_read(store: CheckpointStore, log: SparkLog, name: str) -> str | None:
    """Which batch has read of a source, or that this is not known; None where none has."""
    if name not in store.folders(SOURCES):
        return None
    kept = sorted((int(e.name) for e in store.list(OFFSETS) if is_batch(e.name)), reverse=True)
    is_whole = kept[-1:] == [0]
    for batch in kept:
        try:
            entry = log.offsets(batch)
        except CheckpointFormatError:
            is_whole = False
            continue
        if entry is not None and entry.ends.get(name) is not None:
            return f"batch {batch} read up to {entry.ends[name]}"
    if is_whole:
        return None  # a start that added it died before it planned a batch
    return f"has its folder {SOURCES}/{name}, and may have been read by a batch that is purged"


def _sources_told(names: Collection[str]) -> str:
    if all(map(is_batch, names)):
        return f"{len(names)} {'source' if len(names) == 1 else 'sources'} without names"
    return " and ".join(map(repr, names))


def _same_ends(expected: OffsetsEntry, found: OffsetsEntry) -> bool:
    """Of every source that had an end; sources that came since began after it."""
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
_AS_BEFORE = Remedy(change="start the query with the sources that it had", start=True)
_NEXT = (
    "Nothing of ours was made visible and nothing is lost. Make sure that no other driver runs "
    "this checkpoint, then start the query again: it takes the range that the decisions name."
)
