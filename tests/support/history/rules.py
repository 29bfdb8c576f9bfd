"""What must be true of every history, whatever was killed: twelve properties, with evidence.

Pure, and not the code under test: it reads a :class:`~tests.support.history.read.History`,
which holds rows, offsets and decisions as data, and does its own sums.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tests.support.history.read import NOBODY, Violation, story_of

if TYPE_CHECKING:
    from tests.support.history.read import Elsewhere, History, ObservedRow


def let_in_or_went_on(history: History) -> Iterator[tuple[str, None]]:
    """Whoever had to be refused and was not, the other way round, and who should have stopped."""
    for event in history.events:
        if event["event"] != "tried":
            continue
        refused = event["ended_by"].startswith(tuple(event["refusals"]))
        if event["must"] == "refuse" and not refused:
            ended = f"ended by {event['ended_by'] or 'nothing'}"
            yield f"{event['what']} was {'let in' if event['let_in'] else ended}", None
        elif event["must"] == "start" and not event["let_in"]:
            yield f"{event['what']} was not let in: {event['ended_by']}", None
    yield from _went_on(history)


def _went_on(history: History) -> Iterator[tuple[str, None]]:
    """Whoever plans a batch after another driver took over must not bring it to its end.

    A driver takes over from those that were let in before it was started.
    """
    started: dict[str, int] = {}
    admitted: dict[str, int] = {}
    planned: dict[tuple[str, int], int] = {}
    committed: list[tuple[str, int]] = []
    for event in history.events:
        who, at_ms = event.get("who", ""), event.get("at_ms", 0)
        if event["event"] == "start":
            started[event["name"]] = at_ms
        elif event["event"] == "admitted":
            admitted[who] = at_ms
        elif event["event"] == "planned":
            planned[who, event["batch"]] = at_ms
        elif event["event"] == "committed":
            committed.append((who, event["batch"]))
    for who, batch in committed:
        for other, since in admitted.items():
            if admitted[who] < started[other] and since < planned.get((who, batch), 0):
                yield f"{who} planned and ended batch {batch} after {other} had taken over", None


# --- history_elsewhere ----------------------------------------------------------------------------
# What must be true of a history's other outputs, which one decision delivers with the topic; pure.
#
# Nothing here asks how a system keeps rows: only which rows a reader of it got, and when.


def lost_elsewhere(history: History) -> Iterator[tuple[str, str | None]]:
    """An input row that the final reader of an output does not have."""
    if _counts(history):
        return  # as of the topic; that both have the same counts is property 12
    for name, rows in history.elsewhere.items():
        arrived = {row.source for row in rows["final"]}
        for row in history.inputs:
            if row.value not in arrived:
                yield f"{row.value!r} of input {row.partition}:{row.offset} in {name}", row.value


def duplicated_elsewhere(history: History) -> Iterator[tuple[str, str | None]]:
    """A row that it has twice, or that was never fed."""
    if _counts(history):
        return
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


# --- history_rules --------------------------------------------------------------------------------
# What must be true of every history, whatever was killed: twelve properties, with evidence.
#
# Pure, and not the code under test: it reads a :class:`~tests.support.history.read.History`,
# which holds rows, offsets and decisions as data, and does its own sums.


_COMMITTED = ("live", "final")


Found = tuple[str, "ObservedRow | str | None"]


def check(history: History) -> list[Violation]:
    """Every property that does not hold, in the order of their numbers."""
    rules: list[tuple[int, *tuple[Callable[[History], Iterator[Found]], ...]]] = [
        (0, _crashed),
        (1, _lost, lost_elsewhere),
        (2, _duplicated, duplicated_elsewhere),
        (3, _aborted_read),
        (4, _early, early_elsewhere),
        (5, _reordered),
        (6, _torn),
        (7, _disagreeing, gone_elsewhere),
        (8, _other_than_decided),
        (9, _not_alive),
        (10, _state_wrong),
        (11, let_in_or_went_on),
        (12, split),
    ]
    violations = []
    for number, *of_number in rules:
        found = [each for rule in of_number for each in rule(history)]
        if found:
            text, row = found[0]
            violations.append(Violation(number, len(found), text, story_of(history, row)))
    return violations


def _crashed(history: History) -> Iterator[Found]:
    for event in history.events:
        if event["event"] == "crash":
            yield f"{event.get('who', '?')}: {event['text'].strip()[-1500:]}", None
        elif event["event"] == "asked" and not history.deleted:
            yield f"{event.get('who', '?')} asks a person though every row can be read", None


def _counts(history: History) -> bool:
    return history.about.get("mode") == "counts"


def _lost(history: History) -> Iterator[Found]:
    if _counts(history):
        return  # a running count tells of lost rows by being too small: property 10
    arrived = {row.source for row in history.delivered}
    for row in history.inputs:
        if row.value not in arrived:
            yield f"{row.value!r} of input {row.partition}:{row.offset}", row.value


def _duplicated(history: History) -> Iterator[Found]:
    seen: Counter[tuple[str, str]] = Counter()
    fed = {row.value for row in history.inputs}
    for row in history.delivered:
        what = (row.key, row.value) if _counts(history) else ("", row.source)
        seen[what] += 1
        if seen[what] > 1:
            yield f"{row.value!r} of key {row.key!r} again at {_place(row)}", row
        elif not _counts(history) and row.source not in fed:
            yield f"{row.value!r} at {_place(row)} was never fed", row


def _aborted_read(history: History) -> Iterator[Found]:
    named = {entry.identity for entry in history.named}
    spans = history.spans
    for reader in _COMMITTED:
        for row in history.seen[reader]:
            if row.run:
                identity = history.runs.get(row.run)
                if identity not in named:
                    yield f"{reader}: {_place(row)} written by {identity}, named by nobody", row
            elif not any(first <= row.offset <= last for first, last, _ in spans[row.partition]):
                yield f"{reader}: {_place(row)} is inside no decided range", row


def _early(history: History) -> Iterator[Found]:
    for event in history.events:
        if event["event"] == "early":
            row = event["row"]
            yield f"offset {row[0]}:{row[1]} was read when no decision named it", row[3]
    decided_at = {entry.identity: entry.decided_at_ms for entry in history.named}
    for row in history.seen["live"]:
        decided = decided_at.get(history.runs.get(row.run, NOBODY))
        at_ms = history.seen_at_ms["live", row.partition, row.offset]
        if decided is not None and at_ms < decided:
            yield f"{_place(row)} was read {decided - at_ms} ms before its decision was made", row


def _reordered(history: History) -> Iterator[Found]:
    for reader in _COMMITTED:
        last: dict[int, int] = {}
        for row in history.seen[reader]:
            if row.offset <= last.get(row.partition, -1):
                yield f"{reader}: {_place(row)} after offset {last[row.partition]}", row
            last[row.partition] = row.offset
    if _counts(history):
        return  # counts of a key must rise: property 10
    origin = {row.value: row for row in history.inputs}
    batch_of = history.promised_in()
    newest: dict[int, int] = {}
    newest_of_key: dict[str, int] = {}
    for row in sorted(history.delivered, key=lambda row: row[:2]):
        fed = origin.get(row.source)
        if fed is None:
            continue
        batch = batch_of(row)
        if batch is not None and batch < newest.get(row.partition, -1):
            yield f"batch {batch} at {_place(row)} after batch {newest[row.partition]}", row
        newest[row.partition] = -1 if batch is None else batch
        if history.about.get("ordered") and fed.offset <= newest_of_key.get(row.key, -1):
            yield f"{row.value!r} of key {row.key!r} at {_place(row)} is behind a later one", row
        newest_of_key[row.key] = fed.offset


def _torn(history: History) -> Iterator[Found]:
    visible: Counter[tuple[str, int, int] | None] = Counter(
        history.runs.get(row.run) for row in history.delivered if row.run
    )
    decided: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    delivered: Counter[int] = Counter()
    for entry in history.named:
        seen = visible[entry.identity]
        if history.runs and seen not in {0, entry.rows}:
            yield f"{seen} of {entry.rows} rows of {entry.identity} are visible", None
        delivered[entry.batch] += seen
        decided[entry.batch][entry.decided_at_ms, entry.attempt] += entry.rows
    # The first in time: one that slept may decide in a place that was pruned, and stop there.
    promised = {batch: of[min(of)] for batch, of in decided.items()}
    for batch in sorted(history.committed & promised.keys()):
        if history.runs and delivered[batch] != promised[batch]:
            yield f"batch {batch}: {delivered[batch]} of {promised[batch]} rows visible", None


def _disagreeing(history: History) -> Iterator[Found]:
    known: dict[tuple[int, int], tuple[str, ObservedRow]] = {}
    final = {row[:2] for row in history.seen["final"]}
    for reader in ("final", "live", "uncommitted"):
        for row in history.seen[reader]:
            other, there = known.setdefault(row[:2], (reader, row))
            if there != row:
                yield f"{_place(row)}: {other} has {there}, {reader} has {row}", row
            if reader == "live" and row[:2] not in final and not history.is_gone(row):
                yield f"{_place(row)}: live has {row.value!r}, final has nothing there", row


def _other_than_decided(history: History) -> Iterator[Found]:
    again = history.final.get("again", 0)
    if again:
        yield f"a second recovery still finds {again} steps", None
    if not (history.about.get("lone") and history.runs):
        return
    visible = {history.runs.get(row.run) for row in history.delivered}
    decided = {(entry.batch, entry.attempt): entry.decided_at_ms for entry in history.named}
    for entry in history.named:
        later = [
            at
            for (batch, n), at in decided.items()
            if (batch, n > entry.attempt) == (entry.batch, True)
        ]
        if entry.identity not in visible and later:
            left = entry.opened_at_ms + entry.timeout_ms - min(later)
            if left > 0:
                yield f"{entry.identity} was promised and ended {left} ms before its timeout", None


def _not_alive(history: History) -> Iterator[Found]:
    final = history.final
    if not final.get("caught_up", False):
        yield "the app did not catch up with its input", None
    for name in final.get("open", ()):
        yield f"transaction {name} is left open", None
    for partition, end in final.get("end", {}).items():
        stable = final.get("stable", {}).get(partition)
        if stable != end:
            yield f"partition {partition}: last stable offset {stable}, high watermark {end}", None
    for batch in sorted(history.ends.keys() - history.committed):
        yield f"batch {batch} was planned and never committed", None


def _state_wrong(history: History) -> Iterator[Found]:
    totals: Counter[str] = Counter()
    rank: dict[str, int] = {}
    for row in sorted(history.inputs, key=lambda row: row[:2]):
        totals[row.key] += 1
        rank[row.value] = totals[row.key]
    if not _counts(history):
        for seen in history.delivered:
            _, mark, count = seen.value.partition("#")
            if mark and int(count) != rank.get(seen.source, -1):
                yield f"{seen.source!r} counted {count}, a recount gives {rank[seen.source]}", seen
        return
    last: dict[str, int] = defaultdict(int)
    for seen in sorted(history.delivered, key=lambda row: row[:2]):
        if int(seen.value) <= last[seen.key]:
            yield f"key {seen.key!r} counted {seen.value} after {last[seen.key]}", seen
        last[seen.key] = int(seen.value)
    for key, total in totals.items():
        if last[key] != total:
            yield f"key {key!r} counted {last[key]}, a recount gives {total}", None


def _place(row: ObservedRow) -> str:
    return f"output {row.partition}:{row.offset}"
