"""Each command as a process of its own, to its end, on a real broker and a real checkpoint.

What a function does in a test's process it may not do in a command's, which has its own session,
environment and folder. ``tests/unit/cli/test_each_command_is_run.py`` knows who runs which.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

from airflow_eos.core.checkpoint import CheckpointStore
from tests.integration.commands.conftest import BARE, PROGRAM, Command
from tests.integration.kafka.test_foreign_flink import Left
from tests.support.topics import produce


def at(dead) -> tuple[str, str, str]:
    return dead.store.location, "-b", dead.settings.bootstrap_servers


def test_looks_at_a_pipeline_that_died(dead, command: Command) -> None:
    promised = dead.write(0, ["one", "two"])
    dead.decided(promised)
    planned = json.loads(command("plan", *at(dead), "--json", status=3).stdout)
    assert [step["action"] for step in planned["steps"]] == ["commit"]
    assert "in flight" in command("status", *at(dead)).stdout
    seen = command("doctor", *at(dead), "--json").stdout
    assert "participants" in seen
    open_now = command("blocked", dead.topic, *at(dead)[1:], status=1).stdout
    assert promised.transactional_id in open_now
    command("hanging", dead.topic, *at(dead)[1:])
    assert dead.visible() == []
    assert dead.still_open() == [promised.transactional_id], "a look has ended something"


def test_a_pipeline_that_died_is_recovered(dead, command: Command) -> None:
    dead.decided(dead.write(0, ["one", "two"]))
    command("recover", *at(dead))
    assert dead.visible() == ["one", "two"]
    cut = json.loads(command("cut", dead.store.location, "--json").stdout)
    (ends,) = (each["at"][dead.topic]["ends"] for each in cut["positions"].values())
    assert sum(ends.values()) >= 2, "what a recovery has made visible is in its cut"
    command("plan", *at(dead))


def test_a_promise_that_nobody_can_keep_is_accepted(dead, command: Command) -> None:
    lost = dead.write(0, ["one", "two"])
    dead.decided(lost)
    dead.end(lost, commit=False)
    answer = command("accept", *at(dead), "--batch", "5", "--yes", "--json")
    assert "2 rows" in answer.stderr
    command("plan", *at(dead))


def test_a_prefix_is_given_up(dead, command: Command) -> None:
    told = ("disown", dead.prefix, *at(dead)[1:], "--yes", "--json")
    assert json.loads(command(*told).stdout)["records"]
    assert not json.loads(command(*told).stdout)["records"]


def test_the_output_is_compared_with_the_input(dead, topic, command: Command) -> None:
    into = topic("in")
    for each in (into, dead.topic):
        produce(dead.settings.bootstrap_servers, each, [("k", '{"id": 1}'), ("k", '{"id": 2}')])
    command("audit", into, dead.topic, *at(dead)[1:], "--id", "value.id")


def test_what_a_flink_job_left_is_planned_and_ended(
    kafka_broker, raw_kafka, command: Command, tmp_path: Path
) -> None:
    left = Left(kafka_broker, raw_kafka(kafka_broker.bootstrap_servers), tmp_path)
    told = (str(left.checkpoint), "--prefix", left.prefix, "-b", left.servers, "--json")
    command("foreign", "plan", *told, status=3)
    command("foreign", "recover", *told, "--yes", "--wait", "0.1s")
    assert left.still_open() == {left.strangers.identity.transactional_id}


def test_a_folder_of_a_new_pipeline_and_a_zip_of_the_package_are_made(
    command: Command, tmp_path: Path
) -> None:
    command("new", "clicks", "--into", str(tmp_path))
    assert list((tmp_path / "clicks").iterdir())
    command("package", "--output", str(tmp_path / "eos.zip"))
    assert (tmp_path / "eos.zip").stat().st_size > 100_000


def test_the_page_is_served_until_it_is_told_to_end(dead) -> None:
    serving = subprocess.Popen(
        [PROGRAM, "ui", "--port", "0", *at(dead)],
        env=BARE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert serving.stdout is not None
        address = next(
            found[0] for line in serving.stdout if (found := re.search(r"http://\S+", line))
        )
        with urllib.request.urlopen(address) as page:
            assert b"<html" in page.read()
        serving.send_signal(signal.SIGINT)
        assert serving.wait(60) in {0, 128 + signal.SIGINT}
    finally:
        serving.kill()
        serving.wait()


def test_nobody_is_drained_or_handed_over_where_nobody_runs(dead, command: Command) -> None:
    """With a driver: ``test_a_pipeline_is_handed_over_and_drained``."""
    before = [each.path for each in CheckpointStore.open(dead.store.location).list("eos")]
    assert "No driver" in command("handover", dead.store.location, "--wait", "0", status=2).stderr
    assert before == [each.path for each in CheckpointStore.open(dead.store.location).list("eos")]
