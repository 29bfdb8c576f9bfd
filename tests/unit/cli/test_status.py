"""``airflow-eos status`` and ``doctor``: what they show of a checkpoint, once or as it changes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
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

from airflow_eos.cli import status as watching
from airflow_eos.cli.app import app
from airflow_eos.core.checkpoint import CheckpointStore, PipelineIdentity, claim
from airflow_eos.core.checkpoint.progress import StateSize, write_state_size
from airflow_eos.core.checkpoint.standby import write_standby
from airflow_eos.errors import ConfigurationError, StoreError
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


# --- watching -------------------------------------------------------------------------------------
# `airflow-eos status --watch` on a real terminal, into a pipe, and over a store that goes away.


ENTER, LEAVE, CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


def checkpoint(tmp_path: Path) -> Path:
    for path, text in {
        "metadata": '{"id":"6a1c9b3e-0000-4000-8000-000000000000"}',
        "offsets/0": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"in":{"0":9}}',
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def commit(place: Path) -> None:
    (place / "commits").mkdir()
    (place / "whole").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (place / "whole").rename(place / "commits/0")


def watch(place: Path, *more: str) -> list[str]:
    program = ["-c", "from airflow_eos.cli.app import main; main()"]
    return [sys.executable, *program, "status", str(place), "--watch", "--interval=0.1", *more]


def read_until(fd: int, wanted: bytes, seen: bytes = b"", within_s: float = 300.0) -> bytes:
    """What was read, the terminal's colours and breaks left in."""
    ends = time.monotonic() + within_s
    while wanted not in seen and time.monotonic() < ends:
        if select.select([fd], [], [], 0.1)[0]:
            try:
                seen += os.read(fd, 65536)
            except OSError:  # the program has closed its terminal
                return seen
    return seen


def test_a_watch_shows_what_changes_and_ctrl_c_gives_the_terminal_back(tmp_path):
    place = checkpoint(tmp_path)
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        watch(place),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        seen = read_until(ours, b"no batch yet")
        assert ENTER in seen
        assert b"no batch yet" in seen
        commit(place)
        later = read_until(ours, b"batch 0, ")
        assert b"batch 0, " in later
        assert LEAVE not in seen + later
        running.send_signal(signal.SIGINT)
        last = read_until(ours, b"no sign of life", read_until(ours, LEAVE))
        assert running.wait(120) == 0
    finally:
        running.kill()
        os.close(ours)
    assert LEAVE in last
    assert CURSOR in last
    assert b"Traceback" not in last
    assert b"batch 0, " in last[last.index(LEAVE) :], "what was seen last stays"


def test_a_watch_for_programs_prints_one_line_a_look(tmp_path):
    place = checkpoint(tmp_path)
    running = subprocess.Popen(watch(place, "--json"), stdout=subprocess.PIPE)
    assert running.stdout is not None
    try:
        first = json.loads(running.stdout.readline())
        commit(place)
        later = first
        while later["progress"]["batch_in_flight"] == 0:
            later = json.loads(running.stdout.readline())
        running.send_signal(signal.SIGINT)
        assert running.wait(120) == 0
    finally:
        running.kill()
        running.stdout.close()
    assert first["progress"]["latest_committed_batch"] is None
    assert later["progress"]["latest_committed_batch"] == 0
    assert later["looked_at_ms"] > first["looked_at_ms"]


def test_a_store_that_is_away_for_a_moment_does_not_end_a_watch(capsys):
    answers = iter([{"n": 1}, StoreError("the store is away"), {"n": 2}, KeyboardInterrupt()])

    def look() -> Any:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    watching.watch_status(look, every_s=0.0, as_json=True)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each.get("n", each.get("error")) for each in told] == [1, "the store is away", 2]


def test_what_is_wrong_from_the_start_ends_a_watch_at_once():
    def look() -> dict[str, int]:
        raise ConfigurationError("no checkpoint here")

    with pytest.raises(ConfigurationError, match="no checkpoint here"):
        watching.watch_status(look, every_s=0.0, as_json=True)


# --- ``airflow-eos doctor`` where there is no broker: a disk, and a store that does not answer ----


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
