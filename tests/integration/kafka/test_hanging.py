"""Transactions that are open in a partition and unknown to every coordinator (KIP-664)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from airflow_eos.cli.app import app
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.participant import settle
from airflow_eos.kafka.transactions.coordinator import end_transactions
from airflow_eos.kafka.transactions.hanging import end_hanging, find_hanging, longest_life_ms
from airflow_eos.kafka.transactions.identity import PreparedTransaction
from airflow_eos.kafka.transactions.listing import held_by_coordinators
from airflow_eos.local import EmbeddedKafka
from tests.integration.kafka.conftest import until


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    """One that takes rows of a transaction without asking its coordinator, as before Kafka 3.6."""
    unverified = {"transaction.partition.verification.enable": "false"}
    with EmbeddedKafka(unverified, features={"transaction.version": 1}) as running:
        yield running


@pytest.fixture
def kafka(broker: EmbeddedKafka, raw_kafka: Callable[[str], Any]) -> Any:
    return raw_kafka(broker.bootstrap_servers)


@pytest.fixture
def out(broker: EmbeddedKafka) -> str:
    name = f"out-{uuid.uuid4().hex[:8]}"
    broker.create_topic(name, partitions=2)
    return name


def hang(kafka: Any, topic: str, partition: int = 0) -> PreparedTransaction:
    """Its rows reach the partition, and no coordinator is told."""
    identity = kafka.coordinator.init(f"etl{uuid.uuid4().hex[:8]}-0-0", 60_000)
    written: PreparedTransaction = kafka.write(identity, topic, partition=partition)
    return written


@pytest.mark.long
def test_one_that_hangs_is_found_and_aborted_and_readers_get_on(kafka: Any, out: str) -> None:
    promised = hang(kafka, out, partition=1)
    assert kafka.end(promised).name == "LOOK"  # its coordinator cannot end it
    with pytest.raises(KafkaUnavailableError, match=f"airflow-eos hanging {out}"):
        settle(kafka.wire, [promised], deadline_s=1)

    [found] = find_hanging(kafka.wire, {out}, older_than_ms=0)

    assert (found.topic, found.partition, found.start) == (out, 1, promised.witness.first)
    assert found.producer_id == promised.producer_id
    end_hanging(kafka.wire, found, commit=False)
    end_hanging(kafka.wire, found, commit=False)  # the reply of the first was lost
    assert settle(kafka.wire, [promised]) == {promised.identity: Outcome.ABORTED}  # replayed next
    assert find_hanging(kafka.wire, {out}, older_than_ms=0) == ()


def test_one_that_its_coordinator_knows_is_left_alone(kafka: Any, out: str) -> None:
    prepared = kafka.prepare(f"etl{uuid.uuid4().hex[:8]}-0-0", out)
    hanging = hang(kafka, out, partition=1)

    [found] = find_hanging(kafka.wire, {out}, older_than_ms=0)

    assert found.producer_id == hanging.producer_id
    kafka.end(prepared)
    assert kafka.closed_outcome(prepared) is Outcome.COMMITTED


def test_one_that_ends_between_the_questions_is_left_alone(
    kafka: Any, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinators forget it while they are asked: the partition is looked at once more."""
    prepared = kafka.prepare(f"etl{uuid.uuid4().hex[:8]}-0-0", out)

    def after_its_end(wire: Any, producer_ids: Any, *, deadline_s: float) -> Any:
        kafka.end(prepared)
        kafka.closed_outcome(prepared)
        until(lambda: not held_by_coordinators(wire, producer_ids))
        return held_by_coordinators(wire, producer_ids, deadline_s=deadline_s)

    monkeypatch.setattr(f"{find_hanging.__module__}.held_by_coordinators", after_its_end)
    assert find_hanging(kafka.wire, {out}, older_than_ms=0) == ()


def test_a_young_one_is_left_alone(kafka: Any, out: str) -> None:
    """Whoever may not describe its id is not told of it: by its age it may be alive."""
    hang(kafka, out)
    assert longest_life_ms(kafka.wire) == 900_000 + 300_000
    assert find_hanging(kafka.wire, {out}, older_than_ms=longest_life_ms(kafka.wire)) == ()


def test_the_command_shows_them_and_ends_them_when_asked(
    kafka: Any, broker: EmbeddedKafka, out: str
) -> None:
    promised = hang(kafka, out)
    command = ["hanging", out, "-b", broker.bootstrap_servers]
    run = CliRunner()

    young = run.invoke(app, command)
    shown = run.invoke(app, [*command, "--older-than", "0", "--json"])
    ended = run.invoke(app, [*command, "--older-than", "0", "--end", "--yes"])
    after = run.invoke(app, [*command, "--older-than", "0"])

    assert (young.exit_code, young.stdout) == (0, "No transaction hangs.\n")
    assert shown.exit_code == 1
    [found] = json.loads(shown.stdout)
    assert (found["topic"], found["start"]) == (out, promised.witness.first)
    assert ended.exit_code == 0, ended.output
    assert out in ended.stdout
    assert (after.exit_code, after.stdout) == (0, "No transaction hangs.\n")


def test_what_is_left_of_a_producer_that_has_committed_since_by_the_same_epoch_is_not_guessed(
    kafka: Any, broker: EmbeddedKafka, out: str
) -> None:
    """A row of an aborted transaction that came late, after the next one: nobody is to see it."""
    identity = kafka.coordinator.init(f"payments-{uuid.uuid4().hex[:8]}", 60_000)
    kafka.coordinator.add_partitions(identity, [(out, 0)])
    end_transactions(kafka.wire, [identity], commit=False)
    kafka.coordinator.add_partitions(identity, [(out, 1)])
    kafka.end(kafka.write(identity, out, partition=1))
    late = kafka.write(identity, out, partition=0)
    until(lambda: find_hanging(kafka.wire, {out}, older_than_ms=0))

    [found] = find_hanging(kafka.wire, {out}, older_than_ms=0)
    command = ["hanging", out, "-b", broker.bootstrap_servers, "--older-than", "0"]
    left = CliRunner().invoke(app, [*command, "--end", "--yes"])

    assert (found.producer_epoch, found.committed) == (identity.producer_epoch, None)
    assert (left.exit_code, "not known" in left.stdout) == (1, True), left.output
    assert f"abort --topic {out} --partition 0 --start-offset {late.witness.first}" in left.stdout
    assert find_hanging(kafka.wire, {out}, older_than_ms=0) == (found,), "nobody ended it"
