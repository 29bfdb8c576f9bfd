"""What `airflow-eos status` shows of a checkpoint to whoever looks, wherever they are."""

from __future__ import annotations

import os

import pendulum
import pytest
from typer.testing import CliRunner

from airflow_eos.cli import app


@pytest.mark.parametrize(
    ("zone", "shown"),
    [("UTC", "2026-11-22 06:00:00 UTC"), ("Asia/Kolkata", "2026-11-22 11:30:00 IST")],
)
def test_a_commit_is_shown_by_the_readers_clock_with_its_zone(tmp_path, zone, shown):
    for path, text in {
        "metadata": '{"id":"6a1c9b3e-0000-4000-8000-000000000000"}',
        "offsets/4": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"in":{"0":9}}',
        "commits/4": 'v1\n{"nextBatchWatermarkMs":0}',
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    os.utime(tmp_path / "commits/4", (1_795_327_200,) * 2)

    with pendulum.test_local_timezone(pendulum.timezone(zone)):
        answer = CliRunner().invoke(app, ["status", str(tmp_path)])

    assert answer.exit_code == 0, answer.output
    assert f"ago, at {shown}" in answer.output
