"""``python -m tests.cluster``: real clusters, what was killed there, and what the audit found.

Writes the table to ``RESULT.md``. Exit status 1 where anything failed; the table then says what.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.support.written import held, of_the_run, run_and_write

ABOUT = (
    "Written by `make cluster`: each line is an audit of all rows of the stream until then. No "
    "machine of a cluster has a package of ours but what the app brings along "
    "([how](../../docs/clusters.md)). Seconds are from submitting, or from the line before, on two "
    "cores that all machines of the cluster share."
)


def page(report: Path, commit: str) -> str:
    """The table, and a line for each test: ✓ held, ✗ did not."""
    cases = list(ET.parse(report).iter("testcase"))
    lines = ["# Real clusters", "", ABOUT, ""]
    lines += [f"{sum(map(held, cases))} of {len(cases)} tests held. {of_the_run(commit)}.", ""]
    lines += ["| cluster | what was killed | lost | duplicated | reordered | seconds |"]
    lines += ["|---|---|---|---|---|---|"]
    for case in cases:
        for told in case.iter("property"):
            if told.get("name") == "line":
                line = json.loads(told.get("value", ""))
                lines.append("| " + " | ".join(str(cell) for cell in line.values()) + " |")
    lines += ["", "| test | | seconds |", "|---|---|---|"]
    for case in cases:
        what = case.get("name", "").removeprefix("test_").replace("_", " ")
        seconds = float(case.get("time", 0))
        lines.append(f"| {what} | {'✓' if held(case) else '✗'} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    # With several jobs a file is one worker's: else each of them would start each cluster.
    tests = ("-m", "cluster", "--dist", "loadfile")
    sys.exit(run_and_write(Path(__file__).parent, __doc__, tests, page, jobs=1))
