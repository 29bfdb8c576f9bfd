"""Topics whose acknowledged rows one broker may take with it: said, by topic, with what to set."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from kafka.protocol.admin import IncrementalAlterConfigsRequest as Alter
from structlog.testing import capture_logs

from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.client.cluster import TRANSACTIONS
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.preflight import check_cluster, require_transaction_log
from airflow_eos.local import EmbeddedKafka
from airflow_eos.ops.doctor import _transaction_log, tried
from airflow_eos.ops.supervision.preflight import TimeoutBudget, reached_within
from tests.integration.hazards.direct import Direct, wait_for

SAFE = {"min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def brokers() -> Iterator[EmbeddedKafka]:
    # Kafka's own log of transactions as a cluster has it that was set up with one broker.
    with EmbeddedKafka({"transaction.state.log.min.isr": "1"}, brokers=2) as running:
        yield running


def told(brokers: EmbeddedKafka, config: Mapping[str, str] | None) -> dict[str, dict[str, str]]:
    """What the start says: topic → settings to change."""
    topic = None
    if config is not None:
        topic = brokers.create_topic(f"out-{uuid.uuid4().hex[:8]}", 1, config)
    minute = timedelta(minutes=1)
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": brokers.bootstrap_servers})
    with ConnectionPool(settings) as wire, capture_logs() as logs:
        check_cluster(
            wire,
            topic=topic,
            timeout=4 * minute,
            trigger=timedelta(0),
            batch=minute,
            recovery=minute,
        )
    found = [entry for entry in logs if entry["event"] == "acknowledged_rows_can_be_lost"]
    assert all(entry["log_level"] == "warning" and entry["copies"] == 2 for entry in found)
    names = {topic: "out"}
    return {names.get(e["topic"], e["topic"]): e["set_on_the_topic"] for e in found}


def set_transactions(wire: ConnectionPool, minimum: str) -> None:
    """Change it and wait until the broker knows."""
    kind = Alter.AlterConfigsResource
    change = kind.AlterableConfig(name="min.insync.replicas", config_operation=0, value=minimum)
    resource = kind(resource_type=2, resource_name=TRANSACTIONS, configs=[change])
    wire.request(Alter(resources=[resource], validate_only=False))
    wanted = {"min.insync.replicas": minimum}
    wait_for(lambda: wire.cluster.topic_config(TRANSACTIONS, list(wanted)) == wanted)


@pytest.mark.long
def test_what_one_broker_may_take_with_it_is_said(brokers: EmbeddedKafka) -> None:
    state: dict[str, Any] = {TRANSACTIONS: SAFE}
    assert told(brokers, SAFE) == state, "before it exists: what it will be created with"
    with ConnectionPool(
        KafkaSettings.from_librdkafka({"bootstrap.servers": brokers.bootstrap_servers})
    ) as wire:
        wire.cluster.coordinators(["etl-0-0"])
        assert told(brokers, None) == state
        set_transactions(wire, "2")
    assert told(brokers, SAFE) == {}
    assert told(brokers, {"min.insync.replicas": "1"}) == {"out": SAFE}
    unclean = {"unclean.leader.election.enable": "true"}
    assert told(brokers, SAFE | unclean) == {"out": {"unclean.leader.election.enable": "false"}}


def test_a_single_broker_at_a_desk_is_not_warned_of(kafka_broker: EmbeddedKafka) -> None:
    assert told(kafka_broker, {}) == {}


TOO_MANY = {f"transaction.state.log.{name}": "3" for name in ("replication.factor", "min.isr")}


@pytest.fixture(scope="module")
def one_broker() -> Iterator[EmbeddedKafka]:
    """As a cluster of one that was set up by the settings of three; or by Kafka's defaults."""
    with EmbeddedKafka(TOO_MANY) as running:
        yield running


def test_one_broker_that_is_to_keep_three_copies_is_named_by_a_start(one_broker, tmp_path):
    topic = one_broker.create_topic("out", 1)
    job = Direct(one_broker.bootstrap_servers, tmp_path, topic, timeout=timedelta(seconds=60))
    job.feed_numbers(3)
    with pytest.raises(
        KafkaUnavailableError, match=r"3 copies .* 1 of its brokers runs"
    ) as refused:
        job.run()
    assert [each.settings for each in refused.value.remedies][1] == {
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }


def test_one_broker_that_is_to_keep_three_copies_is_named_by_preflight_and_doctor(one_broker):
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": one_broker.bootstrap_servers})
    budget = TimeoutBudget(*[timedelta(seconds=each) for each in (1, 10, 10, 60)])
    with pytest.raises(KafkaUnavailableError, match="can run no transaction"):
        reached_within(budget, settings)
    with ConnectionPool(settings) as wire:
        (line,) = tried("transactions", lambda: _transaction_log(wire))
        assert line.verdict == "fail"
        assert "can run no transaction" in line.found


def test_a_cluster_that_keeps_as_many_copies_as_it_has_brokers_is_let_in(kafka_broker):
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    with ConnectionPool(settings) as wire:
        require_transaction_log(wire)
