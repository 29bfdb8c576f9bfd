"""``python -m tests.examples``: every example app, by itself and by its DAG, killed at two places.

Writes what became of it to ``RESULT.md``. Exit status 1 where anything failed; the table says what.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.support.written import held, of_the_run, run_and_write

SUITES = ("tests/integration/examples", "tests/integration/of_a_user")
ABOUT = (
    "Written by `make examples`; what each line does is in "
    "[`tests/integration/examples`](../integration/examples), and what each app is for in "
    "[the page](../../docs/examples.md). `dag`: run and brought back by the app's DAG, with a JVM "
    "for each start."
)


def page(report: Path, commit: str) -> str:
    """The table; ✓ held, ✗ did not."""
    cases = list(ET.parse(report).iter("testcase"))
    lines = ["# The examples", "", ABOUT, ""]
    lines += [f"{sum(map(held, cases))} of {len(cases)} held. {of_the_run(commit)}.", ""]
    lines += ["| app | what was tried | | seconds |", "|---|---|---|---|"]
    for case in cases:
        file = case.get("classname", "").rpartition(".")[2].removeprefix("test_")
        name, _, form = case.get("name", "").removeprefix("test_").partition("[")
        what = name.replace("_", " ") + (f" ({form[:-1]})" if form == "dag]" else "")
        seconds = float(case.get("time", 0))
        lines.append(f"| `{file}.py` | {what} | {'✓' if held(case) else '✗'} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(run_and_write(Path(__file__).parent, __doc__, SUITES, page, jobs=1))
