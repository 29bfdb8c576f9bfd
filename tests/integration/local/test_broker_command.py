from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from airflow_eos.local.broker import live_brokers
from airflow_eos.local.daemon import PORT

PROGRAM = str(Path(sys.executable).with_name("airflow-eos"))


@pytest.fixture
def run(tmp_path):
    """Run ``airflow-eos broker ...`` with a state folder of its own, and stop what it started."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}

    def call(*arguments, given=""):
        return subprocess.run(
            [PROGRAM, "broker", *arguments],
            env=environment,
            input=given,
            capture_output=True,
            text=True,
        )

    yield call
    call("stop")


def await_answer(address: str) -> None:
    """It is up; on a busy machine an answer takes longer than the second that one look waits."""
    deadline = time.monotonic() + 300
    while live_brokers(address) != {1}:
        assert time.monotonic() < deadline


@pytest.mark.proof
def test_a_broker_in_the_background_starts_once_and_stops(run):
    assert run("status", "--json").returncode == 1
    started = run("start", "--json")
    assert started.returncode == 0, started.stderr
    facts = json.loads(started.stdout)
    await_answer(facts["bootstrap_servers"])
    assert json.loads(run("start", "--json").stdout)["pid"] == facts["pid"]
    deadline = time.monotonic() + 300
    while facts["bootstrap_servers"] not in run("status").stdout:  # nor does it wait longer
        assert time.monotonic() < deadline
    assert json.loads(run("stop", "--json").stdout) == {"stopped": True}
    assert live_brokers(facts["bootstrap_servers"]) == set()
    assert json.loads(run("status", "--json").stdout) == {"running": False}
    assert "No broker was running" in run("stop").stdout


@pytest.mark.proof
def test_a_broker_whose_process_has_died_is_not_up_and_start_starts_another(run, tmp_path):
    facts = json.loads(run("start", "--json").stdout)
    for process in psutil.Process(facts["pid"]).children(recursive=True):
        process.kill()
    deadline = time.monotonic() + 300
    while (told := run("status", "--json")).returncode == 0 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert json.loads(told.stdout) == {"running": False}
    assert "has died" in (tmp_path / "airflow-eos" / "daemon.log").read_text()
    again = json.loads(run("start", "--json").stdout)
    assert again["pid"] != facts["pid"]
    await_answer(again["bootstrap_servers"])


def test_a_start_that_is_ended_early_leaves_no_broker_that_comes_up_later(run, tmp_path):
    begun = subprocess.Popen(
        [PROGRAM, "broker", "start"], env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    )
    try:
        children: list[psutil.Process] = []
        deadline = time.monotonic() + 300
        while len(children) < 2 and time.monotonic() < deadline:  # its daemon, and a guard below
            children = psutil.Process(begun.pid).children(recursive=True)
            time.sleep(0.05)
        begun.terminate()
        assert begun.wait(120) == 128 + signal.SIGTERM
    finally:
        begun.kill()
    assert children
    down = {"running": False}
    while any(each.is_running() for each in children) and time.monotonic() < deadline:
        assert json.loads(run("status", "--json").stdout) == down
    assert [each.cmdline() for each in children if each.is_running()] == []
    assert json.loads(run("status", "--json").stdout) == down


@pytest.mark.proof
def test_topics_are_made_written_and_read_without_kafkas_own_tools(run):
    refused = run("topic", "clicks")
    assert refused.returncode != 0
    assert "airflow-eos broker start" in refused.stderr
    bootstrap = json.loads(run("start", "--json").stdout)["bootstrap_servers"]
    assert run("topic", "clicks", "--partitions", "3").stdout == "clicks: 3 partitions\n"
    again = run("topic", "clicks", "other")
    assert again.stdout == "clicks: 3 partitions\nother: 2 partitions\n"

    lines = "DE\tone\nFR\ttwo\nDE\tthree\nno key\n"
    assert run("write", "clicks", given=lines).stdout == "clicks: 4 rows written\n"
    # What a transaction holds open is not there for readers, and what it aborts never is.
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("clicks", key="DE", value="never")
    producer.flush(30)
    producer.abort_transaction(30)
    assert sorted(run("read", "clicks").stdout.splitlines()) == [
        "\tno key",
        "DE\tone",
        "DE\tthree",
        "FR\ttwo",
    ]
    assert sorted(run("read", "clicks", "--last").stdout.splitlines()) == [
        "\tno key",
        "DE\tthree",
        "FR\ttwo",
    ]
    for verb in ("read", "write"):
        missing = run(verb, "nowhere")
        assert missing.returncode != 0
        assert "airflow-eos broker topic nowhere" in missing.stderr


@pytest.mark.proof
def test_a_broker_that_was_stopped_or_has_died_is_there_again_with_its_rows_and_its_address(run):
    address = json.loads(run("start", "--json").stdout)["bootstrap_servers"]
    run("topic", "clicks", "--partitions", "1")
    run("write", "clicks", given="DE\tone\n")
    run("stop")
    facts = json.loads(run("start", "--json").stdout)
    assert facts["bootstrap_servers"] == address
    assert run("read", "clicks").stdout == "DE\tone\n"

    psutil.Process(facts["pid"]).kill()  # as a machine that is switched off
    deadline = time.monotonic() + 300
    while live_brokers(address) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert json.loads(run("start", "--json").stdout)["bootstrap_servers"] == address
    assert run("read", "clicks").stdout == "DE\tone\n"

    run("stop", "--remove")
    run("start")
    assert "airflow-eos broker topic clicks" in run("read", "clicks").stderr


@pytest.mark.proof
def test_where_the_port_of_the_tutorial_is_taken_another_one_is_told(run):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody else's broker takes it as well
            other.bind(("127.0.0.1", PORT))
            other.listen()
        address = json.loads(run("start", "--json").stdout)["bootstrap_servers"]
    assert not address.endswith(f":{PORT}")
    await_answer(address)
