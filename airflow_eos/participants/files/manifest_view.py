"""What a manifest says of decisions; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from airflow_eos.protocol.decision import Outcome

if TYPE_CHECKING:
    from airflow_eos.checkpoint.pipeline import Pipeline

_KEPT = 8
"""Settled decisions that each entry repeats of a pipeline; one or two can be in flight."""


class Settled(NamedTuple):
    """What became of a decision, once and for all.

    Attributes:
        batch: of the decision.
        attempt: of the decision.
        is_committed: or it is lost.
        pipeline: its id; empty in the form before there were ids.
        at_ms: when it was written first, by the clock of who did.
    """

    batch: int
    attempt: int
    is_committed: bool
    pipeline: str
    at_ms: int

    def is_of(self, pipeline: Pipeline) -> bool:
        """Whether it is about a decision of ``pipeline``; without an id its age tells."""
        if self.pipeline:
            return self.pipeline == pipeline.id
        return self.at_ms >= pipeline.created_at_ms

    def __str__(self) -> str:
        what = f"{self.batch}-{self.attempt}-{'committed' if self.is_committed else 'lost'}"
        return f"{what}-{self.pipeline}" if self.pipeline else what


class View(NamedTuple):
    """The log as one look found it.

    Attributes:
        number: of the newest entry; -1 where there is none.
        names: of those who wrote it, with their marks.
        settled: under our name and mark, by any pipeline.
    """

    number: int
    names: frozenset[tuple[str, str]]
    settled: tuple[Settled, ...]

    def told(self, batch: int, attempt: int, pipeline: Pipeline) -> Outcome | None:
        """What it says of a decision of ``pipeline``; None: nothing yet."""
        ours = [each for each in self.settled if each.is_of(pipeline)]
        for each in ours:
            if (each.batch, each.attempt) == (batch, attempt):
                return Outcome.COMMITTED if each.is_committed else Outcome.ABORTED
        newest = max(((each.batch, each.attempt) for each in ours), default=None)
        return Outcome.UNKNOWN if newest is not None and newest > (batch, attempt) else None


def kept_of(settled: Iterable[Settled]) -> list[Settled]:
    """The newest of each pipeline: one that gave the folder up may still wake up, and ask."""
    of: dict[str, list[Settled]] = defaultdict(list)
    for each in sorted(settled):
        of[each.pipeline].append(each)
    return [each for theirs in of.values() for each in theirs[-_KEPT:]]
