"""What a run of the suite found, as a page: kinds down, places across."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from tests.support.kinds import KINDS
from tests.support.written import held, of_the_run

_ROWS = {
    "test_driver_killed": "driver killed at",
    "test_python_worker_killed": "task killed at",
    "test_a_driver_that_wakes_up_after_another_took_over": "driver asleep, another takes over, at",
    "test_two_drivers_started_together": "two drivers started together",
    "test_a_recovery_without_the_app": "recovery without the app",
    "test_a_recovery_killed_at_each_of_its_steps": "recovery killed at each of its steps",
    "test_rows_that_arrow_kafka_source_has_read": "rows of ArrowKafkaSource, driver killed",
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
    """The kinds' own, of a report of pytest's, in its order."""
    found = []
    names = sorted(KINDS, key=len, reverse=True)  # a name may be the beginning of another's
    for each in _tests(report):
        matched = _ID.fullmatch(each.get("name", ""))
        if not _of_the_kinds(each) or matched is None:
            continue
        parameters = matched["parameters"]
        kind = next(name for name in names if re.match(rf"{re.escape(name)}(-|$)", parameters))
        place = parameters.removeprefix(kind).removeprefix("-")
        what = f"{_ROWS[matched['test']]} {place}".strip()
        found.append(Case(what, kind, held(each), float(each.get("time", 0))))
    return found


def beside(report: Path) -> list[Case]:
    """What else was run: the test's words, and its file in the place of a kind."""
    return [
        Case(
            each.get("name", "").removeprefix("test_").replace("_", " "),
            each.get("classname", "").rpartition(".")[2].removeprefix("test_"),
            held(each),
            float(each.get("time", 0)),
        )
        for each in _tests(report)
        if not _of_the_kinds(each)
    ]


def _tests(report: Path) -> list[ET.Element]:
    """All tests but those of another command; a test skipped for another reason has not held."""
    if not report.exists():
        return []
    return [each for each in ET.parse(report).iter("testcase") if not _is_of_chaos(each)]


def _is_of_chaos(each: ET.Element) -> bool:
    skipped = each.find("skipped")
    return skipped is not None and skipped.get("message", "").endswith("run with -m chaos")


def _of_the_kinds(each: ET.Element) -> bool:
    return each.get("classname", "").endswith("test_kinds")


def page(ran: list[Case], others: list[Case], commit: str) -> str:
    """The page; ✓ held, ✗ did not, a blank has no such place."""
    kinds = [kind for kind in KINDS if any(case.kind == kind for case in ran)]
    passed = {(case.what, case.kind): case.passed for case in ran}
    rows = list(dict.fromkeys(sorted((case.what for case in ran), key=_order(ran).index)))
    every = [*ran, *others]
    held_at_all = sum(case.passed for case in every)
    minutes = sum(case.seconds for case in every) / 60
    about = (
        "Written by `make proof`; what each row does is in "
        "[`tests/integration/kinds`](../integration/kinds). After each: no row lost, none twice, "
        "nothing left prepared, and never more visible than was decided."
    )
    run = (
        f"{held_at_all} of {len(every)} held. {of_the_run(commit)}, {minutes:.0f} minutes of tests."
    )
    heading = [f"| | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    lines = ["# Every kind at every place", "", about, "", run, "", *heading]
    signs = {True: "✓", False: "✗", None: ""}
    for what in rows:
        cells = (signs[passed.get((what, kind))] for kind in kinds)
        lines.append(f"| {what} | {' | '.join(cells)} |")
    lines += ["", "## Beside them", "", "| of | what | | seconds |", "|---|---|---|---|"]
    lines += [
        f"| {case.kind} | {case.what} | {signs[case.passed]} | {case.seconds:.0f} |"
        for case in others
    ]
    return "\n".join(lines) + "\n"


def _order(ran: list[Case]) -> list[str]:
    """As the suite has them: by test, and by place in it."""
    tests = list(_ROWS.values())
    seen = list(dict.fromkeys(case.what for case in ran))
    return sorted(seen, key=lambda what: next(i for i, t in enumerate(tests) if what.startswith(t)))
