"""A violation, and everything that a history tells of its first offending row; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_eos.audit.history import Event, History, Identity, Seen

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


def story_of(history: History, row: Seen | str | None) -> tuple[str, ...]:
    """Everything the history tells of one row, and who was started and killed meanwhile."""
    source = row if isinstance(row, str) else row.source if row else None
    copies = [seen for rows in history.seen.values() for seen in rows if seen.source == source]
    touched = {history.runs.get(copy.run) for copy in copies} - {None}
    told = [text for event in history.events if (text := _line(event, source, copies, touched))]
    return tuple(told[-_LINES:])


def _line(
    event: Event, source: str | None, copies: list[Seen], touched: set[Identity | None]
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
