"""``python -m tests.proof``: every kind at every place, and what became of it, written down.

Exit status 1 where anything failed; the table then says what.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.proof.table import cases, page

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
SUITE = "tests/integration/kinds/test_kinds.py"


def main() -> int:
    """Run the suite, then write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("-n", "--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("-k", "--only", default="", help="as pytest's; writes no table")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", SUITE, f"--junit-xml={report}"]
        command += ["-n", str(asked.jobs), "-k", asked.only]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        ran = cases(report)
    if status not in (0, 1):
        sys.stderr.write(f"pytest ended with status {status}: a part is no proof, and no table.\n")
    elif not asked.only:
        (FOLDER / "RESULT.md").write_text(page(ran, commit(), " ".join(sys.argv[1:])))
    return status


def commit() -> str:
    """The newest commit; with a star where files differ from it."""
    answers = [
        subprocess.run(["git", *asked], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for asked in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "-uno"))
    ]
    return answers[0].strip() + ("*" if answers[1].strip() else "")


if __name__ == "__main__":
    sys.exit(main())
