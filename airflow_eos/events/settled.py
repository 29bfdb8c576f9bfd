"""Which events are due: a function of what is settled and of the last event that stands.

An event is about a range of batches, and the next one begins where it ended: whoever knows the
newest event knows what was told. So nothing is remembered beside the events themselves, and
nothing can contradict them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from airflow_eos.errors import CheckpointError

Ends = Mapping[str, Any]
"""By source: ``{topic: {partition: offset of the next row}}``, or Spark's JSON of another kind."""


@dataclass(frozen=True, slots=True)
class SettledBatch:
    """One batch whose rows every reader can see, for ever.

    Attributes:
        batch_id: Spark's number, from 0.
        end: where it ended, by source.
        rows: delivered, by participant; None where no decision tells (any more).
        watermark_ms: after it, ms since the epoch; None where the query has none.
        settled_at_ms: when ``commits/N`` was written, ms since the epoch, by the store's clock.
    """

    batch_id: int
    end: Ends
    rows: Mapping[str, int] | None
    watermark_ms: int | None
    settled_at_ms: int


@dataclass(frozen=True, slots=True)
class Settled:
    """What a look at a checkpoint found.

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
    """Batches ``from_batch`` to ``to_batch``, included, are settled: see :class:`SettledBatch`.

    ``start`` (included) and ``end`` (excluded) are by source; ``start`` lacks a source whose
    beginning is not recorded. ``rows`` is the sum by participant, None where a batch does not tell.
    """

    pipeline: str
    from_batch: int
    to_batch: int
    start: dict[str, Any]
    end: dict[str, Any]
    rows: dict[str, int] | None
    watermark_ms: int | None
    settled_at_ms: int

    @property
    def key(self) -> str:
        """The same for the same range of the same pipeline, whoever makes the event and when."""
        return f"{self.pipeline}/{self.from_batch}-{self.to_batch}"

    def as_extra(self) -> dict[str, Any]:
        """As JSON's own types, with its ``key``: the ``extra`` of an asset event."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {"key": self.key, **fields}

    @classmethod
    def from_extra(cls, extra: Any) -> SettledEvent | None:
        """The event that :meth:`as_extra` made; None of what is no such event."""
        try:
            event = msgspec.convert(extra, type=cls, strict=True)
        except msgspec.ValidationError:
            return None
        return event if extra.get("key") == event.key else None


def newest_of(pipeline: str, extras: Iterable[Any]) -> SettledEvent | None:
    """The newest event of the pipeline among what stands, whoever else has written there.

    By batch and not by time: servers that store events have clocks of their own.
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
) -> tuple[SettledEvent, ...]:
    """The events that are due, in ascending order, each beginning where the one before ended.

    Args:
        last: the newest event that stands, of whichever pipeline; None where there is none.
        found: what the checkpoint says now.
        each_batch: an event for each batch; what Spark has purged is in the range of the first.
        at_most: so many events, the others are due the next time; None: all.

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
        last = _event(found, last, group)
        events.append(last)
    return tuple(events)


def _event(
    found: Settled, last: SettledEvent | None, batches: Sequence[SettledBatch]
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
    )


def _total(batches: Sequence[SettledBatch]) -> dict[str, int] | None:
    total: dict[str, int] = {}
    for batch in batches:
        if batch.rows is None:
            return None
        for name, rows in batch.rows.items():
            total[name] = total.get(name, 0) + rows
    return total
