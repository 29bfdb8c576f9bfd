"""The table of ``make cluster``: each audit a line, and a test that did not hold is not hidden."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.__main__ import page as page_of_clusters

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
