"""The wire against real brokers: one that restarts, one with logins and ACLs, and none at all."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import CreateAclsRequest

from airflow_eos.errors import (
    KafkaError,
    KafkaUnavailableError,
    TimeoutBudgetError,
    TopicError,
    TransactionError,
)
from airflow_eos.kafka.client import cluster
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.messages import MetadataRequest
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions import listing as describing
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator, end_transactions
from airflow_eos.kafka.transactions.identity import TransactionIdentity
from airflow_eos.kafka.transactions.listing import list_open
from airflow_eos.local.broker import EmbeddedKafka

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="admin-pw" user_admin="admin-pw" user_etl="etl-pw";'
)
WITH_ACLS = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": JAAS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}


def question() -> Any:
    return MetadataRequest(topics=[], allow_auto_topic_creation=False)


@pytest.fixture
def wire(kafka_broker: EmbeddedKafka) -> Iterator[ConnectionPool]:
    servers = {"bootstrap.servers": kafka_broker.bootstrap_servers}
    with ConnectionPool(KafkaSettings.from_librdkafka(servers)) as opened:
        yield opened


def test_the_cluster_tells_about_itself(wire, kafka_broker, topic):
    name = topic(partitions=3, config={"max.message.bytes": "12345"})
    assert wire.cluster_id == kafka_broker.cluster_id
    assert set(wire.cluster.leaders(name)) == {0, 1, 2}
    assert set(wire.cluster.leaders(name).values()) <= set(wire.cluster.brokers())
    assert wire.cluster.topic_config(name, ["max.message.bytes"]) == {"max.message.bytes": "12345"}
    assert int(
        wire.cluster.broker_config(["transaction.max.timeout.ms"])["transaction.max.timeout.ms"]
    )
    assert wire.cluster.transaction_version == 2


@pytest.mark.long
def test_a_missing_topic_is_an_error_and_is_not_created(wire):
    for _ in range(2):
        with pytest.raises(TopicError, match="does not exist"):
            wire.cluster.leaders("no-such-topic")
    with pytest.raises(TopicError, match="does not exist"):
        wire.cluster.topic_config("no-such-topic", ["cleanup.policy"])


def test_many_requests_at_once_come_back_in_order(wire):
    node = wire.cluster.brokers()[0]
    assert len(wire.request_many([(question(), node) for _ in range(500)])) == 500


def test_threads_may_share_a_wire(wire):
    failures = []

    def ask():
        try:
            wire.request_many([(question(), None) for _ in range(50)])
        except KafkaError as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures


def test_a_closed_wire_says_so(wire):
    wire.close()
    wire.close()
    with pytest.raises(KafkaError, match="closed"):
        wire.request(question())


def test_a_wire_that_was_forked_says_so_instead_of_hanging(wire, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(KafkaError, match="fork"):
        wire.request(question())
    monkeypatch.undo()


def test_closing_never_ends_a_transaction(kafka_broker, topic, raw_kafka):
    raw = raw_kafka(kafka_broker.bootstrap_servers)
    servers = {"bootstrap.servers": kafka_broker.bootstrap_servers}
    with ConnectionPool(KafkaSettings.from_librdkafka(servers)) as other:
        identity = TransactionCoordinator(other).init("closing-eos-0-0", 60_000)
        prepared = raw.write(identity, topic())
    assert [t.identity for t in list_open(raw.wire, "closing")] == [prepared.identity]
    raw.end(prepared, commit=False)


def test_an_unreachable_broker_is_named_with_what_to_check():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(KafkaUnavailableError, match=r"bootstrap\.servers") as error:
            ConnectionPool(
                KafkaSettings.from_librdkafka({"bootstrap.servers": servers}), timeout_s=0.5
            )
    assert servers in str(error.value)


def test_a_timeout_above_the_brokers_is_refused(wire):
    with pytest.raises(TimeoutBudgetError, match=r"transaction\.max\.timeout\.ms"):
        TransactionCoordinator(wire).init("too-long-0-0", 3_600_000)


OF_OTHERS = ("a.b(c)+-eu-eos-7-0", "axb(c)+-eos-7-0", "a.b(c)+-eos-7", "a.b(c)+-7-0")


def test_only_the_prefixs_own_transactions_are_listed(kafka_broker, topic, raw_kafka):
    raw, out = raw_kafka(kafka_broker.bootstrap_servers), topic(partitions=2)
    ours = raw.prepare("a.b(c)+-eos-7-0", out, partition=1, timeout_ms=54_321)
    others = [raw.prepare(i, out) for i in OF_OTHERS]
    (found,) = list_open(raw.wire, "a.b(c)+")
    assert found.identity == ours.identity
    assert found.timeout_ms == 54_321
    assert found.partitions == ((out, 1),)
    assert abs(found.started_at_ms - time.time() * 1000) < 600_000
    end_transactions(raw.wire, [p.identity for p in (ours, *others)], commit=False)
    assert list_open(raw.wire, "a.b(c)+") == ()


def test_many_transactions_are_listed_and_ended_in_pieces(
    kafka_broker, topic, raw_kafka, monkeypatch
):
    monkeypatch.setattr(describing, "_IDS_PER_DESCRIBE", 7)
    monkeypatch.setattr(cluster, "_IDS_PER_LOOKUP", 9)
    raw, out = raw_kafka(kafka_broker.bootstrap_servers), topic()
    prepared = {raw.prepare(f"many-eos-{i}-0", out).identity for i in range(30)}
    raw.wire.cluster.forget_coordinators(i.transactional_id for i in prepared)
    assert {t.identity for t in list_open(raw.wire, "many")} == prepared
    known = sorted(prepared)[:20]
    others = list_open(raw.wire, "many", except_known=known)
    assert {t.identity for t in others} == prepared - set(known)
    ended = end_transactions(raw.wire, sorted(prepared), commit=True)
    assert set(ended) == prepared
    assert list_open(raw.wire, "many") == ()


@pytest.mark.long
def test_a_wire_outlives_a_restart_of_the_broker(raw_kafka, wait_until):
    with EmbeddedKafka() as broker:
        raw = raw_kafka(broker.bootstrap_servers)
        prepared = raw.prepare("restart-0-0", broker.create_topic("restart", 1))
        broker.kill()
        with pytest.raises(KafkaUnavailableError, match=r"bootstrap\.servers"):
            raw.wire.request(question(), timeout_s=1.0)
        started = time.monotonic()
        with pytest.raises(KafkaUnavailableError):
            end_transactions(raw.wire, [prepared.identity], commit=True, deadline_s=1.0)
        assert time.monotonic() - started < 50, "a minute is what it has where nothing is said"
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(raw.end, prepared)
            broker.start(1)
            assert ended.result(300).name == "DONE"
        wait_until(lambda: raw.outcome(prepared).name == "COMMITTED")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The broker's own, self-signed for the loopback address: certificate, then key."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate, both = (folder / name for name in ("key.pem", "ca.pem", "both.pem"))
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=broker"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run(command.split(), check=True, capture_output=True)
    both.write_text(key.read_text() + certificate.read_text())
    return certificate


@pytest.fixture(scope="module")
def guarded(certificate: Path) -> Iterator[EmbeddedKafka]:
    tls = {
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": str(certificate.with_name("both.pem")),
    }
    listeners = {"SASL": "SASL_PLAINTEXT", "TLS": "SSL"}
    with EmbeddedKafka(WITH_ACLS | tls, listeners=listeners) as broker:
        broker.create_topic("secret", 1)
        yield broker


def login(broker: EmbeddedKafka, password: str) -> ConnectionPool:
    config = {
        "bootstrap.servers": broker.addresses("SASL"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "etl",
        "sasl.password": password,
    }
    return ConnectionPool(KafkaSettings.from_librdkafka(config), timeout_s=400)


@pytest.mark.long
def test_a_wrong_password_is_said_at_once_and_shown_nowhere(guarded, caplog):
    caplog.set_level(logging.DEBUG)
    started = time.monotonic()
    with pytest.raises(KafkaError, match="did not accept") as refused:
        login(guarded, "wrong-pw")
    assert not isinstance(refused.value, KafkaUnavailableError)
    assert time.monotonic() - started < 200
    assert "wrong-pw" not in str(refused.value) + caplog.text


def test_tls_trusts_the_authority_that_is_given(guarded, certificate):
    config = {"bootstrap.servers": guarded.addresses("TLS"), "security.protocol": "SSL"}
    trusting = KafkaSettings.from_librdkafka(config | {"ssl.ca.location": str(certificate)})
    with ConnectionPool(trusting, timeout_s=400) as wire:
        assert wire.cluster_id == guarded.cluster_id
    started = time.monotonic()
    with pytest.raises(KafkaError, match=r"ssl\.ca\.location") as refused:
        ConnectionPool(KafkaSettings.from_librdkafka(config), timeout_s=400)
    assert "CERTIFICATE_VERIFY_FAILED" in str(refused.value)
    assert time.monotonic() - started < 200


def allow(admin: ConnectionPool, kind: int, name: str, operation: int) -> None:
    acl = CreateAclsRequest.AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=4,  # PREFIXED
        principal="User:etl",
        host="*",
        operation=operation,
        permission_type=3,  # ALLOW
    )
    answer = admin.request(CreateAclsRequest(creations=[acl]))
    assert answer.results[0].error_code == 0


def test_each_missing_acl_is_named(guarded, raw_kafka, wait_until):
    admin = raw_kafka(guarded.bootstrap_servers).wire
    stranger = TransactionIdentity("etl-eos-0-0", 1, 0)
    with login(guarded, "etl-pw") as wire:
        coordinator = TransactionCoordinator(wire)
        with pytest.raises(TransactionError, match="Describe on TransactionalId 'etl-eos-0-0'"):
            list_open(wire, "etl")
        with pytest.raises(TopicError, match="Describe on Topic 'secret'"):
            wire.cluster.leaders("secret")
        with pytest.raises(TopicError, match="DescribeConfigs on Topic 'secret'"):
            wire.cluster.topic_config("secret", ["cleanup.policy"])
        with pytest.raises(KafkaError, match="DescribeConfigs on Cluster"):
            wire.cluster.broker_config(["transaction.max.timeout.ms"])
        allow(admin, 5, "etl-", 8)  # TransactionalId, Describe
        wait_until(lambda: _listed(wire))
        for attempt in (
            lambda: coordinator.init("etl-eos-0-0", 60_000),
            lambda: end_transactions(wire, [stranger], commit=True),
        ):
            with pytest.raises(TransactionError, match="Write on TransactionalId 'etl-eos-0-0'"):
                attempt()


def _listed(wire: ConnectionPool) -> bool:
    try:
        return list_open(wire, "etl") == ()
    except TransactionError:
        return False  # the new ACL has not reached the authorizer yet
