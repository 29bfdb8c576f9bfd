"""KafkaSettingsHook: the connection as it is, checked, its secrets masked."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import pytest
from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.providers.common.compat.module_loading import import_string
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Connection

from airflow_eos.errors import ConfigurationError
from airflow_eos.hooks import store
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
    monkeypatch.setattr(store, "mask_secret", masked.append)
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
    monkeypatch.setattr(store, "mask_secret", masked.append)
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


MSK = {
    "bootstrap.servers": "b-1.demo.abc.c2.kafka.eu-west-1.amazonaws.com:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
}
GOOGLE = MSK | {"bootstrap.servers": "bootstrap.c1.us-central1.managedkafka.proj.cloud.goog:9092"}


def test_amazons_iam_login_is_the_kafka_providers_own(connect, monkeypatch):
    """Its signer is a package of the user's: what it signs is what we log in with."""
    signer = ModuleType("aws_msk_iam_sasl_signer")
    provider = SimpleNamespace(generate_auth_token=lambda region: (f"token of {region}", 90_000))
    signer.MSKAuthTokenProvider = provider  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
    connect(MSK)
    login = KafkaSettingsHook().settings().kafka_python()
    assert login["sasl_oauth_token_provider"].token() == "token of eu-west-1"


GOOGLES = "airflow.providers.google.cloud.hooks.managed_kafka"


def test_googles_login_is_the_kafka_providers_own(connect, monkeypatch):
    """Its hook is of the Google provider: the token that it has is what we log in with."""
    packages = ["airflow.providers.google", *(GOOGLES.rsplit(".", n)[0] for n in (2, 1))]
    for name in packages:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    hook = ModuleType(GOOGLES)
    token = SimpleNamespace(get_confluent_token=lambda _: ("token of Google", time.time() + 900))
    hook.ManagedKafkaHook = lambda: token  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, GOOGLES, hook)
    connect(GOOGLE)
    login = KafkaSettingsHook().settings().kafka_python()
    assert login["sasl_oauth_token_provider"].token() == "token of Google"


def test_without_googles_provider_it_says_what_to_install(connect, monkeypatch):
    monkeypatch.setitem(sys.modules, GOOGLES, None)
    connect(GOOGLE)
    with pytest.raises(ConfigurationError, match=r"kafka_default.*google provider"):
        KafkaSettingsHook().settings()


def test_without_amazons_signer_it_says_what_to_install(connect, monkeypatch):
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    connect(MSK)
    with pytest.raises(ConfigurationError, match=r"kafka_default.*\[msk\]"):
        KafkaSettingsHook().settings()


def token_of_mine(_: str) -> tuple[str, float]:
    return "mine", time.time() + 900


def test_a_callback_that_the_administrator_allows_by_name_logs_in(connect, monkeypatch):
    name = f"{__name__}.token_of_mine"
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or ModuleType(__name__))
    monkeypatch.setattr(sys.modules[__name__], "token_of_mine", token_of_mine, raising=False)
    monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", name)
    connect(MSK | {"bootstrap.servers": "k:9092", "oauth_cb": name})
    login = KafkaSettingsHook().settings().kafka_python()
    assert login["sasl_oauth_token_provider"].token() == "mine"
    with pytest.raises(ConfigurationError, match="oauth_cb cannot be sent to Spark"):
        KafkaSettingsHook().librdkafka()


@pytest.mark.parametrize(("of", "can"), [("kafka", True), ("spark", False)])
def test_what_airflows_page_can_test_is_what_the_docs_say(of, can):
    """Kafka's connection type is tested by the provider's hook; Spark's provider has no test."""
    hook = ProvidersManager().hooks[of]
    assert hook is not None
    assert hook.connection_testable is can
    assert hasattr(import_string(hook.hook_class_name), "test_connection") is can
    assert KafkaSettingsHook.conn_type == KafkaBaseHook.conn_type == "kafka"
