"""Airflow's connections as Kafka, participants and stores are reached: checked, secrets masked."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.providers.common.compat.module_loading import import_string
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Connection
from airflow.sdk.execution_time import task_runner

from airflow_eos.core.checkpoint.locations import open_remote
from airflow_eos.errors import ConfigurationError
from airflow_eos.hooks import store
from airflow_eos.hooks import store as module
from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.hooks.store import CheckpointStoreHook, ParticipantsHook

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


# --- ParticipantsHook: Airflow's own connections, as each kind of participant is reached ----------


ADDRESS = {"host": "db", "port": 6543, "login": "etl", "password": "s3cr&t"}


@pytest.fixture
def reach(monkeypatch):
    def told(**connection: Any) -> Any:
        monkeypatch.setenv("AIRFLOW_CONN_OF_IT", json.dumps(connection))
        return ParticipantsHook({"totals": "of_it"}).reach()["totals"]

    return told


def test_postgres_gets_parameters_of_libpq_and_the_extra_wins(reach):
    told = reach(conn_type="postgres", schema="shop", extra={"sslmode": "require"}, **ADDRESS)
    assert told == {
        "host": "db",
        "port": 6543,
        "user": "etl",
        "password": "s3cr&t",
        "dbname": "shop",
        "sslmode": "require",
    }


def test_mysql_calls_its_database_so(reach):
    assert reach(conn_type="mysql", schema="shop", host="db") == {"host": "db", "database": "shop"}


def test_redis_gets_a_url_in_which_no_login_can_break_out(reach):
    told = reach(conn_type="redis", host="r", login="team/etl", password="p")
    assert told == "redis://team%2Fetl:p@r:6379/0", "team would be the host"
    told = reach(conn_type="redis", host="r", port=7000, password="a/b@c", extra={"db": 2})
    assert told == "redis://:a%2Fb%40c@r:7000/2"
    assert reach(conn_type="redis", host="r", extra={"ssl": True}) == "rediss://r:6379/0"


@pytest.mark.parametrize(
    ("connection", "masked"),
    [
        ({"conn_type": "redis", "host": "r", "password": "a/b@c"}, ["a%2Fb%40c"]),
        ({"conn_type": "generic", "extra": {"url": "http://me:hush-hush@h/x"}}, ["hush-hush"]),
        ({"conn_type": "generic", "extra": {"url": "x://me:hush/hush@h/x"}}, ["hush/hush"]),
        (
            {"conn_type": "generic", "extra": {"url": "x://me:hush@hush@h, y://me:hidden@h"}},
            ["hush@hush", "hush", "hidden"],
        ),
        ({"conn_type": "generic", "extra": {"url": "hdfs://nn:8020/user@REALM/ck"}}, []),
        ({"conn_type": "generic", "extra": {"dsn": "password=hush=hush user=u"}}, ["hush=hush"]),
        ({"conn_type": "generic", "extra": {"deep": {"ssl.key.pem": "KEY"}}}, ["KEY"]),
        ({"conn_type": "generic", "extra": {"password_file": "/etc/pw", "host": "h"}}, []),
    ],
    ids=[
        "quoted in a URL",
        "in a URL",
        "with a slash",
        "with an @",
        "a port is none",
        "with =",
        "by a name of clients",
        "a place is none",
    ],
)
def test_what_is_secret_in_a_connection_no_log_shows(reach, monkeypatch, connection, masked):
    """Airflow masks a password as it is stored, and an exception has the URL."""
    found: list[str] = []
    monkeypatch.setattr(store, "mask_secret", found.append)
    reach(**connection)
    assert found == masked


def test_an_object_store_gets_options_as_the_checkpoint_does(reach):
    told = reach(
        conn_type="aws", login="id", password="secret", extra={"endpoint_url": "http://s3:9000"}
    )
    assert told == {
        "storage_options": {
            "aws_access_key_id": "id",
            "aws_secret_access_key": "secret",
            "aws_endpoint": "http://s3:9000",
            "aws_allow_http": "true",
        }
    }


def test_any_other_type_is_its_extra(reach):
    assert reach(conn_type="generic", extra={"uri": "sqlite:///catalog.db"}) == {
        "uri": "sqlite:///catalog.db"
    }


def test_a_connection_that_says_nothing_is_refused(reach):
    with pytest.raises(ConfigurationError, match="'of_it' says nothing"):
        reach(conn_type="generic")


def test_a_trigger_gets_the_same(reach, monkeypatch):
    # What every triggerer has; Airflow 3.1 asks for it before it looks into the environment.
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", None, raising=False)
    told = reach(conn_type="postgres", **ADDRESS)
    assert asyncio.run(ParticipantsHook({"totals": "of_it"}).areach()) == {"totals": told}


def test_without_connections_nobody_is_asked():
    assert ParticipantsHook(None).reach() == {}


@pytest.mark.parametrize("extra", ['{"sslmode": "verify-full"', "[]", "nonsense"])
def test_an_extra_that_nobody_can_read_is_no_empty_one(extra):
    """Airflow would have it empty: the password without TLS, or the machine's own role."""
    for conn_type in ("postgres", "aws", "generic"):
        connection = Connection(
            conn_id="of_it", conn_type=conn_type, host="db", password="x", extra=extra
        )
        with pytest.raises(ConfigurationError, match="'of_it': its extra is no JSON object"):
            store.settings_of(connection)


# --- Connections of object stores: each field becomes what obstore knows, or is refused by name ---


ACCOUNT = {
    "type": "service_account",
    "client_email": "e",
    "private_key": "of-google",
    "private_key_id": "i",
    "gcs_base_url": "https://storage.googleapis.com",
    "disable_oauth": True,
}
KEYS = {"login": "AKIA", "password": "of-aws"}
GOOGLES_TYPE = "google_cloud_platform"
GOOGLES_KEY = {"google_service_account_key": json.dumps(ACCOUNT)}
WASB = {"conn_type": "wasb", "login": "acct"}
AZURES_KEY = {"azure_storage_account_name": "acct", "azure_storage_account_key": "b2YtYXp1cmU="}
CASES = {
    "keys": (
        "s3a://lake/ck",
        {"conn_type": "aws", **KEYS, "extra": {"region_name": "eu-west-1"}},
        {"aws_access_key_id": "AKIA", "aws_secret_access_key": "of-aws", "aws_region": "eu-west-1"},
    ),
    "keys in the extra, for a while": (
        "s3://lake/ck",
        {
            "conn_type": "aws",
            "extra": {
                "aws_access_key_id": "ASIA",
                "aws_secret_access_key": "of-aws",
                "aws_session_token": "for-a-while",
                "endpoint_url": "https://everything.example",
                "service_config": {"s3": {"endpoint_url": "https://s3.example"}},
            },
        },
        {
            "aws_access_key_id": "ASIA",
            "aws_secret_access_key": "of-aws",
            "aws_session_token": "for-a-while",
            "aws_endpoint": "https://s3.example",
        },
    ),
    "the machine's role": ("s3://lake/ck", {"conn_type": "aws"}, {}),
    "google's key": (
        "gs://lake/ck",
        {"conn_type": GOOGLES_TYPE, "extra": {"keyfile_dict": json.dumps(ACCOUNT)}},
        GOOGLES_KEY,
    ),
    "google's key as Airflow 2 wrote it": (
        "gs://lake/ck",
        {"conn_type": GOOGLES_TYPE, "extra": {f"extra__{GOOGLES_TYPE}__keyfile_dict": ACCOUNT}},
        GOOGLES_KEY,
    ),
    "azure's key": ("az://lake/ck", {**WASB, "password": "b2YtYXp1cmU="}, AZURES_KEY),
    "azure's key in the extra": (
        "az://lake/ck",
        {**WASB, "extra": {"account_key": "b2YtYXp1cmU="}},
        AZURES_KEY,
    ),
    "azure's key as Airflow 2 wrote it": (
        "az://lake/ck",
        {**WASB, "extra": {"extra__wasb__shared_access_key": "b2YtYXp1cmU="}},
        AZURES_KEY,
    ),
    "an application of azure": (
        "abfss://lake@acct.dfs.core.windows.net/ck",
        {
            "conn_type": "wasb",
            "host": "acct.blob.core.windows.net",
            "login": "app",
            "password": "of-app",
            "extra": {"tenant_id": "t"},
        },
        {
            "azure_storage_account_name": "acct",
            "azure_storage_tenant_id": "t",
            "azure_storage_client_id": "app",
            "azure_storage_client_secret": "of-app",
        },
    ),
    "a shared access signature": (
        "az://lake/ck",
        {**WASB, "extra": {"sas_token": "https://acct.blob.core.windows.net/?sv=1&sig=of-sas"}},
        {"azure_storage_account_name": "acct", "azure_storage_sas_key": "sv=1&sig=of-sas"},
    ),
}


@pytest.fixture
def connect_store(monkeypatch):
    def connect(**fields) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(fields))

    return connect


@pytest.mark.parametrize(("url", "connection", "options"), CASES.values(), ids=list(CASES))
def test_what_the_connection_says_opens_the_store(connect_store, url, connection, options):
    connect_store(**connection)
    found = CheckpointStoreHook("lake").options()
    assert found == options
    open_remote(url, found)


def test_an_endpoint_without_tls_is_told_as_wanted(connect_store):
    connect_store(conn_type="aws", extra={"endpoint_url": "http://minio:9000"})
    assert CheckpointStoreHook("lake").options()["aws_allow_http"] == "true"


@pytest.mark.parametrize(
    ("connection", "named"),
    [
        ({"conn_type": "aws", "extra": {"role_arn": "arn:x"}}, "role_arn"),
        ({"conn_type": "aws", "extra": {"profile_name": "x"}}, "profile_name"),
        ({"conn_type": "aws", "extra": {"session_kwargs": {"x": "y"}}}, "session_kwargs"),
        (
            {"conn_type": "google_cloud_platform", "extra": {"impersonation_chain": "x"}},
            "impersonation_chain",
        ),
        ({"conn_type": "wasb", "extra": {"connection_string": "x"}}, "connection_string"),
        ({"conn_type": "ftp"}, "'ftp'.*aws, google_cloud_platform, wasb"),
        ({"conn_type": "aws", "extra": {"service_config": '{"s3": {}}'}}, "extra.*another form"),
        ({"conn_type": "aws", "extra": {"region_name": ["eu"]}}, "aws_region.*another form"),
        ({"conn_type": "wasb", "extra": {"sas_token": 5}}, "extra.*another form"),
    ],
)
def test_a_way_in_that_would_be_ignored_is_refused_by_name(connect_store, connection, named):
    connect_store(**connection)
    with pytest.raises(ConfigurationError, match=f"'lake'.*{named}"):
        CheckpointStoreHook("lake").options()


def test_a_dags_own_options_come_on_top_of_the_connection(connect_store):
    connect_store(conn_type="aws", extra={"region_name": "eu-west-1"})
    hook = CheckpointStoreHook("lake", {"aws_region": "eu-central-1"})
    assert hook.options() == {"aws_region": "eu-central-1"}


@pytest.mark.parametrize(
    "name",
    [
        *("aws_secret_access_key", "secret_access_key", "aws_access_key_id", "aws_session_token"),
        *("google_service_account_key", "azure_storage_account_key", "azure_storage_sas_token"),
        "azure_storage_client_secret",
    ],
)
def test_a_secret_in_a_dag_file_is_refused_with_where_it_belongs(name):
    with pytest.raises(ConfigurationError, match=f"{name}.*storage_conn_id"):
        CheckpointStoreHook(storage_options={name: "x"}).options()


def test_settings_that_are_no_secret_need_no_connection():
    plain = {
        "aws_region": "eu-west-1",
        "aws_endpoint": "https://s3",
        "aws_web_identity_token_file": "/var/run/token",
        "timeout": "30s",
    }
    assert CheckpointStoreHook(storage_options=plain).options() == plain


def test_every_secret_is_masked_in_a_task_and_in_a_trigger(connect_store, monkeypatch):
    async def aget(_, conn_id):
        return Connection(conn_id=conn_id, conn_type="aws", login="AKIA", password="of-aws")

    masked: list[str] = []
    monkeypatch.setattr(module, "mask_secret", masked.append)
    monkeypatch.setattr(CheckpointStoreHook, "aget_connection", classmethod(aget))
    connect_store(conn_type="aws", **KEYS)

    in_a_task = CheckpointStoreHook("lake").options()
    in_a_trigger = asyncio.run(CheckpointStoreHook("lake").aoptions())

    assert in_a_task == in_a_trigger
    assert masked == ["AKIA", "of-aws"] * 2
