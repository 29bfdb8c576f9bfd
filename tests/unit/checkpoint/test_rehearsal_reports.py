"""What is not compared is not known; what differs is never called the same."""

from __future__ import annotations

import json

import pytest

from airflow_eos.checkpoint.rehearsal import (
    OutputComparison,
    RehearsalReport,
    RowDifference,
    RowExample,
    compared,
)
from airflow_eos.supervision.rehearsal import sentence

A, B = "0" * 31 + "a", "0" * 31 + "b"


def report(*found: OutputComparison, error: str = "") -> RehearsalReport:
    return RehearsalReport(checkpoint="c", compared=found, copied_bytes=0, seconds=1.0, error=error)


def of(verdict) -> OutputComparison:
    return OutputComparison(1, "sink", verdict)


def test_equal_fingerprints_of_as_many_rows_are_the_same_rows():
    assert compared(1, "sink", (3, A), (3, A), None).verdict == "same"


@pytest.mark.parametrize("found", [(3, B), (4, A)])
def test_other_fingerprints_differ_also_where_readers_cannot_be_asked(found):
    told = compared(1, "sink", (3, A), found, "the topic has lost it")
    assert (told.verdict, told.why) == ("differs", "the topic has lost it")
    assert compared(1, "sink", (3, A), found, None).verdict == "differs"


def test_content_stands_above_the_fingerprint_of_other_columns():
    assert compared(1, "sink", (3, A), (3, B), RowDifference()).verdict == "same"
    assert compared(1, "sink", (3, A), (3, B), RowDifference(changed=1)).verdict == "differs"


def test_equal_rows_but_for_what_the_system_fills_in_are_not_known_to_be_the_same():
    told = compared(1, "sink", (3, A), (3, B), RowDifference(untold=("timestamp",)))
    assert told.verdict == "not known"
    assert "timestamp" in told.why


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        (["same", "same"], 0),
        (["same", "differs", "not known"], 1),
        (["same", "not known"], 3),
        (["not known"], 3),
        ([], 3),
    ],
)
def test_the_exit_status_is_that_of_the_worst(verdicts, status):
    found = report(*map(of, verdicts))
    assert found.exit_status == status


def test_batches_without_a_row_compare_nothing_whatever_the_new_version_does():
    """As where the newest twenty close no window: another sum in it would be the same."""
    empty = OutputComparison(1, "sink", "same", 0, 0)
    assert report(empty, empty).exit_status == 3
    assert report(empty, OutputComparison(2, "sink", "same", 1, 1)).exit_status == 0
    assert "none of these batches has a row" in sentence(report(empty))


def test_a_version_that_fails_is_no_good_whatever_it_gave_before():
    found = report(of("same"), error="batch 2: ValueError")
    assert (found.exit_status, found.verdict) == (2, "failed")


def test_a_program_reads_the_verdict_first():
    shown = RowDifference(1, 0, 0, (RowExample("changed", "k", "value=1", "value=2"),))
    told = json.loads(report(OutputComparison(1, "sink", "differs", 3, 3, shown)).to_json())
    assert next(iter(told)) == "verdict"
    assert told["compared"][0]["difference"]["examples"][0]["rehearsed"] == "value=2"
