"""Asking a pipeline to stop, and saying honestly whether it has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_eos.checkpoint import CheckpointStore, Heartbeat, drain_requested, write_heartbeat
from airflow_eos.cli import app
from airflow_eos.errors import ConfigurationError

pytestmark = pytest.mark.unit


def beat(store: CheckpointStore, phase: str) -> None:
    heartbeat = Heartbeat(
        application_id="app",
        host="h",
        pid=1,
        batch_id=3,
        phase=phase,  # type: ignore[arg-type]
        beat_at_ms=1,
        interval_ms=2000,
        trigger_ms=1000,
        started_at_ms=0,
    )
    write_heartbeat(store, heartbeat)


@pytest.mark.parametrize(("phase", "status"), [("stopped", 0), ("waiting", 1)])
def test_the_exit_status_says_whether_the_driver_stopped(tmp_path: Path, phase, status):
    store = CheckpointStore.open(tmp_path)
    beat(store, phase)
    result = CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "0", "--json"])
    assert result.exit_code == status
    assert json.loads(result.stdout)["stopped"] is (status == 0)
    assert drain_requested(store) is not None


def test_a_folder_that_no_driver_has_used_is_refused(tmp_path: Path):
    result = CliRunner().invoke(app, ["drain", str(tmp_path)])
    assert isinstance(result.exception, ConfigurationError)
    assert drain_requested(CheckpointStore.open(tmp_path)) is None
