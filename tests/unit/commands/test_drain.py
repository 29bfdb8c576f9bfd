"""Asking a pipeline to stop, and saying honestly whether it has."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_eos.checkpoint import (
    CheckpointStore,
    standing_request,
    take_term,
    write_heartbeat,
)
from airflow_eos.cli import app
from airflow_eos.errors import ConfigurationError
from tests.support.beats import heartbeat

pytestmark = pytest.mark.unit


def beat(store: CheckpointStore, phase: str, term: int | None = None) -> None:
    write_heartbeat(store, heartbeat(phase, term=term))  # type: ignore[arg-type]


@pytest.mark.parametrize(("phase", "status"), [("stopped", 0), ("waiting", 1), ("failed", 1)])
def test_the_exit_status_says_whether_the_driver_stopped(tmp_path: Path, phase, status):
    store = CheckpointStore.open(tmp_path)
    beat(store, phase)
    result = CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "0", "--json"])
    assert result.exit_code == status
    assert json.loads(result.stdout)["stopped"] is (status == 0)
    assert standing_request(store) is not None


def test_who_has_no_name_may_ask_too(tmp_path: Path, monkeypatch):
    """A container runs as a number that its system has no user for."""

    def nameless() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    beat(CheckpointStore.open(tmp_path), "stopped")
    result = CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "0"])
    assert result.exit_code == 0, result.exception
    request = standing_request(CheckpointStore.open(tmp_path))
    assert request is not None
    assert request.requested_by == f"cli {os.getuid()}"


def test_of_a_driver_that_has_failed_it_says_who_may_start_it_again(tmp_path: Path):
    beat(CheckpointStore.open(tmp_path), "failed")
    result = CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "60"])
    assert result.exit_code == 1
    assert "Drained" not in result.stdout
    assert "its task may be about to start it again" in result.stdout


def test_a_folder_that_no_driver_has_used_is_refused(tmp_path: Path):
    result = CliRunner().invoke(app, ["drain", str(tmp_path)])
    assert isinstance(result.exception, ConfigurationError)
    assert standing_request(CheckpointStore.open(tmp_path)) is None


def test_that_a_former_driver_has_stopped_is_no_answer_of_the_one_that_was_asked(tmp_path: Path):
    store = CheckpointStore.open(tmp_path)
    former = take_term(store, taken_by="former").term.number
    beat(store, "stopped", term=former)
    take_term(store, taken_by="the one that starts, and has not beaten yet")
    result = CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "0", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["stopped"] is False


def test_a_heartbeat_that_is_gone_is_not_that_no_driver_has_ever_run(tmp_path: Path):
    store = CheckpointStore.open(tmp_path)
    take_term(store, taken_by="x")
    result = CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "0"])
    assert result.exit_code == 1
    assert standing_request(store) is not None


@pytest.mark.parametrize(
    "command", [["handover"], ["accept", "--skip-input", "in:0:1-2", "--yes"]], ids=lambda c: c[0]
)
def test_of_a_folder_where_nobody_has_started_nothing_is_said_of_a_driver(tmp_path: Path, command):
    result = CliRunner().invoke(app, [command[0], str(tmp_path), *command[1:]])
    assert isinstance(result.exception, ConfigurationError)
    assert "checkpointLocation" in str(result.exception)
    assert "goes on" not in str(result.exception)
    assert "Start the app" not in str(result.exception)


def test_a_driver_with_a_term_is_named_so_that_its_successor_goes_on(tmp_path: Path):
    store = CheckpointStore.open(tmp_path)
    term = take_term(store, taken_by="x").term.number
    beat(store, "waiting", term=term)
    CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "0"])
    request = standing_request(store)
    assert request is not None
    assert request.term == term
