"""Who holds the readers of a topic up, whoever wrote it: real transactions, of several programs."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner

from airflow_eos.cli.app import app
from airflow_eos.core.checkpoint import CheckpointStore, PipelineIdentity, claim
from airflow_eos.core.protocol.participant import Member
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.offsets import LATEST, positions
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.local import EmbeddedKafka
from airflow_eos.ops.blocked import find_blocked, next_step
from airflow_eos.ops.page.board import planned
from airflow_eos.ops.page.views import PipelineEntry, Reach
from airflow_eos.ops.supervision import progress
from tests.support.broker_profiles import Profile, ProfileProxy

SEEING_LESS = (
    Profile("all", "", ""),
    Profile("no DescribeProducers", "", "", without=("DescribeProducers",)),
    Profile("no listing", "", "", without=("ListTransactions", "DescribeTransactions")),
)


@pytest.fixture
def kafka(kafka_broker: EmbeddedKafka, raw_kafka: Callable[[str], Any]) -> Any:
    return raw_kafka(kafka_broker.bootstrap_servers)


@pytest.fixture
def out(topic: Callable[..., str]) -> str:
    return topic("out", 2)


def read_up_to(broker: EmbeddedKafka, topic: str, offset: int) -> str:
    """A consumer group that stands there."""
    group = f"readers-{uuid.uuid4().hex[:8]}"
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()
    return group


def of(found: Any, group: str) -> Any:
    [each] = [g for p in found.partitions for g in p.groups if g.group == group]
    return each


@pytest.mark.parametrize("profile", SEEING_LESS, ids=lambda p: p.name.replace(" ", "-"))
def test_the_transaction_at_the_last_stable_offset_is_named_with_who_waits_for_it(
    kafka: Any,
    kafka_broker: EmbeddedKafka,
    out: str,
    profile: Profile,
    wait_until: Callable[..., Any],
) -> None:
    kafka.plain(out, [(b"k", b"before")] * 3)
    flink = kafka.prepare(f"job-{uuid.uuid4().hex[:6]}-0-12", out, timeout_ms=300_000)
    kafka.prepare(f"later-{uuid.uuid4().hex[:6]}-0-1", out)
    ended = kafka.prepare(f"ended-{uuid.uuid4().hex[:6]}-0-1", out)
    kafka.end(ended)
    kafka.plain(out, [(b"k", b"behind")] * 5)
    place = (out, 0)  # three rows, two that are open, one that ended with its marker, five rows
    wait_until(lambda: positions(kafka.wire, [place], LATEST, committed_only=False)[place] == 12)
    waits, uncommitted = read_up_to(kafka_broker, out, 2), read_up_to(kafka_broker, out, 9)
    with ProfileProxy(kafka_broker.bootstrap_servers, profile) as proxy:
        settings = KafkaSettings.from_librdkafka({"bootstrap.servers": proxy.bootstrap_servers})
        with ConnectionPool(settings) as wire:
            found = find_blocked(wire, {out})
            young = find_blocked(wire, {out}, older_than_ms=3_600_000)
    [each] = found.partitions
    assert (each.topic, each.partition, each.stable, each.end) == (out, 0, 3, 12)
    assert (each.producer_id, each.behind_it) == (flink.producer_id, 1)
    assert 0 <= each.age_ms < 120_000
    assert (of(found, waits).committed, of(found, waits).waiting) == (2, 9)
    assert of(found, uncommitted).waiting is None
    assert young.partitions == ()
    if profile.name == "no listing":
        assert (each.transactional_id, each.owner, each.state) == (None, "", "not known")
        assert "ListTransactions" in found.untold[0]
        assert next_step(each) == "ask"
    else:
        assert each.transactional_id == flink.transactional_id
        assert (each.owner, each.state, each.timeout_ms) == ("Flink", "Ongoing", 300_000)
        assert next_step(each) == "wait"
        assert each.ends_in_ms is not None
        assert 0 < each.ends_in_ms <= 300_000
    kafka.end(flink)


def test_one_of_ours_is_for_recovery_and_nothing_is_left_once_it_ended(
    kafka: Any, kafka_broker: EmbeddedKafka, out: str
) -> None:
    command = ["blocked", out, "-b", kafka_broker.bootstrap_servers]
    run = CliRunner()
    ours = kafka.prepare(f"etl{uuid.uuid4().hex[:6]}-eos-0-0", out, partition=1)
    shown = run.invoke(app, command)
    as_json = run.invoke(app, [*command, "--json"])
    kafka.end(ours, commit=False)
    kafka.closed_outcome(ours)
    after = run.invoke(app, command)
    assert shown.exit_code == 1, shown.output
    assert "airflow-eos" in shown.stdout
    assert "recover" in shown.stdout
    [each] = json.loads(as_json.stdout)["partitions"]
    assert (each["partition"], each["transactional_id"]) == (1, ours.transactional_id)
    assert as_json.exit_code == 1
    assert (after.exit_code, after.stdout) == (0, "No transaction holds readers up.\n")


def test_a_pipeline_is_told_who_holds_up_what_it_reads_and_what_it_writes(
    kafka: Any,
    kafka_broker: EmbeddedKafka,
    topic: Callable[..., str],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, written = topic("read", 1), topic("written", 1)
    store = CheckpointStore.open(tmp_path)
    ends = json.dumps({read: {"0": 0}})
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})
    store.put("metadata", b'{"id":"6a1c9b3e-0000-4000-8000-000000000000"}')
    store.put("offsets/0", f"v1\n{head}\n{ends}".encode())
    address = {"cluster_id": kafka.wire.cluster_id, "transactional_id_prefix": "etl"}
    member = Member("sink", "kafka", address, f"kafka:{written}")
    ours = PipelineIdentity(
        id="1" * 32, participants=(member,), created_at_ms=1, created_by="driver 1"
    )
    claim(store, ours)
    upstream = kafka.prepare(f"upstream-{uuid.uuid4().hex[:6]}-0-1", read)
    beside = kafka.prepare(f"beside-{uuid.uuid4().hex[:6]}-0-1", written)
    arguments = ["-b", kafka_broker.bootstrap_servers]
    young = CliRunner().invoke(app, ["status", str(tmp_path), *arguments, "--json"])
    assert json.loads(young.stdout)["blocked"] == [], "a batch of another program is no trouble"
    monkeypatch.setattr(progress, "HELD_UP_AFTER_MS", 0)
    shown = CliRunner().invoke(app, ["status", str(tmp_path), *arguments, "--json"])
    says = [each["says"] for each in json.loads(shown.stdout)["blocked"]]
    assert [each.split(" stand at ")[0] for each in says] == [
        f"readers of {read}-0",
        f"readers of {written}-0",
    ]
    assert f"behind transaction {upstream.transactional_id} (Flink): Ongoing" in says[0]
    assert "what ends it: its timeout, in " in says[0]
    [listed] = [
        PipelineEntry(
            name="etl",
            location=str(tmp_path),
            storage=lambda: None,
            reach=lambda: Reach(kafka={"bootstrap.servers": kafka_broker.bootstrap_servers}),
        )
    ]
    assert [beside.transactional_id in each for each in planned(listed).blocked] == [False, True]
