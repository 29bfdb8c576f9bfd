"""The page that ``make proof`` writes says what ran, and names what did not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_eos import participants
from tests.proof.table import cases, page
from tests.support.kinds import KINDS

REPORT = """<testsuites><testsuite>
<testcase name="test_driver_killed[postgres-prepared@2]" time="3"/>
<testcase name="test_driver_killed[postgres-staged-prepared@2]" time="3"><failure/></testcase>
<testcase name="test_driver_killed[kafka+postgres-prepared@2]" time="3"><skipped/></testcase>
<testcase name="test_a_recovery_without_the_app[postgres]" time="3"/>
</testsuite></testsuites>"""


def test_what_failed_or_was_skipped_has_not_held(tmp_path: Path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    text = page(cases(report), "1234567", "")
    assert "2 of 4 held. Commit 1234567" in text
    assert "| | postgres | postgres-staged | kafka+postgres |" in text
    assert "| driver killed at prepared@2 | ✓ | ✗ | ✗ |" in text
    assert "| recovery without the app | ✓ |  |  |" in text


def test_a_run_that_wrote_no_report_has_no_cases(tmp_path: Path):
    assert cases(tmp_path / "none.xml") == []


# A consumer group takes no rows; tests/integration/offsets kills it at each place.
@pytest.mark.parametrize("kind", sorted(participants.KINDS.keys() - {"consumer_group"}))
def test_no_kind_of_the_package_is_left_out_of_the_proof(kind: str):
    names = [name for name in KINDS if name == kind or name.startswith(f"{kind}-")]
    assert names, f"tests/support/kinds/__init__.py has no line for {kind}"
