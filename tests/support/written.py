"""A run of tests that takes too long for ``make test``: its table is written beside it."""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULT = "RESULT.md"


def run_and_write(
    folder: Path,
    about: str,
    tests: Sequence[str],
    page: Callable[[Path, str], str],
    *,
    jobs: int,
    in_parts: bool = False,
) -> int:
    """Run pytest, print the page, and keep it as ``RESULT.md``, where the run was whole.

    Args:
        folder: of the page.
        about: of the command; its first line is its help.
        tests: what pytest is asked for.
        page: makes it of pytest's report and of the commit.
        jobs: processes at once, unless the caller says another number.
        in_parts: the page keeps what it has of tests that were not asked for.

    Returns:
        0; 1 where anything failed, which the page then says; else pytest's own, without a page.
    """
    only = "" if in_parts else "; writes no table"
    parser = argparse.ArgumentParser(prog=f"python -m tests.{folder.name}", description=about)
    parser.add_argument("-n", "--jobs", type=int, default=jobs, help="processes at once")
    parser.add_argument("-k", "--only", default="", help=f"as pytest's{only}")
    asked = parser.parse_args()
    began = commit()
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", *tests, f"--junit-xml={report}"]
        command += ["-n", str(asked.jobs if asked.jobs > 1 else 0), "-k", asked.only]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        found = page(report, began) if report.exists() else ""
    sys.stdout.write(f"\n{found}")
    if status not in (0, 1):
        sys.stderr.write(f"pytest ended with status {status}: a part is no proof, and no table.\n")
    elif in_parts or not asked.only:
        (folder / RESULT).write_text(found)
    return status


def commit() -> str:
    """The newest commit; with a star where files differ from it."""
    answers = [
        subprocess.run(["git", *asked], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for asked in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "-uno"))
    ]
    return answers[0].strip() + ("*" if answers[1].strip() else "")


def of_the_run(commit: str) -> str:
    """``Commit abc1234, 2026-11-23 22:10 UTC, Python 3.11.7``."""
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return f"Commit {commit}, {when}, Python {platform.python_version()}"


def held(case: ET.Element) -> bool:
    """Whether a test ran and passed."""
    return not any(case.find(ill) is not None for ill in ("failure", "error", "skipped"))
