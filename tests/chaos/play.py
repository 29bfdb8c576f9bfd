"""Play one history: feed, start, break, start again, until all is delivered; then judge it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from airflow_eos.recovery.history import read_history
from airflow_eos.recovery.history_rules import check
from airflow_eos.recovery.history_story import Violation
from tests.chaos.arena import OUT_PARTITIONS, Arena
from tests.chaos.processes import wait_until
from tests.chaos.readers import LiveReaders
from tests.chaos.remains import write_down
from tests.chaos.scenario import Scenario
from tests.chaos.stage import Stage


@dataclass(frozen=True)
class Recovered:
    """From a dead driver to the first row that a reader got afterwards, in parts.

    ``to_start_ms`` is the harness's own pause; recovery runs before ``taken-over``; a promise that
    recovery commits is read before the driver has taken over, and then the last part is 0.
    """

    fault: str
    to_start_ms: int
    to_taken_over_ms: int
    to_row_ms: int

    @property
    def total_ms(self) -> int:
        return self.to_start_ms + self.to_taken_over_ms + self.to_row_ms


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


def play(arena: Arena, scenario: Scenario, stage: type[Stage] = Stage) -> Played:
    """Play the history; its topic ``<name>-out`` exists."""
    began = time.monotonic()
    history = stage(arena, scenario)
    try:
        with LiveReaders(
            arena.bootstrap, history.topic, OUT_PARTITIONS, history.journal, scenario.isolation
        ) as live:
            for number, incident in enumerate(scenario.incidents):
                history.incident(number, incident)
            history.finish()
            caught_up = history.finished
            wanted = len(history.fed)
            if caught_up:
                wait_until(lambda: live.rows_seen >= wanted, 2)
        write_down(history, caught_up=caught_up)
    finally:
        history.end_all()
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
        elif kind in {"start", "taken-over"} and marks:
            marks.setdefault(kind, event["at_ms"])
        elif kind == "saw" and event["reader"] == "live" and "start" in marks:
            taken_over = marks.get("taken-over", event["at_ms"])
            found.append(
                Recovered(
                    fault,
                    to_start_ms=marks["start"] - marks["killed"],
                    to_taken_over_ms=taken_over - marks["start"],
                    to_row_ms=event["at_ms"] - taken_over,
                )
            )
            marks = {}
    return found
