"""``python -m tests.examples``: every example app, by itself and by its DAG, killed at two places.

Writes what became of it to ``RESULT.md``. Exit status 1 where anything failed; the table says what.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

from tests.proof.__main__ import commit

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
SUITE = ROOT / "tests" / "integration" / "examples"
ABOUT = (
    "Written by `make examples`; what each line does is in "
    "[`tests/integration/examples`](../integration/examples), and what each app is for in "
    "[the page](../../docs/examples.md). `dag`: run and brought back by the app's DAG, with a JVM "
    "for each start."
)


def main() -> int:
    """Run the suite, then write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.examples", description=__doc__)
    parser.add_argument("-k", "--only", default="", help="as pytest's; writes no table")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", str(SUITE), f"--junit-xml={report}"]
        status = subprocess.run([*command, "-k", asked.only], cwd=ROOT, check=False).returncode
        found = page(report) if report.exists() else ""
    sys.stdout.write(f"\n{found}")
    if status not in (0, 1):
        sys.stderr.write(f"pytest ended with status {status}: no table is kept.\n")
    elif not asked.only:
        (FOLDER / "RESULT.md").write_text(found)
    return status


def page(report: Path) -> str:
    """The table; ✓ held, ✗ did not."""
    cases = list(ET.parse(report).iter("testcase"))
    lines = ["# The examples", "", ABOUT, ""]
    held = [not any(each.find(ill) is not None for ill in ("failure", "error")) for each in cases]
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, Python {platform.python_version()}."
    lines += [f"{sum(held)} of {len(cases)} held. Commit {commit()}, {when}", ""]
    lines += ["| app | what was tried | | seconds |", "|---|---|---|---|"]
    for case, well in zip(cases, held, strict=True):
        file = case.get("classname", "").rpartition(".")[2].removeprefix("test_")
        name, _, form = case.get("name", "").removeprefix("test_").partition("[")
        what = name.replace("_", " ") + (f" ({form[:-1]})" if form == "dag]" else "")
        seconds = float(case.get("time", 0))
        lines.append(f"| `{file}.py` | {what} | {'✓' if well else '✗'} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
