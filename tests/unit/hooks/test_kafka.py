"""KafkaSettingsHook: the connection as it is, checked, its secrets masked."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import nullcontext

import pytest
from airflow.sdk import Connection

from airflow_eos.errors import ConfigurationError
from airflow_eos.hooks import kafka as module
from airflow_eos.hooks.kafka import KafkaSettingsHook

SECRETS = {
    "sasl.password": "first-secret",
    "ssl.key.password": "second-secret",
    "ssl.key.pem": "third-secret",
    "sasl.oauthbearer.client.secret": "fourth-secret",
    "sasl.oauthbearer.config": "fifth-secret",
    "sasl.jaas.config": "sixth-secret",
    "ssl.keystore.key": "seventh-secret",
    "sasl.oauthbearer.assertion.private.key.passphrase": "eighth-secret",
}
PLAIN = {
    "bootstrap.servers": "k:9092",
    "client.id": "etl",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
}


@pytest.fixture
def connect(monkeypatch):
    def set_extra(extra):
        connection = json.dumps({"conn_type": "kafka", "extra": extra})
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", connection)

    return set_extra


def test_the_whole_extra_is_the_configuration(connect):
    connect(PLAIN)
    hook = KafkaSettingsHook()
    assert hook.librdkafka() == PLAIN
    assert hook.settings().bootstrap_servers == "k:9092"
    assert hook.get_conn() == hook.settings()


def test_every_secret_is_masked_and_nothing_else(connect, monkeypatch):
    masked: list[str] = []
    monkeypatch.setattr(module, "mask_secret", masked.append)
    connect(PLAIN | SECRETS)
    KafkaSettingsHook().librdkafka()
    assert sorted(masked) == sorted(SECRETS.values())


@pytest.mark.parametrize("extra", [{}, {"bootstrap.servers": ""}, {"client.id": "x"}])
def test_no_servers_is_said_with_what_to_do(connect, extra):
    connect(extra)
    with pytest.raises(ConfigurationError, match=r"'kafka_default'.*bootstrap.servers"):
        KafkaSettingsHook().settings()


@pytest.mark.parametrize("name", ["oauth_cb", "stats_cb", "on_commit"])
def test_callbacks_cannot_travel_to_executors(connect, name):
    connect(PLAIN | {name: "some.module.function"})
    with pytest.raises(ConfigurationError, match=name):
        KafkaSettingsHook().settings()


def test_a_trigger_reads_the_same_without_blocking(monkeypatch):
    async def aget(_, conn_id):
        return Connection(conn_id=conn_id, conn_type="kafka", extra=json.dumps(PLAIN))

    monkeypatch.setattr(KafkaSettingsHook, "aget_connection", classmethod(aget))
    assert asyncio.run(KafkaSettingsHook("mine").asettings()).get("client.id") == "etl"


@pytest.mark.parametrize("servers", ["k:9092", ""], ids=["", "refused"])
def test_every_secret_is_masked_in_a_trigger_too(monkeypatch, servers):
    """Also of a connection that is refused: its message and its frames are logged."""
    masked: list[str] = []
    monkeypatch.setattr(module, "mask_secret", masked.append)
    extra = PLAIN | SECRETS | {"bootstrap.servers": servers}

    async def aget(_, conn_id):
        return Connection(conn_id=conn_id, conn_type="kafka", extra=json.dumps(extra))

    monkeypatch.setattr(KafkaSettingsHook, "aget_connection", classmethod(aget))
    with nullcontext() if servers else pytest.raises(ConfigurationError):
        asyncio.run(KafkaSettingsHook("mine").asettings())
    assert sorted(masked) == sorted(SECRETS.values())


@pytest.mark.parametrize(
    ("chosen", "kept"), [(logging.NOTSET, logging.WARNING), (logging.INFO, logging.INFO)]
)
def test_the_clients_chatter_stays_out_of_task_logs_unless_asked_for(connect, chosen, kept):
    connect(PLAIN)
    client = logging.getLogger("kafka")
    before = client.level
    client.setLevel(chosen)
    try:
        KafkaSettingsHook().settings()
        assert client.level == kept
    finally:
        client.setLevel(before)
