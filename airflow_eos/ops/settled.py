"""Events of a checkpoint's settled batches, which follow one another without a gap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from airflow_eos.core.checkpoint.backend import (
    COMMITS,
    METADATA,
    METADATA_COPY,
    OFFSETS,
    STATE_STORES,
)
from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.layout import batches_in
from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.core.checkpoint.rulings import is_accepted
from airflow_eos.core.checkpoint.spark_log import (
    OffsetsEntry,
    SparkLog,
    kafka_offsets,
    parse_offsets,
)
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.protocol.participant import ANEW
from airflow_eos.core.protocol.promise import Promise
from airflow_eos.errors import CheckpointError, CheckpointFormatError, Remedy, SupersededError

__all__ = [
    "Settled",
    "SettledBatch",
    "SettledEvent",
    "behind",
    "crosses",
    "events_since",
    "hours_completed",
    "newest_of",
    "newest_settled",
    "pipeline_of",
    "read_settled",
]

Ends = Mapping[str, Any]
"""By source: ``{topic: {partition: offset of the next row}}``, or Spark's JSON of another kind."""


@dataclass(frozen=True, slots=True)
class SettledBatch:
    """One batch whose rows every reader can see, for ever.

    Attributes:
        batch_id: Spark's number, from 0.
        end: where the batch ended, by source.
        rows: how many were delivered, by participant; None where no decision tells (any more), or
            a person let the batch go on without some of them.
        watermark_ms: the event time that the query's watermark has reached, ms since the epoch, but
            never later than ``settled_at_ms``: a row with a time to come moves the watermark there,
            and says nothing of the rows until then. None where the query has no watermark.
        settled_at_ms: when ``commits/N`` was written, ms since the epoch, by the store's clock.
    """

    batch_id: int
    end: Ends
    rows: Mapping[str, int] | None
    watermark_ms: int | None
    settled_at_ms: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The settled batches that a look at a checkpoint found.

    Attributes:
        pipeline: the query's id, which Spark gives to a checkpoint once and for ever.
        newest: the newest settled batch; None before the first.
        began: where the sources began, by source; empty where that is not recorded.
        batches: settled batches in ascending order, those that Spark has purged left out.
    """

    pipeline: str
    newest: int | None
    began: Ends
    batches: tuple[SettledBatch, ...]


class SettledEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event: batches ``from_batch`` to ``to_batch``, included, are settled.

    The fields are those of :class:`SettledBatch`. ``start`` (included) and ``end`` (excluded) are
    by source; ``start`` lacks a source whose beginning is not recorded. ``rows`` is the sum by
    participant, None where a batch does not tell. ``watermark_before_ms`` is the highest watermark
    of all events before; None where none had any.
    """

    pipeline: str
    from_batch: int
    to_batch: int
    start: dict[str, Any]
    end: dict[str, Any]
    rows: dict[str, int] | None
    watermark_ms: int | None
    settled_at_ms: int
    watermark_before_ms: int | None = None

    @property
    def key(self) -> str:
        """The event's key, the same for the same range of a pipeline, whoever makes it and when."""
        return f"{self.pipeline}/{self.from_batch}-{self.to_batch}"

    @property
    def watermark_reached_ms(self) -> int | None:
        """The highest watermark of this event and all before; None where there was none."""
        told = [at for at in (self.watermark_before_ms, self.watermark_ms) if at is not None]
        return max(told, default=None)

    def as_extra(self) -> dict[str, Any]:
        """Return the event as JSON's own types, with its ``key``: ``extra`` of an asset event."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {"key": self.key, **fields}

    @classmethod
    def from_extra(cls, extra: Any) -> SettledEvent | None:
        """Parse an event that :meth:`as_extra` made; None where ``extra`` is no such event."""
        try:
            event = msgspec.convert(extra, type=cls, strict=True)
        except msgspec.ValidationError:
            return None
        return event if extra.get("key") == event.key else None


def newest_of(pipeline: str, extras: Iterable[Any]) -> SettledEvent | None:
    """Return the pipeline's newest event among ``extras``, whoever else has written some.

    The newest is that of the highest batch, as servers that store events have clocks of their own.
    """
    events = map(SettledEvent.from_extra, extras)
    ours = (event for event in events if event is not None and event.pipeline == pipeline)
    return max(ours, key=lambda event: event.to_batch, default=None)


def events_since(
    last: SettledEvent | None,
    found: Settled,
    *,
    each_batch: bool = False,
    at_most: int | None = None,
    former_watermark_ms: int | None = None,
) -> tuple[SettledEvent, ...]:
    """Return the events that are due, in ascending order, each from the end of the one before.

    Args:
        last: the newest event that was emitted, of whichever pipeline; None where there is none.
        found: the settled batches of the checkpoint now.
        each_batch: an event for each batch; purged batches are in the range of the first.
        at_most: so many events, the others are due the next time; None: all.
        former_watermark_ms: the watermark of the pipelines before, for this one's first event.

    Raises:
        CheckpointError: the checkpoint is behind the event, so it is an older copy.
    """
    if last is not None and last.pipeline != found.pipeline:
        last = None
    told = -1 if last is None else last.to_batch
    newest = -1 if found.newest is None else found.newest
    if last is not None and newest < told:
        raise CheckpointError(
            f"Events tell that batch {told} of pipeline {found.pipeline} is settled, but the "
            f"checkpoint's newest settled batch is {found.newest}: an older copy was put back. "
            "Nothing was emitted: restore the newest copy of the checkpoint."
        )
    batches = [batch for batch in found.batches if batch.batch_id > told]
    groups = [[batch] for batch in batches] if each_batch else [batches] if batches else []
    events: list[SettledEvent] = []
    for group in groups[:at_most]:
        last = _event(found, last, group, former_watermark_ms)
        events.append(last)
    return tuple(events)


def _event(
    found: Settled,
    last: SettledEvent | None,
    batches: Sequence[SettledBatch],
    former_watermark_ms: int | None,
) -> SettledEvent:
    first = 0 if last is None else last.to_batch + 1
    newest = batches[-1]
    whole = len(batches) == newest.batch_id - first + 1
    return SettledEvent(
        pipeline=found.pipeline,
        from_batch=first,
        to_batch=newest.batch_id,
        start=dict(found.began if last is None else last.end),
        end=dict(newest.end),
        rows=_total(batches) if whole else None,
        watermark_ms=newest.watermark_ms,
        settled_at_ms=newest.settled_at_ms,
        watermark_before_ms=former_watermark_ms if last is None else last.watermark_reached_ms,
    )


def _total(batches: Sequence[SettledBatch]) -> dict[str, int] | None:
    total: Counter[str] = Counter()
    for batch in batches:
        if batch.rows is None:
            return None
        total.update(batch.rows)
    return dict(total)


Wanted = Mapping[str, Mapping[str | int, int]]
"""``{topic: {partition: offset of the next row}}``, as tools that list ends of topics say it."""


def behind(end: Mapping[str, Any], wanted: Wanted) -> dict[str, dict[str, int]]:
    """Return how many offsets are missing, by topic and partition; empty where all are there.

    Args:
        end: where the sources are, as an event has it.
        wanted: the offsets that must have been read, by each source of the partition: a query may
            read it twice. A topic that no source reads is missing whole.
    """
    missing: dict[str, dict[str, int]] = {}
    sources = [each for each in end.values() if isinstance(each, Mapping)]  # others are not Kafka's
    for topic, partitions in wanted.items():
        read_by = [each[topic] for each in sources if topic in each]
        for partition, offset in partitions.items():
            at = str(partition)  # sources may share a topic's partitions out (``assign``)
            read = min((int(each[at]) for each in read_by if at in each), default=0)
            if read < offset:
                missing.setdefault(topic, {})[str(partition)] = offset - read
    return missing


def crosses(event: SettledEvent, wanted: Wanted) -> bool:
    """Whether rows up to ``wanted`` are there by this event, and were not before it.

    Events of a pipeline follow one another without a gap, so that is true of exactly one: a program
    that acts on that one alone acts once.
    """
    return bool(behind(event.start, wanted)) and not behind(event.end, wanted)


HOUR_MS = 3_600_000
MOST_HOURS = 10 * 366 * 24
"""The most hours of one event: more are no pause of a pipeline, but a time that no row can have."""
_LAST_MS = round(datetime(9999, 12, 31, tzinfo=UTC).timestamp()) * 1000


def hours_between(event: SettledEvent, *, since: datetime | None = None) -> range:
    """Return, as numbers of hours since 1970, the hours of event time that an event completes.

    They end after the event's former watermark (or ``since``, if that is later), and not after
    its watermark.
    """
    reached, before = event.watermark_reached_ms, event.watermark_before_ms
    begins = None if since is None else round(since.timestamp() * 1000)
    told = [at for at in (before, begins) if at is not None]
    if reached is None or not told:
        return range(0)
    return range(max(told) // HOUR_MS, reached // HOUR_MS)


def hours_completed(event: SettledEvent, *, since: datetime | None = None) -> tuple[str, ...]:
    """Return the hours of event time that this event completes: ``2026-11-25T09``, in UTC.

    An hour is complete once the watermark has reached its end, which it never does before the hour
    is over by the store's clock: a row that comes later for the hour is a late row. Events of a
    pipeline follow one another without a gap, so each hour is completed by exactly one of them.

    Args:
        event: one of a query with a watermark.
        since: the earliest hour, since before the first watermark nobody knows which hours had
            rows. None: an event that has no watermark before it completes no hour.

    Raises:
        CheckpointError: the hours are more than can be told, as where a row had a time of another
            century; the watermark, which never goes back, is beyond all dates then, or was.
    """
    hours = hours_between(event, since=since)
    if len(hours) > MOST_HOURS or (event.watermark_reached_ms or 0) > _LAST_MS:
        raise CheckpointError(
            f"Batch {event.to_batch} of pipeline {event.pipeline} completes {len(hours):,} hours: "
            f"its watermark went to {event.watermark_reached_ms} ms since 1970. A row had a time "
            "of another century (seconds taken for milliseconds?). Nothing was told.",
            Remedy(change="give since, the first hour that is to be told, where the rest is right"),
            ANEW,
        )
    return tuple(f"{datetime.fromtimestamp(hour * 3600, UTC):%Y-%m-%dT%H}" for hour in hours)


def pipeline_of(store: CheckpointStore) -> str | None:
    """Return the query's id, which Spark gives a checkpoint once and for ever; None before that.

    Raises:
        CheckpointFormatError: the file ``metadata`` is damaged.
        StoreError: the store did not answer.
    """
    return SparkLog(store).query_id()


def newest_settled(store: CheckpointStore) -> int | None:
    """Return the newest batch whose rows every reader can see; None before the first.

    Spark writes ``commits/N`` only after the sink has returned, and ours returns only when all that
    was decided is settled.

    Raises:
        CheckpointFormatError: Spark's logs cannot be read, or do not fit together.
        StoreError: the store did not answer.
    """
    state = read_state(store)
    if state.mends:
        damaged = "; ".join(map(str, state.mends))
        raise CheckpointFormatError(
            f"{store.location} is damaged: {damaged}. Nothing is told of it until then.",
            Remedy(start=True),
        )
    return state.latest_commit


def read_settled(
    store: CheckpointStore, *, after: int | None, at_most: int | None = None
) -> Settled:
    """Read the settled batches after ``after``, as far as Spark still has them.

    Costs the look of :func:`newest_settled`, two listings, and some small reads for each batch.

    Args:
        store: the checkpoint.
        after: the last batch that was told; None: none was.
        at_most: the oldest so many of these batches; None: all.

    Raises:
        CheckpointFormatError: Spark's logs or a decision cannot be read, or the query's id is gone.
        StoreError: the store did not answer.
    """
    log = SparkLog(store)
    newest = newest_settled(store)
    query_id = pipeline_of(store)
    if newest is None:
        return Settled(query_id or "", None, {}, ())
    if query_id is None:  # told under no id, all batches would be told a second time
        raise CheckpointFormatError(
            f"{store.location} has batches and no file {METADATA}: which query's they are is not "
            "known. Nothing is told of them until then.",
            Remedy(change=f"put back {METADATA}, as this checkpoint had it last"),
            Remedy(
                start=True,
                costs=f"without its copy in {METADATA_COPY} the query gets a new id, under which "
                "all batches are told again",
            ),
        )
    first = 0 if after is None else after + 1
    kept = batches_in(store, OFFSETS) & batches_in(store, COMMITS)
    batches, keeps_state = [], bool(store.folders(STATE_STORES))
    for batch in sorted(number for number in kept if first <= number <= newest):
        found = _batch(store, log, batch, keeps_state=keeps_state)
        if found is not None:  # else it was purged since it was listed
            batches.append(found)
        if at_most is not None and len(batches) == at_most:
            break
    sources = batches[0].end if batches else ()
    began = {name: named(start) for name in sources if (start := log.began(name)) is not None}
    return Settled(query_id, newest, began, tuple(batches))


def hours_reached(store: CheckpointStore, batch: int) -> int:
    """Return how many hours since 1970 are complete once ``batch`` is settled; 0: nobody knows.

    It never falls from a batch to the next. Costs a few small reads.
    """
    keeps_state = bool(store.folders(STATE_STORES))
    found = _batch(store, SparkLog(store), batch, keeps_state=keeps_state)
    return 0 if found is None else (found.watermark_ms or 0) // HOUR_MS


def _batch(
    store: CheckpointStore, log: SparkLog, batch: int, *, keeps_state: bool
) -> SettledBatch | None:
    # A query with state gives the rows of a window in the batch that *runs* with the watermark
    # behind the window; the batch before has only found out how far time has come.
    commit, written = log.commit(batch), log.find("commits", batch)
    try:
        promise = Promise.of(DecisionLog(store).of_batch(batch))
    except SupersededError:
        promise = None  # its decisions are being pruned
    decided = promise.commits[0].offsets if promise is not None else None
    entry = log.offsets(batch)
    if decided is not None:  # where Spark's log differs from the decision, the decision is right
        entry = parse_offsets(decided.encode(), f"the decision of batch {batch}")
    if commit is None or written is None or entry is None:
        return None
    watermark_ms = entry.watermark_ms if keeps_state else commit.next_watermark_ms
    return SettledBatch(
        batch_id=batch,
        end=_ends(entry),
        rows=None if promise is None or is_accepted(store, batch) else _rows(promise),
        watermark_ms=min(watermark_ms or 0, written.modified_at_ms) or None,
        settled_at_ms=written.modified_at_ms,
    )


def _ends(entry: OffsetsEntry) -> dict[str, Any]:
    """Return a batch's ends by source; leave out a source that has not given anything yet."""
    found = {name: raw for name, raw in entry.ends.items() if raw is not None}
    return {
        name: raw if (kafka := kafka_offsets(raw)) is None else named(kafka)
        for name, raw in found.items()
    }


def named(offsets: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    """Return Kafka offsets as JSON has them, where a partition is a name."""
    return {
        topic: {str(partition): offset for partition, offset in partitions.items()}
        for topic, partitions in offsets.items()
    }


def _rows(promise: Promise) -> dict[str, int]:
    rows: Counter[str] = Counter()
    for work in promise.promised:
        if not work.follows:
            rows[work.participant] += work.rows
    return dict(rows)
