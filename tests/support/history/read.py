"""The record of one run under faults: what went in, what readers saw and when, what was decided.

A history is a file of JSON lines, one event each, appended by everybody who took part:

===========  =====================================================================================
history      first line: ``kind``, ``seed``, ``topic``, ``ordered``, ``mode`` (rows or counts),
             ``lone`` (nobody but one driver at a time could take an id), ``faults``
input        ``rows``: [[partition, offset, key, value], …] that a writer of the input wrote
prepared     ``run`` and the ``transaction`` (id, producer id, epoch) whose rows carry that run
saw          ``reader`` (live, uncommitted, final) and ``rows``: [[partition, offset, key, value,
             run], …]; ``at_ms`` is when the reader got them
there        ``output`` besides the topic, ``reader`` (live, final) and ``rows``: [[key, value,
             run], …]
ahead        a live reader of ``output`` has ``row``, and the checkpoint has no decision for it
early        a live read_committed reader has a row, and the checkpoint has no decision for it
offsets      ``batch`` and ``ends``: {partition: offset} of the input, from Spark's offset log as
             it was purged, or was left: a number that is planned anew after that does not count
commits      ``batch``: Spark has committed it
decision     ``batch``, ``attempt``, ``verdict``, ``transactions`` as Kafka names them, and
             ``elsewhere``: what it names of other participants
final        ``stable``, ``end`` ({partition: offset}), ``open`` (ids), ``caught_up``,
             ``again`` (steps that a second recovery still found)
deleted      ``ends``: {partition: offset} of the output below which retention took the rows; the
             live reader had read as far before
asked        an app ended because a person must rule what became of a promise
tried        ``what`` was started that may have to be refused; ``must``: refuse, start or '' for
             either; ``let_in``; ``ended_by``: its error; ``refusals``: the errors that refuse
start        a driver ``name`` is started; admitted: it passed every refusal (``who``); planned and
             committed: it did so with ``batch``
crash        an error that nobody expects, with its ``text``
===========  =====================================================================================

Other events (faults, starts, exits) are kept for the reader of a report. ``at_ms`` is milliseconds
since the epoch. Nothing here, nor in :mod:`.rules`, uses the code that it judges.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

Event = Mapping[str, Any]
Identity = tuple[str, int, int]
NOBODY: Identity = ("", 0, 0)


class InputRow(NamedTuple):
    """A row that a writer of the input wrote, and where it is there."""

    partition: int
    offset: int
    key: str
    value: str


class ObservedRow(NamedTuple):
    """A row that a reader of the output got; ``run`` names the task run that wrote it, or ''."""

    partition: int
    offset: int
    key: str
    value: str
    run: str

    @property
    def source(self) -> str:
        """The value of the input row: what stands before a ``#`` that a stateful query added."""
        return self.value.partition("#")[0]


class Elsewhere(NamedTuple):
    """A row that a reader of another output got."""

    key: str
    value: str
    run: str

    @property
    def source(self) -> str:
        """As :attr:`ObservedRow.source`."""
        return self.value.partition("#")[0]


@dataclass(frozen=True, slots=True)
class PromisedTransaction:
    """A transaction that a COMMIT decision names."""

    identity: Identity
    batch: int
    attempt: int
    rows: int
    written: tuple[tuple[int, int, int], ...]  # partition, first, last
    opened_at_ms: int
    timeout_ms: int
    decided_at_ms: int


@dataclass
class History:
    """The events of one history, sorted by what they tell."""

    about: Event = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    inputs: list[InputRow] = field(default_factory=list)
    seen: dict[str, list[ObservedRow]] = field(default_factory=lambda: defaultdict(list))
    elsewhere: dict[str, dict[str, list[Elsewhere]]] = field(default_factory=dict)
    seen_at_ms: dict[tuple[str, int, int], int] = field(default_factory=dict)
    runs: dict[str, Identity] = field(default_factory=dict)
    ends: dict[int, dict[int, int]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    decisions: list[Event] = field(default_factory=list)
    deleted: dict[int, int] = field(default_factory=dict)
    final: Event = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> History:
        """Sort the events; unknown ones are kept in ``events`` only."""
        history = cls()
        for event in events:
            history.events.append(event)
            history._take(event)
        return history

    @property
    def delivered(self) -> list[ObservedRow]:
        """What the final reader has, and what the live one had before retention took it."""
        kept = {row[:2] for row in self.seen["final"]}
        gone = [row for row in self.seen["live"] if self.is_gone(row) and row[:2] not in kept]
        return [*gone, *self.seen["final"]]

    def is_gone(self, row: ObservedRow) -> bool:
        """Whether retention took the row."""
        return row.offset < self.deleted.get(row.partition, 0)

    @property
    def named(self) -> list[PromisedTransaction]:
        """Every transaction that a COMMIT decision names, in the order of batches and attempts."""
        commits = [d for d in self.decisions if d["verdict"].lower() == "commit"]
        commits.sort(key=lambda d: (d["batch"], d["attempt"]))
        return [_named(decision, each) for decision in commits for each in decision["transactions"]]

    @property
    def spans(self) -> dict[int, list[tuple[int, int, int]]]:
        """By partition of the output: first offset, last offset and batch of what is named."""
        spans: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for entry in self.named:
            for partition, first, last in entry.written:
                spans[partition].append((first, last, entry.batch))
        return spans

    def promised_in(self) -> Callable[[ObservedRow], int | None]:
        """Tells in which batch a row was promised, whatever Spark's log says of it by now.

        By the run that wrote it; where rows carry none by the decided range that it is inside, if
        there is just one such batch.
        """
        batches = {entry.identity: entry.batch for entry in self.named}
        spans = self.spans

        def batch_of(row: ObservedRow) -> int | None:
            if row.run:
                return batches.get(self.runs.get(row.run, NOBODY))
            inside = spans[row.partition]
            found = {batch for first, last, batch in inside if first <= row.offset <= last}
            return found.pop() if len(found) == 1 else None

        return batch_of

    def _take(self, event: Event) -> None:
        kind = event["event"]
        if kind == "history":
            self.about = event
        elif kind == "input":
            self.inputs += [InputRow(*row) for row in event["rows"]]
        elif kind in ("saw", "there"):
            self._saw(event)
        elif kind == "prepared":
            self.runs[event["run"]] = _identity(event["transaction"])
        elif kind == "offsets":
            ends = {int(p): int(o) for p, o in event["ends"].items()}
            self.ends.setdefault(event["batch"], ends)
        elif kind == "commits":
            self.committed.add(event["batch"])
        elif kind == "decision":
            self.decisions.append(event)
        elif kind == "deleted":
            self.deleted |= {int(p): int(o) for p, o in event["ends"].items()}
        elif kind == "final":
            self.final = event

    def _saw(self, event: Event) -> None:
        if event["event"] == "there":
            readers = self.elsewhere.setdefault(event["output"], {"live": [], "final": []})
            readers[event["reader"]] += [Elsewhere(*row) for row in event["rows"]]
            return
        for row in event["rows"]:
            seen = ObservedRow(*row)
            self.seen[event["reader"]].append(seen)
            place = (event["reader"], seen.partition, seen.offset)
            self.seen_at_ms.setdefault(place, event["at_ms"])


def read_history(file: Path) -> History:
    """The history in ``file``.

    Raises:
        ConfigurationError: the file cannot be read, or is not a history.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        history = History.of([json.loads(line) for line in lines if line])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{file} cannot be read as a history ({type(error).__name__}: {error}): expected "
            "JSON lines as `make chaos` leaves them in build/chaos."
        ) from error
    if not history.about or not history.final:
        raise ConfigurationError(
            f"{file} is not a whole history: expected a first event 'history' and an event 'final'."
        )
    return history


def _identity(transaction: Event) -> Identity:
    return (
        transaction["transactional_id"],
        transaction["producer_id"],
        transaction["producer_epoch"],
    )


def _named(decision: Event, transaction: Event) -> PromisedTransaction:
    return PromisedTransaction(
        identity=_identity(transaction),
        batch=decision["batch"],
        attempt=decision["attempt"],
        rows=transaction["rows"],
        written=tuple((r["partition"], r["first"], r["last"]) for r in transaction["written"]),
        opened_at_ms=transaction["opened_at_ms"],
        timeout_ms=transaction["timeout_ms"],
        decided_at_ms=decision["decided_at_ms"],
    )


# --- history_story --------------------------------------------------------------------------------
# A violation, and everything that a history tells of its first offending row; pure.


PROPERTIES = {
    0: "an error nobody expects",
    1: "lost",
    2: "duplicated",
    3: "aborted read",
    4: "visible before its decision",
    5: "reordered",
    6: "torn",
    7: "readers disagree",
    8: "commits are not the decisions",
    9: "liveness",
    10: "state wrong",
    11: "let in, or went on",
    12: "split between outputs",
}
_LINES = 40
_LEFT_OUT = frozenset({"at_ms", "event", "scenario"})
_QUIET = frozenset({"offsets", "commits", "early", "crash", "task", "planned", "committed"})


@dataclass(frozen=True, slots=True)
class Violation:
    """One property that does not hold: how often, the first offending row, and its history."""

    number: int
    count: int
    first: str
    history: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The property, in words."""
        return PROPERTIES[self.number]

    def __str__(self) -> str:
        lines = [f"{self.number} {self.name}: {self.count}, first {self.first}"]
        return "\n    ".join([*lines, *self.history])


def story_of(history: History, row: ObservedRow | str | None) -> tuple[str, ...]:
    """Everything the history tells of one row, and who was started and killed meanwhile."""
    source = row if isinstance(row, str) else row.source if row else None
    copies = [seen for rows in history.seen.values() for seen in rows if seen.source == source]
    touched = {history.runs.get(copy.run) for copy in copies} - {None}
    told = [text for event in history.events if (text := _line(event, source, copies, touched))]
    return tuple(told[-_LINES:])


def _line(
    event: Event, source: str | None, copies: list[ObservedRow], touched: set[Identity | None]
) -> str:
    kind, at_ms = event["event"], event.get("at_ms", 0)
    if kind in _QUIET:
        return ""
    if kind == "saw":
        rows = [r for r in event["rows"] if str(r[3]).partition("#")[0] == source]
        return f"{at_ms} {event['reader']} saw {rows}" if rows else ""
    if kind == "there":
        rows = [r for r in event["rows"] if str(r[1]).partition("#")[0] == source]
        return f"{at_ms} {event['reader']} of {event['output']} saw {rows}" if rows else ""
    if kind == "input":
        rows = [r for r in event["rows"] if r[3] == source]
        return f"{at_ms} fed {rows}" if rows else ""
    if kind == "prepared":
        runs = {copy.run for copy in copies}
        return f"{at_ms} prepared {event['transaction']}" if event["run"] in runs else ""
    if kind == "decision":
        names = {
            (t["transactional_id"], t["producer_id"], t["producer_epoch"])
            for t in event["transactions"]
        }
        if source is not None and not names & touched:
            return ""
        what = f"batch {event['batch']} attempt {event['attempt']} {event['verdict']}"
        return f"{event['decided_at_ms']} decided {what} {sorted(names)}"
    return f"{at_ms} {kind} " + " ".join(f"{k}={v}" for k, v in event.items() if k not in _LEFT_OUT)
