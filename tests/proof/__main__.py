"""``python -m tests.proof``: every kind at every place, what else is long, and what became of it.

Exit status 1 where anything failed; the table then says what.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.proof.table import beside, cases, page
from tests.support.written import ROOT, run_and_write

SUITE = "tests/integration/kinds/test_kinds.py"
BESIDE = tuple(
    sorted(
        str(file.relative_to(ROOT))
        for folder in ("chaos", "integration")
        for file in (ROOT / "tests" / folder).rglob("test_*.py")
        if "pytest.mark.proof" in file.read_text(encoding="utf-8")
    )
)
"""Files that have a test marked ``proof``: too long for ``make test``. Its own are of ``cases``."""


def whole(report: Path, commit: str) -> str:
    """The page of a report."""
    return page(cases(report), beside(report), commit)


if __name__ == "__main__":
    tests = (SUITE, *BESIDE)
    sys.exit(run_and_write(Path(__file__).parent, __doc__, tests, whole, jobs=2))
