"""An app that rehearses is started, read and shown; its secrets are not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.rehearsal import (
    REPORT,
    OutputComparison,
    RehearsalReport,
    RehearsalRequest,
    RowDifference,
    RowExample,
)
from airflow_eos.errors import AppFailedError
from airflow_eos.protocol.decision import encode
from airflow_eos.supervision.rehearsal import masked, rehearse, report_view
from airflow_eos.tables import as_text

CHANGED = RowDifference(1, 2, 3, (RowExample("changed", "k7", "value=old", "value=new"),))
FOUND = RehearsalReport(
    checkpoint="/data/c",
    compared=(
        OutputComparison(0, "", "not known", why="no decision says which rows it has"),
        OutputComparison(1, "sink", "differs", 100, 101, CHANGED),
    ),
    copied_bytes=7,
    seconds=2.0,
    error="",
)


def test_the_report_of_the_app_is_what_is_found(tmp_path: Path):
    told = RehearsalRequest("/data/c", str(tmp_path / "s"), 2)
    CheckpointStore.open(told.scratch).put(REPORT, encode(FOUND))
    assert rehearse([sys.executable, "-c", "pass"], told, tmp_path) == FOUND


def test_an_app_that_compared_nothing_failed_whatever_its_status(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    told = RehearsalRequest("/data/c", str(tmp_path / "s"), 2)
    says = (
        "import os; print('no', os.environ['DB_PASSWORD'], os.environ['EOS_CHECKPOINT_LOCATION'])"
    )
    with pytest.raises(AppFailedError, match="did not rehearse on /data/c") as failed:
        rehearse([sys.executable, "-c", says], told, tmp_path)
    assert "no *** /data/c" in str(failed.value)


def test_secrets_that_were_given_by_name_are_masked():
    command = ["app.py", "--sasl-password", "one", "--conf=x.secret=two", "--topic", "orders"]
    said = masked("one two three orders", command, {"API_TOKEN": "three"})
    assert said == "*** *** *** orders"


def test_people_see_what_differs_by_key_and_what_is_not_known():
    said = as_text(report_view(FOUND))
    assert "100 → 101" in said
    assert "no decision" in said
    assert "value=new" in said
    assert "OTHER ROWS" in said
