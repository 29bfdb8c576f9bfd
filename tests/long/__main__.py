"""``make long``: what takes longer than a second and no mutant names; writes its table.

All tests that are marked ``long``, in the order of their folders.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

from tests.support.written import held, of_the_run, run_and_write

TESTS = ("-m", "long", "--dist", "loadfile", "--no-loadscope-reorder", "--durations=30")


def page(report: Path, commit: str) -> str:
    """Rooms down: how many tests, how many held, how long they took together."""
    rooms: dict[str, list[ET.Element]] = defaultdict(list)
    for case in ET.parse(report).iter("testcase"):
        rooms["/".join(case.get("classname", "").split(".")[1:-1])].append(case)
    every = [case for cases in rooms.values() for case in cases]
    skipped = [case for case in every if case.find("skipped") is not None]
    tried = [case for case in every if case not in skipped]
    run = f"{sum(map(held, tried))} of {len(tried)} held. {of_the_run(commit)}."
    lines = ["# What takes longer than a second", "", "Written by `make long`.", "", run, ""]
    lines += ["| room | tests | held | minutes of tests |", "|---|---|---|---|"]
    for room, cases in sorted(rooms.items()):
        minutes = sum(float(case.get("time", 0)) for case in cases) / 60
        lines.append(f"| {room} | {len(cases)} | {sum(map(held, cases))} | {minutes:.1f} |")
    failed = [case for case in tried if not held(case)]
    lines += ["", *(f"- not held: {_name(case)}" for case in failed)]
    lines += [f"- not run: {_name(case)}: {_why(case)}" for case in skipped]
    return "\n".join(lines).rstrip() + "\n"


def _name(case: ET.Element) -> str:
    return f"`{case.get('classname')}::{case.get('name')}`"


def _why(skipped: ET.Element) -> str:
    reason = skipped.find("skipped")
    return reason.get("message", "") if reason is not None else ""


if __name__ == "__main__":
    sys.exit(run_and_write(Path(__file__).parent, __doc__ or "", TESTS, page, jobs=4))
