"""What a run of the suite found, as a page: kinds down, places across."""

from __future__ import annotations

import platform
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.support.kinds import KINDS

_ROWS = {
    "test_driver_killed": "driver killed at",
    "test_python_worker_killed": "task killed at",
    "test_a_driver_that_wakes_up_after_another_took_over": "driver asleep, another takes over, at",
    "test_two_drivers_started_together": "two drivers started together",
    "test_a_recovery_without_the_app": "recovery without the app",
    "test_a_recovery_killed_at_each_of_its_steps": "recovery killed at each of its steps",
    "test_at_least_once_the_rows_are_visible_at_once": "at least once",
}
_ID = re.compile(r"(?P<test>\w+)\[(?P<parameters>.+)\]")


@dataclass(frozen=True)
class Case:
    """One test of one kind."""

    what: str
    kind: str
    passed: bool
    seconds: float


def cases(report: Path) -> list[Case]:
    """Those of a report of pytest's, in its order."""
    if not report.exists():
        return []
    found = []
    for each in ET.parse(report).iter("testcase"):
        matched = _ID.fullmatch(each.get("name", ""))
        if matched is None:
            continue
        # A kind's name may be the beginning of another's.
        names = sorted(KINDS, key=len, reverse=True)
        parameters = matched["parameters"]
        kind = next(name for name in names if re.match(rf"{re.escape(name)}(-|$)", parameters))
        place = parameters.removeprefix(kind).removeprefix("-")
        ill = any(each.find(what) is not None for what in ("failure", "error", "skipped"))
        found.append(
            Case(
                f"{_ROWS[matched['test']]} {place}".strip(),
                kind,
                not ill,
                float(each.get("time", 0)),
            )
        )
    return found


def page(ran: list[Case], commit: str, arguments: str) -> str:
    """The page; ✓ held, ✗ did not, a blank has no such place."""
    kinds = [kind for kind in KINDS if any(case.kind == kind for case in ran)]
    held = {(case.what, case.kind): case.passed for case in ran}
    rows = list(dict.fromkeys(sorted((case.what for case in ran), key=_order(ran).index)))
    held_at_all = sum(case.passed for case in ran)
    minutes = sum(case.seconds for case in ran) / 60
    about = (
        "Written by `make proof`; what each row does is in "
        "[`tests/integration/kinds`](../integration/kinds). After each: no row lost, none twice, "
        "nothing left prepared, and never more visible than was decided."
    )
    run = (
        f"{held_at_all} of {len(ran)} held. Commit {commit}, "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, Python {platform.python_version()}, "
        f"{minutes:.0f} minutes of tests{f' (`{arguments}`)' if arguments else ''}."
    )
    heading = [f"| | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    lines = ["# Every kind at every place", "", about, "", run, "", *heading]
    signs = {True: "✓", False: "✗", None: ""}
    for what in rows:
        cells = (signs[held.get((what, kind))] for kind in kinds)
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _order(ran: list[Case]) -> list[str]:
    """As the suite has them: by test, and by place in it."""
    tests = list(_ROWS.values())
    seen = list(dict.fromkeys(case.what for case in ran))
    return sorted(seen, key=lambda what: next(i for i, t in enumerate(tests) if what.startswith(t)))
