"""Which offsets a batch reads, and how they are cut for tasks: pure functions of what was found.

An offset of the stream is what Spark's own Kafka source writes, ``{"topic": {"0": 12}}``: topic →
partition → the next row. Where ranges are cut, or dealt to fewer tasks, the end of a batch says how
as well, under names that no topic can have, so that a replay has the same tasks, whatever the
options say by then.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from airflow_eos.errors import InputError, TopicError
from airflow_eos.kafka.client.reading import OffsetSpan

Offset = dict[str, dict[str, int]]
"""As JSON has it, so partitions are text."""
Place = tuple[str, int]

CUT, DEALT = "/rows_a_task", "/tasks"
"""With the only entry ``{"": rows}``, and ``{"": tasks}``."""


def offset_of(places: Mapping[Place, int]) -> Offset:
    """The offset of the stream, in an order that never changes: Spark compares text."""
    found: Offset = {}
    for (topic, partition), offset in sorted(places.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def places_of(offset: Mapping[str, Mapping[str, int]]) -> dict[Place, int]:
    """Topic and partition → the next row."""
    return {
        (topic, int(partition)): int(next_row)
        for topic, partitions in offset.items()
        if not topic.startswith("/")
        for partition, next_row in partitions.items()
    }


def next_end(
    start: Offset,
    ends: Mapping[Place, int],
    *,
    most: int | None,
    rows_a_task: int | None,
    tasks: int | None = None,
) -> Offset:
    """Where the batch that begins at ``start`` ends; ``start`` itself where there is nothing new.

    Args:
        start: where the batch before ended.
        ends: how far each partition there is may be read.
        most: offsets that a batch may have, shared out by what each partition has; None: all.
        rows_a_task: a longer range of a partition is cut; None: never.
        tasks: more ranges than that are dealt to so many tasks; None: each has its own.

    Raises:
        TopicError: a partition, or a whole topic, is not there any more.
        InputError: a partition ends before it was read to: it is another topic's by now.
    """
    begun = places_of(start)
    _require_there(begun, ends)
    waiting = {place: end - begun.get(place, 0) for place, end in ends.items()}
    total = sum(waiting.values())
    if not total and waiting.keys() == begun.keys():
        return start
    share = 1.0 if most is None or total <= most else most / total
    reached = {place: begun.get(place, 0) + _part(rows, share) for place, rows in waiting.items()}
    end = offset_of(reached)
    if rows_a_task is not None:
        end[CUT] = {"": rows_a_task}
    if tasks is not None:
        end[DEALT] = {"": tasks}
    return end


def _part(rows: int, share: float) -> int:
    """At least one where there is any, or a partition beside much larger ones would starve."""
    if share >= 1.0 or not rows:
        return rows
    return min(rows, max(1, math.floor(rows * share)))


def _require_there(begun: Mapping[Place, int], ends: Mapping[Place, int]) -> None:
    for (topic, partition), offset in sorted(begun.items()):
        end = ends.get((topic, partition))
        if end is None:
            raise TopicError(
                f"Partition {partition} of topic {topic!r}, which was read up to offset {offset}, "
                f"is not there any more, or the source does not name the topic. {_NEXT}"
            )
        if end < offset:
            raise InputError(
                f"Partition {partition} of topic {topic!r} was read up to offset {offset}, and "
                f"ends at {end} now: the topic was deleted and made again, or its log was cut. "
                f"{_NEXT}"
            )


Spans = list[tuple[OffsetSpan, int]]
"""Each with its number among those of its partition."""


def tasks_of(start: Offset, end: Offset) -> list[Spans]:
    """What the tasks of a batch read, in the order in which they read it.

    A partition that ``start`` does not know is read from offset 0: it is new, and where its first
    rows are gone already its task says so.
    """
    begun, cut = places_of(start), end.get(CUT, {}).get("")
    found: Spans = []
    for (topic, partition), until in sorted(places_of(end).items()):
        first = begun.get((topic, partition), 0)
        found += [
            (OffsetSpan(topic, partition, *edges), number)
            for number, edges in enumerate(_cut(first, until, cut))
        ]
    return _dealt(found, end.get(DEALT, {}).get("") or len(found))


def _dealt(spans: Spans, tasks: int) -> list[Spans]:
    """The largest first, each to who has the fewest rows by then."""
    hands: list[Spans] = [[] for _ in range(min(tasks, len(spans)))]
    rows = [0] * len(hands)
    for place in sorted(range(len(spans)), key=lambda at: (-_rows(spans[at]), at)):
        least = rows.index(min(rows))
        hands[least].append(spans[place])
        rows[least] += _rows(spans[place])
    return [sorted(hand, key=lambda each: _order(each[0])) for hand in hands]


def _rows(each: tuple[OffsetSpan, int]) -> int:
    return each[0].until - each[0].first


def _order(span: OffsetSpan) -> tuple[str, int, int]:
    return span.topic, span.partition, span.first


def _cut(first: int, until: int, most: Any) -> list[tuple[int, int]]:
    if until <= first:
        return []
    parts = 1 if most is None else math.ceil((until - first) / most)
    edges = [first + (until - first) * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(edges))


_NEXT = "Rows that were not read are gone. To read what is there, start on a new checkpoint."
