"""What a killed Flink job left open is ended by its checkpoint, and by nothing else."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from airflow_eos.cli.app import app
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    DecisionNeededError,
    PipelineAliveError,
)
from airflow_eos.kafka.transactions.listing import list_lookalikes
from airflow_eos.local import EmbeddedKafka
from airflow_eos.ops.flink import recover
from tests.support.flink_bytes import checkpoint_promising


class Left:
    """A job killed between checkpoint 7 and its commit: two promised, and one begun since."""

    def __init__(self, broker: EmbeddedKafka, kafka: Any, folder: Path) -> None:
        self.kafka = kafka
        self.prefix = f"x{uuid.uuid4().hex[:2]}"
        self.out = broker.create_topic(f"out-{uuid.uuid4().hex[:8]}", 2)
        self.promised = [
            kafka.prepare(f"{self.prefix}-{n}-7", self.out, partition=n, rows=[(b"k", b"%d" % n)])
            for n in range(2)
        ]
        self.begun = kafka.prepare(f"{self.prefix}-0-8", self.out)
        self.strangers = kafka.prepare(f"{self.prefix}-shop-8", self.out, partition=1)
        identities = [each.identity for each in self.promised]
        self.checkpoint = checkpoint_promising(folder / "job", self.prefix, identities)
        self.servers = broker.bootstrap_servers

    def run(self, *command: str) -> tuple[int, Any]:
        where = [str(self.checkpoint), "--prefix", self.prefix, "-b", self.servers, "--json"]
        answer = CliRunner().invoke(app, ["foreign", *command, *where])
        if answer.exception is not None and not isinstance(answer.exception, SystemExit):
            raise answer.exception
        return answer.exit_code, json.loads(answer.stdout)

    def still_open(self) -> set[str]:
        return {each.transactional_id for each, _ in list_lookalikes(self.kafka.wire, self.prefix)}


@pytest.fixture
def left(kafka_broker: EmbeddedKafka, raw_kafka: Callable[[str], Any], tmp_path: Path) -> Left:
    return Left(kafka_broker, raw_kafka(kafka_broker.bootstrap_servers), tmp_path)


def actions(steps: Any) -> dict[str, str]:
    return {each["transactional_id"]: each["action"] for each in steps}


@pytest.mark.long
def test_promised_ones_are_committed_begun_ones_aborted_and_strangers_left(
    left: Left, read: Callable[..., list[Any]]
) -> None:
    status, plan = left.run("plan")

    assert status == 3
    assert actions(plan["steps"]) == {
        f"{left.prefix}-0-7": "commit",
        f"{left.prefix}-1-7": "commit",
        f"{left.prefix}-0-8": "abort",
        f"{left.prefix}-shop-8": "leave",
    }
    assert len(left.still_open()) == 4  # a plan changes nothing
    status, told = left.run("recover", "--yes", "--wait", "0.1s")
    assert (status, {each["result"] for each in told["ended"]}) == (0, {"done"})
    assert left.still_open() == {f"{left.prefix}-shop-8"}
    # A restored Flink commits what its checkpoint promises: the same answer as the first time.
    assert [left.kafka.end(each).name for each in left.promised] == ["DONE", "DONE"]
    status, plan = left.run("plan")
    assert status == 0
    assert set(actions(plan["steps"]).values()) == {"committed", "leave"}
    assert left.run("recover", "--yes", "--wait", "0.1s") == (0, {"checkpoint": 7, "ended": []})
    left.kafka.end(left.strangers)
    assert sorted(each.value() for each in read(left.out)) == [b"0", b"1", b"v"]


def test_nothing_is_ended_without_a_word(left: Left) -> None:
    where = [str(left.checkpoint), "--prefix", left.prefix, "-b", left.servers]
    answer = CliRunner().invoke(app, ["foreign", "recover", *where], input="n\n")
    assert answer.exit_code == 1
    assert len(left.still_open()) == 4


def test_of_a_job_that_still_writes_nothing_is_ended(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        recover, "wait", lambda _: left.kafka.write(left.begun.identity, left.out, partition=1)
    )
    with pytest.raises(PipelineAliveError, match="the job runs"):
        left.run("recover", "--yes")
    assert len(left.still_open()) == 4


def test_a_promise_that_its_timeout_has_ended_is_said_before_anything_is_done(left: Left) -> None:
    left.kafka.end(left.promised[0], commit=False)

    status, plan = left.run("plan")

    assert status == 4
    assert actions(plan["steps"])[f"{left.prefix}-0-7"] == "lost"
    with pytest.raises(DecisionNeededError, match="Nothing was done"):
        left.run("recover", "--yes", "--wait", "0.1s")
    assert f"{left.prefix}-1-7" in left.still_open()
    status, _ = left.run("recover", "--yes", "--wait", "0.1s", "--give-up-lost")
    assert (status, left.still_open()) == (0, {f"{left.prefix}-shop-8"})


def test_what_became_of_a_promise_whose_pooled_name_was_used_again_is_not_known(left: Left) -> None:
    """Flink's ``POOLING``: committed, in fact; the coordinator knows the newest of a name alone."""
    left.kafka.end(left.promised[0])
    again = left.kafka.prepare(left.promised[0].identity.transactional_id, left.out)

    status, plan = left.run("plan")

    of_the_name = [each for each in plan["steps"] if each["transactional_id"].endswith("-0-7")]
    assert [each["action"] for each in of_the_name] == ["abort", "lost"]
    assert "not known: its id has been used since" in of_the_name[1]["reason"]
    assert status == 4
    with pytest.raises(DecisionNeededError, match="Nothing was done"):
        left.run("recover", "--yes", "--wait", "0.1s")
    assert again.identity.transactional_id in left.still_open()


def test_a_prefix_that_no_sink_of_the_checkpoint_has_is_refused(left: Left) -> None:
    left.prefix = "y" + left.prefix
    with pytest.raises(ConfigurationError, match="its sinks have x"):
        left.run("plan")


def test_of_a_checkpoint_that_cannot_be_read_for_sure_the_list_is_given(left: Left) -> None:
    metadata = left.checkpoint / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-1])
    with pytest.raises(CheckpointFormatError, match="Nothing was done") as refused:
        left.run("recover", "--yes")
    for each in (*left.promised, left.begun):
        assert f"{each.identity} for " in str(refused.value)
    assert len(left.still_open()) == 4


def test_a_job_whose_rows_all_have_one_time_lives_by_what_it_has_written(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backfill: the newest row's time is the job's to choose, and does not change."""
    job = Producer(
        {
            "bootstrap.servers": left.servers,
            "transactional.id": f"{left.prefix}-0-9",
            "linger.ms": 0,
        }
    )

    def write(_: float = 0) -> None:
        job.produce(left.out, b"row", partition=0, timestamp=1_000)
        assert job.flush(60) == 0

    job.init_transactions(60)
    job.begin_transaction()
    write()
    monkeypatch.setattr(recover, "wait", write)
    with pytest.raises(PipelineAliveError, match="the job runs"):
        left.run("recover", "--yes")
    assert len(left.still_open()) == 5
    job.abort_transaction(60)


def test_a_job_that_began_another_transaction_elsewhere_lives(
    left: Left, kafka_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had open stands still: it is about to be promised."""
    elsewhere = kafka_broker.create_topic(f"out-{uuid.uuid4().hex[:8]}", 1)
    monkeypatch.setattr(
        recover, "wait", lambda _: left.kafka.prepare(f"{left.prefix}-1-8", elsewhere)
    )
    with pytest.raises(PipelineAliveError, match="the job runs"):
        left.run("recover", "--yes")
    assert len(left.still_open()) == 5
