"""Play one history: feed, start, break, start again, until all is delivered; then judge it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.chaos.aftermath import write_down
from tests.chaos.arena import Arena
from tests.chaos.person import end_what_a_broker_has_lost
from tests.chaos.processes import wait_until
from tests.chaos.scenario import Scenario
from tests.chaos.stage import Stage
from tests.support.history.read import Violation, read_history
from tests.support.history.rules import check

MARKS = {
    "start": "dead, until the next is started",
    "main": "Python, and what it imports",
    "jvm-up": "the JVM",
    "spark-up": "Spark's session",
    "recovering": "reading the stream, refusals, ownership",
    "taken-over": "recovery",
    "called": "Spark plans its first batch",
    "looked": "decisions read, attempt sealed",
    "kept": "a promise settled, its batch evaluated",
    "row": "the first batch written, decided, settled, read",
}
"""What a process tells of itself as it comes back, and what it has done when it tells it.

The loop engine has neither a JVM nor a Spark. Of a promise that recovery commits the first row is
read before the rest is through: then that is not part of the time.
"""


@dataclass(frozen=True)
class Recovered:
    """From a dead driver to the first row that its successor made visible: ms up to each mark."""

    fault: str
    parts: dict[str, int]

    @property
    def total_ms(self) -> int:
        return sum(self.parts.values())


@dataclass
class Played:
    """What became of one history; ``reached``: how many of its faults struck as planned.

    A failpoint that no process passed is not reached; its driver is killed all the same.
    """

    scenario: Scenario
    violations: list[Violation]
    file: Path
    seconds: float
    rows: int
    reached: int = 0
    recovered: list[Recovered] = field(default_factory=list)


@dataclass(frozen=True)
class Wedged:
    """A history that ends in a refusal which only a person can lift, as it must.

    Where an older copy of the checkpoint is put in place while its driver lives, that driver adds
    numbers of its own memory to the copy's logs: a batch is missing between, and we refuse.
    """

    seed: int
    said: str


def play(
    arena: Arena, scenario: Scenario, stage: Callable[[Arena, Scenario], Stage] = Stage
) -> Played:
    """Play the history; its topic ``<name>-out`` exists."""
    began = time.monotonic()
    history = stage(arena, scenario)
    try:
        with history.live as live, history.elsewhere:
            for number, incident in enumerate(scenario.incidents):
                history.incident(number, incident)
            history.finish()
            end_what_a_broker_has_lost(history)
            caught_up = history.finished
            wanted = len(history.fed)
            if caught_up:
                wait_until(lambda: len(live.places) >= wanted, 10)
        write_down(history, caught_up=caught_up)
    finally:
        history.end_all()
        history.elsewhere.close()
    read = read_history(history.journal.file)
    return Played(
        scenario,
        check(read),
        history.journal.file,
        time.monotonic() - began,
        len(history.fed),
        sum(event["event"] == "fault" and event["reached"] for event in read.events),
        recovery_times(history.journal.file),
    )


def recovery_times(file: Path) -> list[Recovered]:
    """For each driver that was dead before the next started: until a reader got a row again."""
    events = [json.loads(line) for line in file.read_text().splitlines()]
    found = []
    fault = ""
    marks: dict[str, int] = {}
    for event in sorted(events, key=lambda event: int(event["at_ms"])):
        kind = event["event"]
        if kind == "fault":
            fault, marks = event["fault"], {}
        elif kind == "killed":
            marks = {"killed": event["at_ms"]}
        elif kind in MARKS and marks:
            marks.setdefault(kind, event["at_ms"])
        elif kind == "saw" and event["reader"] == "live" and "recovering" in marks:
            marks["row"] = event["at_ms"]
            steps = sorted(marks.items(), key=lambda mark: mark[1])
            parts = {name: at - before for (_, before), (name, at) in pairwise(steps)}
            found.append(Recovered(fault, parts))
            marks = {}
    return found
