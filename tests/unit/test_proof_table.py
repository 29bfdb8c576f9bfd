"""The pages of ``make proof`` and ``make cluster`` say what ran, and name what did not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_eos.core import participants
from tests.cluster.__main__ import page as page_of_clusters
from tests.long.__main__ import page as page_of_long
from tests.proof.table import beside, cases, page
from tests.support.kinds import KINDS


def ran(file: str, name: str, ill: str = "") -> str:
    return f'<testcase classname="tests.{file}" name="test_{name}" time="3">{ill}</testcase>'


REPORT = "".join(
    (
        "<testsuites><testsuite>",
        ran("test_postings", "the_books_balance"),
        ran("test_kinds", "driver_killed[postgres-prepared@2]"),
        ran("test_kinds", "driver_killed[postgres-staged-prepared@2]", "<failure/>"),
        ran("test_kinds", "driver_killed[kafka+postgres-prepared@2]", "<skipped/>"),
        ran("test_kinds", "a_recovery_without_the_app[postgres]"),
        ran("test_three", "restarts", '<skipped message="takes minutes: run with -m chaos"/>'),
        "</testsuite></testsuites>",
    )
)


def test_what_failed_or_was_skipped_has_not_held(tmp_path: Path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    text = page(cases(report), beside(report), "1234567")
    assert "3 of 5 held. Commit 1234567" in text
    assert "| | postgres | postgres-staged | kafka+postgres |" in text
    assert "| driver killed at prepared@2 | ✓ | ✗ | ✗ |" in text
    assert "| recovery without the app | ✓ |  |  |" in text
    assert "| postings | the books balance | ✓ | 3 |" in text
    assert "restarts" not in text, "it is another command's"


def test_of_what_takes_long_a_room_is_a_line_and_what_failed_is_named(tmp_path: Path):
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite>"
        + ran("integration.kinds.test_kinds", "kept")
        + ran("integration.kinds.test_other", "lost", "<failure/>")
        + ran("integration.kinds.test_other", "gs", '<skipped message="needs a bucket"/>')
        + "</testsuite></testsuites>"
    )
    text = page_of_long(report, "1234567")
    assert "1 of 2 held. Commit 1234567" in text
    assert "| integration/kinds | 3 | 1 | 0.1 |" in text
    assert text.endswith(
        "- not held: `tests.integration.kinds.test_other::test_lost`\n"
        "- not run: `tests.integration.kinds.test_other::test_gs`: needs a bucket\n"
    )


def test_a_run_that_wrote_no_report_has_no_cases(tmp_path: Path):
    assert cases(tmp_path / "none.xml") == beside(tmp_path / "none.xml") == []


# A consumer group takes no rows; tests/integration/offsets kills it at each place.
@pytest.mark.parametrize("kind", sorted({*participants.KINDS} - {"consumer_group"}))
def test_no_kind_of_the_package_is_left_out_of_the_proof(kind: str):
    names = [name for name in KINDS if name == kind or name.startswith(f"{kind}-")]
    assert names, f"tests/support/kinds/__init__.py has no line for {kind}"


# --- cluster table --------------------------------------------------------------------------------
# The table of ``make cluster``: each audit a line, and a test that did not hold is not hidden.


LINE = {
    "cluster": "YARN",
    "kill": "the driver",
    "lost": 0,
    "duplicated": 2,
    "reordered": 0,
    "seconds": 41.5,
}


def test_lines_and_tests_are_told_as_they_were(tmp_path: Path):
    report = tmp_path / "report.xml"
    told = json.dumps(LINE).replace('"', "&quot;")
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase name="test_a_machine_is_lost" time="61.2"><properties>'
        f'<property name="line" value="{told}"/></properties></testcase>'
        '<testcase name="test_the_driver_is_killed" time="7"><failure/></testcase>'
        "</testsuite></testsuites>"
    )
    lines = page_of_clusters(report, "abc1234").splitlines()
    assert "| YARN | the driver | 0 | 2 | 0 | 41.5 |" in lines
    assert "| a machine is lost | ✓ | 61 |" in lines
    assert "| the driver is killed | ✗ | 7 |" in lines
    (summary,) = [line for line in lines if "tests held" in line]
    assert summary.startswith("1 of 2 tests held. Commit abc1234, ")
