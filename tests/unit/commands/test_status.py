"""What `airflow-eos status` shows of a checkpoint to whoever looks, wherever they are."""

from __future__ import annotations

import os

import msgspec
import pendulum
import pytest
from typer.testing import CliRunner

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.state_size import StateSize, write_state_size
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


def test_the_size_of_the_state_and_its_part_in_the_batch_are_shown(tmp_path):
    store = CheckpointStore.open(tmp_path)
    store.put("metadata", b'{"id":"6a1c9b3e-0000-4000-8000-000000000000"}')
    size = StateSize(
        batch_id=12,
        rows=10_000_000,
        memory_bytes=64_000_000,
        file_bytes=900_500_000,
        tasks=4,
        update_ms=2_000,
        commit_ms=500,
        batch_ms=1_500,
    )
    write_state_size(store, size)
    answer = CliRunner().invoke(app, ["status", str(tmp_path)], env={"COLUMNS": "300"})
    assert answer.exit_code == 0, answer.output
    assert "10,000,000 rows, 64.0 MB in memory, 900.5 MB of files; batch 12" in answer.output
    told = CliRunner().invoke(app, ["status", str(tmp_path), "--json"])
    assert msgspec.json.decode(told.output)["state"]["commit_ms"] == 500
