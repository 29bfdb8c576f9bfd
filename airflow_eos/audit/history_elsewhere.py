"""What must be true of a history's other outputs, which one decision delivers with the topic; pure.

Nothing here asks how a system keeps rows: only which rows a reader of it got, and when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.history.read import Elsewhere, History


def lost_elsewhere(history: History) -> Iterator[tuple[str, str | None]]:
    """An input row that the final reader of an output does not have."""
    for name, rows in history.elsewhere.items():
        arrived = {row.source for row in rows["final"]}
        for row in history.inputs:
            if row.value not in arrived:
                yield f"{row.value!r} of input {row.partition}:{row.offset} in {name}", row.value


def duplicated_elsewhere(history: History) -> Iterator[tuple[str, str | None]]:
    """A row that it has twice, or that was never fed."""
    fed = {row.value for row in history.inputs}
    for name, rows in history.elsewhere.items():
        seen: Counter[str] = Counter()
        for row in rows["final"]:
            seen[row.source] += 1
            if seen[row.source] > 1:
                yield f"{row.value!r} of key {row.key!r} again in {name}", row.source
            elif row.source not in fed:
                yield f"{row.value!r} in {name} was never fed", row.source


def early_elsewhere(history: History) -> Iterator[tuple[str, str | None]]:
    """A row that was visible when the checkpoint had no decision for it."""
    for event in history.events:
        if event["event"] == "ahead":
            key, value, run = event["row"]
            text = f"{value!r} of key {key!r} (run {run}) in {event['output']}"
            yield f"{text} was read when no decision named it", value.partition("#")[0]


def gone_elsewhere(history: History) -> Iterator[tuple[str, str | None]]:
    """A row that was visible, and is not at the end."""
    for name, rows in history.elsewhere.items():
        for row in (Counter(rows["live"]) - Counter(rows["final"])).elements():
            yield f"{name}: live has {row.value!r}, final has not", row.source


def split(history: History) -> Iterator[tuple[str, str | None]]:
    """At the end an output has a row that the topic has not, or the other way round."""
    in_topic = Counter((row.key, row.value) for row in history.delivered)
    for name, rows in history.elsewhere.items():
        there = _held(rows["final"])
        for one, other, more, less in (
            ("the topic", name, in_topic, there),
            (name, "the topic", there, in_topic),
        ):
            for (key, value), count in (more - less).items():
                text = f"{value!r} of key {key!r}: {count} more in {one} than in {other}"
                yield text, value.partition("#")[0]


def _held(rows: list[Elsewhere]) -> Counter[tuple[str, str]]:
    return Counter((row.key, row.value) for row in rows)
