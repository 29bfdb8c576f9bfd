"""Commands that change something: recovery, drain, repartition; refused clearly, ended early."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from airflow_eos.cli import app as cli
from airflow_eos.cli import upgrade as module
from airflow_eos.cli.app import app
from airflow_eos.cli.options import kafka_settings
from airflow_eos.core.checkpoint import (
    CheckpointStore,
    DecisionLog,
    PipelineIdentity,
    claim,
    read_heartbeat,
    standing_request,
    take_term,
    write_heartbeat,
)
from airflow_eos.core.checkpoint import standby as records
from airflow_eos.core.checkpoint.backend import DRAIN, HEARTBEAT
from airflow_eos.core.checkpoint.drain import BY_AIRFLOW, BY_STANDBY, withdraw_hand_over
from airflow_eos.core.checkpoint.liveness import process_mark
from airflow_eos.core.checkpoint.rulings import accept, skipped_input
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import ConfigurationError, PipelineAliveError, RecoveryError
from tests.support.beats import beating, heartbeat, of_a_killed_process, standby
from tests.support.clocks import clock_of
from tests.unit.core.recovery.facts_of import commit, prepared


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["airflow-eos", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "/nowhere"], "names no pipeline"),
        (["plan", "/nowhere", "--prefix", "etl"], "--bootstrap-servers"),
        (["recover"], "either a checkpoint"),
        (["recover", "-b", "h:1"], "either a checkpoint"),
        (["recover", "/x", "--plan", "p", "-b", "h:1"], "either a checkpoint"),
        (["recover", "--plan", "/nowhere/p.json", "-b", "h:1"], "cannot be read"),
        (["recover", "/x", "--allow", "replay", "-b", "h:1"], "--allow replay"),
        (["recover", "/x", "--dry-run", "--transaction", "t", "--assume", "aborted"], "--dry-run"),
        (["accept", "/nowhere", "--batch", "1"], "names no pipeline"),
        (["accept", "/nowhere"], "either --batch or --skip-input"),
        (["accept", "/x", "--batch", "1", "--skip-input", "in:0:1-2"], "either --batch"),
        (["accept", "/x", "--skip-input", "in:0"], "TOPIC:PARTITION:FIRST-LAST"),
        (["accept", "/nowhere", "--skip-input", "in:0:1-2", "--yes"], "names no pipeline"),
        (["plan", "hdfs://x/y", "-b", "h:1"], "hdfs"),
        (["plan", "/x", "--kafka-config", "/nowhere.json"], "cannot be read"),
        (["status", "/nowhere"], "no Spark checkpoint"),
        (["audit", "a", "b", "--id", "id", "-b", "h:1"], "names no part"),
        (["package", "--output", "x.tar"], ".zip"),
    ],
)
def test_bad_input_is_one_clear_message(run, arguments, says):
    code, out, err = run(*arguments)

    assert code == 2
    assert says in err
    assert "Traceback" not in err + out


@pytest.mark.parametrize("command", ["plan", "recover", "accept", "audit", "status", "package"])
def test_help_tells_the_exit_status(run, command):
    code, out, _ = run(command, "--help")

    assert code == 0
    if command != "package":
        assert "Exit status" in " ".join(out.split())


def test_kafka_config_as_json_and_as_properties(tmp_path):
    file = tmp_path / "kafka"
    file.write_text(json.dumps({"bootstrap.servers": "h:1", "client.id": "x"}))
    assert kafka_settings(None, file).get("client.id") == "x"
    assert kafka_settings("other:2", file).bootstrap_servers == "other:2"

    file.write_text("# comment\nbootstrap.servers = h:1\nclient.id=a=b\n")
    assert kafka_settings(None, file).get("client.id") == "a=b"


@pytest.mark.parametrize("text", ['{"sasl.password": "hunter2"', "sasl.password hunter2\n"])
def test_a_broken_kafka_config_does_not_show_its_secrets(tmp_path, text):
    file = tmp_path / "kafka"
    file.write_text(text)

    with pytest.raises(ConfigurationError) as refused:
        kafka_settings(None, file)

    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_status_of_a_checkpoint_without_kafka(run, tmp_path):
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
    for name in ("metadata", "offsets/0", "offsets/1", "commits/0"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / "metadata").write_text('{"id":"6a4cb5cf-5b5b-4b3e-9f0e-3f0d0b2b5c11"}')
    for batch, end in ((0, 10), (1, 25)):
        (tmp_path / f"offsets/{batch}").write_text(f'v1\n{head}\n{{"in":{{"0":{end}}}}}')
    (tmp_path / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')

    code, out, _ = run("status", str(tmp_path), "--json")
    facts = json.loads(out)

    assert code == 0
    assert facts["progress"]["batch_in_flight"] == 1
    assert facts["progress"]["sources"][0]["rows"] == 15
    assert facts["open_work"] is None

    _, table, _ = run("status", str(tmp_path))
    assert "batch 1, 15 rows" in table


@pytest.fixture
def stopped(tmp_path):
    """A checkpoint whose first batch is in flight and reads offsets 0 to 8 of ``in``."""
    store = CheckpointStore.open(str(tmp_path))
    store.put("metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
    member = Member("kafka", "kafka", {"transactional_id_prefix": "etl"})
    claim(store, PipelineIdentity(id="p", participants=(member,), created_at_ms=1, created_by="t"))
    store.put("sources/0/0", b'\0v1\n{"in":{"0":0}}')
    store.put("offsets/0", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n{"in":{"0":9}}')
    return store


def test_offsets_of_the_input_are_given_up_by_their_names_and_with_what_it_costs(
    run, stopped, monkeypatch, tmp_path
):
    asked = ["accept", str(tmp_path), "--skip-input", "in:0:3-5"]
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    assert run(*asked)[0] == 1
    assert skipped_input(stopped, ["in"]) == ()
    code, out, _ = run(*asked, "--yes")
    assert code == 0
    assert "in:0:3-5 is given up: at most 3 records" in " ".join(out.split())
    (ruling,) = skipped_input(stopped, ["in"])
    assert (ruling.topic, ruling.partition, ruling.first, ruling.last) == ("in", 0, 3, 5)
    code, out, _ = run(*asked, "--yes", "--json")
    assert (code, json.loads(out)["nonce"]) == (0, ruling.nonce)


def test_offsets_are_not_given_up_beside_a_promise_or_a_driver(run, stopped, monkeypatch, tmp_path):
    asked = ["accept", str(tmp_path), "--skip-input", "in:0:3-5", "--yes"]
    monkeypatch.setattr(
        "airflow_eos.core.checkpoint.liveness.signs_of_life", lambda _: ("it beats",)
    )
    code, _, err = run(*asked)
    assert code == 2
    assert f"airflow-eos accept {tmp_path} --skip-input in:0:3-5 --yes" in " ".join(err.split())
    monkeypatch.undo()
    DecisionLog(stopped).record(commit(prepared(), batch=0))
    monkeypatch.setattr("sys.argv", ["airflow-eos", *asked])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert skipped_input(stopped, ["in"]) == ()


def test_offsets_of_a_promised_batch_are_given_up_once_it_is_accepted(run, stopped, tmp_path):
    """Or nothing led on: each start met the damaged rows, also after the batch was accepted."""
    location = str(tmp_path)
    decision = commit(prepared(), batch=0)
    DecisionLog(stopped).record(decision)
    asked = ["accept", location, "--skip-input", "in:0:3-5", "--yes"]
    code, out, _ = run(*asked, "--json")
    accepting, skipping = json.loads(out)["remedies"][1]["commands"]
    assert code == 2
    assert accepting == f"airflow-eos accept {location} --batch 0 --yes"
    accept(stopped, 0, decision.nonce, missing={"sink": 1}, ruled_by="ann")  # what that one does
    assert run(*skipping.split()[1:])[0] == 0
    assert [each.last for each in skipped_input(stopped, ["in"])] == [5]


# --- Asking a pipeline to stop, and saying honestly whether it has --------------------------------


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


@pytest.mark.parametrize("seen", ["its process is gone", "it stands still"])
def test_a_drain_of_a_driver_that_was_killed_is_told_at_once(tmp_path: Path, seen: str):
    """Not after all of ``--wait``: nobody is there to answer."""
    store = CheckpointStore.open(tmp_path)
    killed = of_a_killed_process() if seen == "its process is gone" else {}
    term = take_term(store, taken_by="x").term.number
    write_heartbeat(store, heartbeat("waiting", term=term, interval_ms=200, **killed))
    result = CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "20", "--json"])
    assert (result.exit_code, json.loads(result.stdout)["stopped"]) == (1, False), result.exception
    told = CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "20"]).stdout
    assert "the driver has died" in told
    assert "airflow-eos plan" in told
    assert standing_request(store) is not None  # who watches leaves it down


@pytest.mark.parametrize("command", ["drain", "handover"])
@pytest.mark.parametrize("foreign", ["offsets/notes.txt", "eos/driver.json/of a copy"])
def test_a_look_that_fails_does_not_end_the_wait(
    tmp_path: Path, monkeypatch, command: str, foreign: str
):
    """The request is written, and the driver hears it all the same."""
    store = CheckpointStore.open(tmp_path)
    term = take_term(store, taken_by="x").term.number
    write_heartbeat(store, heartbeat(term=term))
    monkeypatch.setattr(records, "living_standbys", lambda _: (standby(),))
    looks = 0

    def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            (tmp_path / HEARTBEAT).unlink()
            (tmp_path / foreign).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / foreign).write_text("foreign")
        elif looks == 3:
            (tmp_path / foreign).unlink()
            if foreign.startswith(HEARTBEAT):
                (tmp_path / HEARTBEAT).rmdir()
            ended = heartbeat("stopped" if command == "drain" else "waiting", term=looks)
            write_heartbeat(store, ended)

    clock_of(monkeypatch, "airflow_eos.cli.recovery", sleep=sleep)
    result = CliRunner().invoke(app, [command, str(tmp_path), "--wait", "60"])
    assert (result.exit_code, looks) == (0, 3), result.exception
    assert ("Drained" if command == "drain" else "Handed over") in result.stdout


@pytest.mark.parametrize("command", ["drain", "handover"])
def test_where_the_last_look_fails_it_says_that_the_request_stands(
    tmp_path: Path, monkeypatch, command: str
):
    store = CheckpointStore.open(tmp_path)
    term = take_term(store, taken_by="x").term.number
    write_heartbeat(store, heartbeat(term=term))
    monkeypatch.setattr(records, "living_standbys", lambda _: (standby(),))
    store.put("offsets/notes.txt", b"foreign")
    result = CliRunner().invoke(app, [command, str(tmp_path), "--wait", "0"])
    assert result.exit_code == 1, result.exception
    assert "offsets/notes.txt is foreign" in result.stdout
    assert "The request stands: look again with `airflow-eos status CHECKPOINT`" in result.stdout
    assert standing_request(store) is not None


def test_a_foreign_file_in_sparks_log_hides_no_killed_driver(tmp_path: Path):
    store = CheckpointStore.open(tmp_path)
    term = take_term(store, taken_by="x").term.number
    write_heartbeat(store, heartbeat(term=term, **of_a_killed_process()))
    store.put("offsets/notes.txt", b"foreign")
    result = CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "0"])
    assert "the driver has died" in result.stdout, result.exception


def test_a_driver_that_beats_is_not_dead_to_who_drains_it(tmp_path: Path):
    store = CheckpointStore.open(tmp_path)
    term = take_term(store, taken_by="x").term.number
    with beating(store, heartbeat("waiting", term=term, interval_ms=200)):
        result = CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "3"])
    assert "has not stopped within 3 s" in result.stdout, result.exception


@pytest.mark.parametrize("by", [BY_AIRFLOW, BY_STANDBY])
def test_a_driver_that_stopped_for_another_to_go_on_is_not_drained(tmp_path: Path, by):
    """Its task's next try, or who stands by, is about to go on."""
    write_heartbeat(CheckpointStore.open(tmp_path), heartbeat("stopped", drained_by=by))
    result = CliRunner().invoke(app, ["drain", str(tmp_path), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["stopped"] is False


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


def test_a_drain_that_a_driver_deletes_with_a_hand_over_is_asked_for_again(
    tmp_path: Path, monkeypatch
):
    """No store deletes only what it has read: the person's request took that one's place."""
    store = CheckpointStore.open(tmp_path)
    beat(store, "waiting", term=take_term(store, taken_by="x").term.number)
    looks = 0

    def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            store.delete([DRAIN])
        else:
            assert standing_request(store) is not None
            beat(store, "stopped", term=1)

    clock_of(monkeypatch, "airflow_eos.cli.recovery", sleep=sleep)
    assert CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "60"]).exit_code == 0
    assert looks == 2


def test_a_heartbeat_that_is_gone_is_not_that_no_driver_has_ever_run(tmp_path: Path):
    store = CheckpointStore.open(tmp_path)
    take_term(store, taken_by="x")
    result = CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "0"])
    assert result.exit_code == 1
    assert standing_request(store) is not None


@pytest.mark.parametrize("left", [b"", b"\0" * 200, b'{"format_version": 9}'])
def test_a_driver_whose_heartbeat_cannot_be_read_is_asked_to_drain_all_the_same(
    tmp_path: Path, left: bytes
):
    """A power cut, or another release: whom to ask the term says."""
    store = CheckpointStore.open(tmp_path)
    take_term(store, taken_by="x")
    store.put(HEARTBEAT, left)
    result = CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "0"])
    assert "the driver has not stopped within" in result.stdout, result.exception
    request = standing_request(store)
    assert request is not None
    assert request.term == 1


@pytest.mark.parametrize(
    "command", [["handover"], ["accept", "--skip-input", "in:0:1-2", "--yes"]], ids=lambda c: c[0]
)
def test_of_a_folder_where_nobody_has_started_nothing_is_said_of_a_driver(tmp_path: Path, command):
    result = CliRunner().invoke(app, [command[0], str(tmp_path), *command[1:]])
    assert isinstance(result.exception, ConfigurationError)
    assert "checkpointLocation" in str(result.exception)
    assert "goes on" not in str(result.exception)
    assert "Start the app" not in str(result.exception)


def test_a_hand_over_that_the_driver_has_taken_back_is_told_at_once_with_why(
    tmp_path: Path, monkeypatch
):
    store = CheckpointStore.open(tmp_path)
    beat(store, "waiting", term=take_term(store, taken_by="x").term.number)
    said = standby(reason="TopicError: gone")
    monkeypatch.setattr(records, "living_standbys", lambda _: (said,))
    monkeypatch.setattr(
        records.StandbyReading,
        "until_known",
        lambda *_: (records.StandbySeen(said, "stands by"),),
    )

    def taken_back(*_: object) -> None:
        withdraw_hand_over(store, term=1, submission=None)

    clock_of(monkeypatch, "airflow_eos.cli.recovery", sleep=taken_back)
    result = CliRunner().invoke(app, ["handover", str(tmp_path)])
    assert result.exit_code == 1
    assert "the driver goes on" in result.stdout
    assert "TopicError: gone" in result.stdout


@pytest.mark.parametrize("phase", ["waiting", "stopped"])
@pytest.mark.parametrize("left", ["it said why", "it was killed", "it stands still elsewhere"])
def test_a_hand_over_to_nobody_is_told_at_once(tmp_path: Path, monkeypatch, phase, left):
    """The driver was killed or has ended, and who stood by could not go on, or was killed too."""
    store = CheckpointStore.open(tmp_path)
    term = take_term(store, taken_by="x").term.number
    killed = of_a_killed_process() if phase == "waiting" else {}
    write_heartbeat(store, heartbeat(phase, term=term, **killed))
    monkeypatch.setattr(records, "living_standbys", lambda _: (standby(),))
    said = {
        "it said why": {"end": "refused", "reason": "TopicError: gone"},
        "it was killed": {**of_a_killed_process(), "interval_ms": 60_000},
        "it stands still elsewhere": {"interval_ms": 200},
    }[left]
    records.write_standby(store, standby(**said))
    result = CliRunner().invoke(app, ["handover", str(tmp_path), "--wait", "20"])
    assert result.exit_code == 1, result.exception
    assert "no driver runs" in result.stdout
    assert ("TopicError: gone" if left == "it said why" else "nobody stands by") in result.stdout


def test_a_standby_that_lives_here_and_is_silent_may_be_taking_over(tmp_path: Path, monkeypatch):
    """To prepare a start anew takes seconds, in which it says nothing."""
    store = CheckpointStore.open(tmp_path)
    term = take_term(store, taken_by="x").term.number
    write_heartbeat(store, heartbeat("stopped", term=term))
    monkeypatch.setattr(records, "living_standbys", lambda _: (standby(),))
    alive = {"pid": os.getpid(), "process": process_mark(os.getpid())}
    records.write_standby(store, standby(**alive, interval_ms=100))
    result = CliRunner().invoke(app, ["handover", str(tmp_path), "--wait", "2"])
    assert "no other driver has taken over within 2 s" in result.stdout, result.exception


_DRIVES = """
import os, sys, time
from airflow_eos.core.checkpoint import CheckpointStore, take_term, write_heartbeat
from airflow_eos.core.checkpoint.liveness import process_mark
from tests.support.beats import heartbeat

store = CheckpointStore.open(sys.argv[1])
us = {"pid": os.getpid(), "process": process_mark(os.getpid())}
term = take_term(store, taken_by="x").term.number
while True:
    write_heartbeat(store, heartbeat(term=term, beat_at_ms=time.time_ns() // 10**6, **us))
    time.sleep(0.2)
"""
_STANDS_BY = """
import sys
from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.delivery.standby import StandingBy

store = CheckpointStore.open(sys.argv[1])
StandingBy(store, application_id="app-2", still_wanted=lambda: None).until_our_turn(lambda: "")
"""


def test_a_hand_over_ends_at_once_where_both_drivers_are_killed(tmp_path: Path):
    """Each of the three a process of its own."""
    store = CheckpointStore.open(tmp_path)

    def until(condition: Callable[[], object]) -> None:
        at_the_latest = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < at_the_latest
            time.sleep(0.02)

    with ExitStack() as killed:

        def start(*command: str) -> subprocess.Popen[str]:
            command = (sys.executable, *command, str(tmp_path))
            found = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            killed.callback(found.communicate)
            killed.callback(found.kill)
            return found

        driver = start("-c", _DRIVES)
        until(lambda: read_heartbeat(store))
        behind = start("-c", _STANDS_BY)
        until(lambda: records.standbys(store))
        asks = start("-m", "airflow_eos", "handover", "--wait", "60")
        until(lambda: standing_request(store))
        for each in behind, driver:
            each.kill()
        said, _ = asks.communicate(timeout=100)
    assert asks.returncode == 1
    assert "no driver runs" in said
    assert "nobody stands by: driver app-2" in said


@pytest.mark.parametrize("command", ["drain", "handover"])
def test_who_stops_waiting_is_told_that_the_request_stands(tmp_path: Path, monkeypatch, command):
    """Ctrl-C ends the wait: the driver that was asked stops all the same."""
    store = CheckpointStore.open(tmp_path)
    beat(store, "waiting", term=take_term(store, taken_by="x").term.number)
    monkeypatch.setattr(records, "living_standbys", lambda _: (standby(),))

    def pressed(_: float) -> None:
        raise KeyboardInterrupt

    clock_of(monkeypatch, "airflow_eos.cli.recovery", sleep=pressed)
    result = CliRunner().invoke(app, [command, str(tmp_path), "--wait", "300"])
    assert result.exit_code == 130
    assert "The request stands" in result.stderr
    assert standing_request(store) is not None


def test_a_driver_with_a_term_is_named_so_that_its_successor_goes_on(tmp_path: Path):
    store = CheckpointStore.open(tmp_path)
    term = take_term(store, taken_by="x").term.number
    beat(store, "waiting", term=term)
    CliRunner().invoke(app, ["drain", str(tmp_path), "--wait", "0"])
    request = standing_request(store)
    assert request is not None
    assert request.term == term


# --- ``airflow-eos repartition`` refuses what would make Spark skip a batch; nothing is changed ---


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    store = CheckpointStore.open(tmp_path)
    store.put("offsets/0", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n{"in":{"0":1}}')
    return store


def repartition(store) -> None:
    module.repartition(store.location, partitions=5)


def test_a_driver_that_may_run_is_drained_first(store):
    with (
        beating(store, heartbeat(interval_ms=30)),
        pytest.raises(PipelineAliveError, match=r"gave a heartbeat.*airflow-eos drain"),
    ):
        repartition(store)


def test_that_nobody_can_read_the_heartbeat_is_not_that_nobody_runs(store):
    """As that of a driver of a newer release, which goes on beating."""
    ended = threading.Event()

    def beat(number: int = 0) -> None:
        store.put("eos/driver.json", b'{"format_version":99,"beat":%d}' % number)
        if not ended.wait(0.1):
            beat(number + 1)

    driver = threading.Thread(target=beat)
    driver.start()
    try:
        with pytest.raises(PipelineAliveError, match="written while it was looked at"):
            repartition(store)
    finally:
        ended.set()
        driver.join()


def test_a_heartbeat_that_a_power_cut_damaged_holds_up_no_repartition_for_ever(store):
    """No query starts on a half repartitioned state, so none would write the heartbeat anew."""
    entry = (
        '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{"spark.sql.shuffle.partitions":"%s"}}'
    )
    for batch, partitions in enumerate((2, 5)):
        store.put(f"offsets/{batch}", f'v1\n{entry % partitions}\n{{"in":{{"0":1}}}}'.encode())
    store.put("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    store.put("eos/driver.json", b"")
    module.repartition(store.location, partitions=None, undo=True)
    assert store.get("offsets/1") is None


def test_a_mistyped_place_is_no_checkpoint_and_becomes_none(tmp_path):
    place = tmp_path / "mistyped"
    for how in ({"partitions": 5}, {"undo": True, "partitions": None}):
        with pytest.raises(ConfigurationError, match="holds no Spark checkpoint"):
            module.repartition(str(place), **how)
    assert not place.exists()


def test_a_batch_in_flight_would_be_skipped(store):
    """Its driver died without a word, and was seen to be silent."""
    write_heartbeat(store, heartbeat(interval_ms=30))
    with pytest.raises(RecoveryError, match="batch 0 was planned and is not complete"):
        repartition(store)


def test_where_a_file_alone_is_damaged_it_is_named_and_no_batch_that_is_none(store):
    store.put("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    store.put("metadata", b"")
    write_heartbeat(store, heartbeat(interval_ms=30))
    with pytest.raises(RecoveryError, match=r"Spark's file metadata .* by the next start") as told:
        repartition(store)
    assert "None" not in str(told.value)


def test_a_spark_that_cannot_is_named():
    spark = SimpleNamespace(version="4.1.1")
    with pytest.raises(ConfigurationError, match=r"Spark 4\.1\.1 cannot.*expected 4\.2"):
        module._repartition(spark, "file:///q", 5)  # type: ignore[arg-type]


# --- interrupted ----------------------------------------------------------------------------------
# A command that is ended early, by Ctrl-C, `kill` or a closed terminal, leaves nothing behind.


APP = """
import os, pathlib, time
pathlib.Path(os.environ["STARTED"]).write_text(str(os.getpid()))
time.sleep(600)
"""


def until(condition, within_s=300.0):
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_command_that_is_ended_takes_its_folder_and_its_children_along(tmp_path, how):
    app, started, temporary = tmp_path / "app.py", tmp_path / "started", tmp_path / "tmp"
    app.write_text(APP)
    temporary.mkdir()
    command = ["rehearse", str(tmp_path), "--app", str(app), "--submit", sys.executable]
    running = subprocess.Popen(
        [sys.executable, "-m", "airflow_eos", *command],
        env=os.environ | {"TMPDIR": str(temporary), "STARTED": str(started)},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        until(lambda: started.exists() and started.read_text())
        assert list(temporary.iterdir())
        running.send_signal(how)
        said = running.communicate(timeout=300)[1]
    finally:
        running.kill()
    assert running.returncode == 128 + how
    assert b"Traceback" not in said
    until(lambda: gone(int(started.read_text())))
    assert list(temporary.iterdir()) == []
