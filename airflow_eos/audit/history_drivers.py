"""Of a history's drivers: who was let in though it had to be refused, and who went on too long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.history.read import History


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
