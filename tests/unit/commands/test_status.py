"""What `airflow-eos status` shows of a checkpoint to whoever looks, wherever they are."""

from __future__ import annotations

import os
import re
import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pendulum
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from airflow_eos.checkpoint import CheckpointStore, PipelineIdentity, claim
from airflow_eos.checkpoint.progress import StateSize, write_state_size
from airflow_eos.checkpoint.standby import write_standby
from airflow_eos.cli import app
from airflow_eos.sinks import DeltaSink, FileSink
from tests.support.beats import standby


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


def status(checkpoint: Path) -> str:
    answer = CliRunner().invoke(app, ["status", str(checkpoint)])
    assert answer.exit_code == 0, answer.output
    return " ".join(answer.output.split())


def test_a_heartbeat_that_nobody_can_read_hides_nothing_else(tmp_path):
    store = CheckpointStore.open(tmp_path)
    store.put("metadata", b'{"id":"6a1c9b3e-0000-4000-8000-000000000000"}')
    store.put("eos/driver.json", b"")
    shown = status(tmp_path)
    assert "eos/driver.json is damaged" in shown
    assert "no batch yet" in shown
    assert "no sign of life" not in shown


def left_open(sink: Any, checkpoint: Path) -> None:
    """A task of the pipeline begins to write, and is heard of no more."""
    store = CheckpointStore.open(checkpoint)
    bound = sink.bound(store)
    pipeline = PipelineIdentity(
        id="1" * 32,
        participants=bound.connect(timedelta()).members,
        created_at_ms=1,
        created_by="driver 1",
    )
    claim(store, pipeline)
    bound.opened(0, 0).write(pa.RecordBatch.from_pydict({"id": pa.array([1])}))


def test_what_is_open_in_a_table_on_a_disk_is_shown_unasked_with_its_age(tmp_path):
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    DeltaTable.create(str(table), schema=pa.schema([("id", pa.int64())]))
    left_open(DeltaSink(str(table), application_id="etl"), checkpoint)
    time.sleep(0.1)
    shown = status(checkpoint)
    assert re.search(r"of 'sink', opened (?!0\.0)\d+\.\d s ago, time left: 6 d 23 h", shown), shown

    shutil.rmtree(table)
    shown = status(checkpoint)
    assert "delivers to" in shown
    assert "open not looked: " in shown


def test_work_that_nothing_ends_shows_since_when_it_waits(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    sink = FileSink(str(tmp_path / "out"), "parquet")
    left_open(sink, checkpoint)
    assert re.search(r"opened \d+\.\d s ago, time left: unlimited", status(checkpoint))


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
        late_rows=0,
        late_counted=13,
    )
    write_state_size(store, size)
    answer = CliRunner().invoke(app, ["status", str(tmp_path)], env={"COLUMNS": "300"})
    assert answer.exit_code == 0, answer.output
    assert "10,000,000 rows, 64.0 MB in memory, 900.5 MB of files; batch 12" in answer.output
    told = CliRunner().invoke(app, ["status", str(tmp_path), "--json"])
    assert msgspec.json.decode(told.output)["state"]["commit_ms"] == 500


def test_a_driver_that_stands_by_is_shown_and_one_that_is_gone_is_not_taken_for_one(tmp_path):
    store = CheckpointStore.open(tmp_path)
    store.put("metadata", b'{"id":"6a1c9b3e-0000-4000-8000-000000000000"}')
    said = standby(interval_ms=200)
    write_standby(store, said)
    assert "standby nobody stands by: driver app-2 on h did" in status(tmp_path)
    write_standby(store, msgspec.structs.replace(said, end="refused", reason="another state"))
    assert "driver app-2 on h was refused: another state" in status(tmp_path)
    told = CliRunner().invoke(app, ["status", str(tmp_path), "--json"])
    [shown] = msgspec.json.decode(told.output)["standbys"]
    assert (shown["standing"], shown["reason"]) == ("refused", "another state")
