"""``airflow-eos doctor`` where there is no broker: a disk, and a store that does not answer."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.cli import app


def lines(*arguments: str, status: int) -> dict[str, dict[str, str]]:
    answer = CliRunner().invoke(app, ["doctor", *arguments, "--rounds", "2", "--json"])
    assert answer.exit_code == status, answer.output
    return {line["what"]: line for line in json.loads(answer.output)}


def test_a_folder_that_is_not_there_yet_is_fine_and_is_not_made(tmp_path):
    found = lines(str(tmp_path / "query"), status=0)
    assert found["create-if-absent"]["verdict"] == "ok"
    assert found["checkpoint"]["found"] == "new: no batch was planned"
    assert list(tmp_path.iterdir()) == []


def test_probes_leave_what_stands_as_it_is(tmp_path):
    store = CheckpointStore.open(tmp_path)
    store.create("eos/drivers/1.json", b"{}")
    lines(str(tmp_path), status=0)
    kept = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert kept == ["eos", "eos/drivers", "eos/drivers/1.json"]


def test_a_store_that_does_not_answer_fails_and_the_rest_is_still_looked_at(tmp_path):
    found = lines("hdfs://127.0.0.1:1/q", "--storage-option", "timeout=0.2s", status=1)
    assert found["store"]["verdict"] == "fail"
    assert "reading eos/pipeline.json failed" in found["store"]["found"]
    assert found["Java"]["verdict"] in ("ok", "warn")
    assert (found["owner"]["verdict"], found["owner"]["found"]) == ("warn", "not known")


def test_a_broker_that_is_away_is_a_line_and_an_exit_status(tmp_path):
    found = lines(str(tmp_path / "q"), "-b", "127.0.0.1:1", "--timeout", "0.3", status=1)
    assert found["broker"]["verdict"] == "fail"
    assert found["create-if-absent"]["verdict"] == "ok"


def test_a_table_for_people(tmp_path):
    answer = CliRunner().invoke(app, ["doctor", str(tmp_path / "q"), "--rounds", "1"])
    assert answer.exit_code == 0
    assert "create-if-absent" in answer.output
    assert "one winner in each of 1 rounds" in " ".join(answer.output.split())
