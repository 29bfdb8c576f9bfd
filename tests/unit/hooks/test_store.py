"""Connections of object stores: each field becomes what obstore knows, or is refused by name."""

from __future__ import annotations

import asyncio
import json

import pytest
from airflow.sdk import Connection

from airflow_eos.checkpoint.locations import open_remote
from airflow_eos.errors import ConfigurationError
from airflow_eos.hooks import store as module
from airflow_eos.hooks.store import CheckpointStoreHook

ACCOUNT = {
    "type": "service_account",
    "client_email": "e",
    "private_key": "of-google",
    "private_key_id": "i",
    "gcs_base_url": "https://storage.googleapis.com",
    "disable_oauth": True,
}
KEYS = {"login": "AKIA", "password": "of-aws"}
CASES = {
    "keys": (
        "s3a://lake/ck",
        {"conn_type": "aws", **KEYS, "extra": {"region_name": "eu-west-1"}},
        {
            "aws_access_key_id": "AKIA",
            "aws_secret_access_key": "of-aws",
            "aws_region": "eu-west-1",
        },
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
        {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": json.dumps(ACCOUNT)}},
        {"google_service_account_key": json.dumps(ACCOUNT)},
    ),
    "google's key as Airflow 2 wrote it": (
        "gs://lake/ck",
        {
            "conn_type": "google_cloud_platform",
            "extra": {"extra__google_cloud_platform__keyfile_dict": ACCOUNT},
        },
        {"google_service_account_key": json.dumps(ACCOUNT)},
    ),
    "azure's key": (
        "az://lake/ck",
        {"conn_type": "wasb", "login": "acct", "password": "b2YtYXp1cmU="},
        {"azure_storage_account_name": "acct", "azure_storage_account_key": "b2YtYXp1cmU="},
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
        {
            "conn_type": "wasb",
            "login": "acct",
            "extra": {"sas_token": "https://acct.blob.core.windows.net/?sv=1&sig=of-sas"},
        },
        {"azure_storage_account_name": "acct", "azure_storage_sas_key": "sv=1&sig=of-sas"},
    ),
}


@pytest.fixture
def connect(monkeypatch):
    def connect(**fields) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(fields))

    return connect


@pytest.mark.parametrize(("url", "connection", "options"), CASES.values(), ids=list(CASES))
def test_what_the_connection_says_opens_the_store(connect, url, connection, options):
    connect(**connection)
    found = CheckpointStoreHook("lake").options()
    assert found == options
    open_remote(url, found)


def test_an_endpoint_without_tls_is_told_as_wanted(connect):
    connect(conn_type="aws", extra={"endpoint_url": "http://minio:9000"})
    assert CheckpointStoreHook("lake").options()["aws_allow_http"] == "true"


@pytest.mark.parametrize(
    ("connection", "named"),
    [
        ({"conn_type": "aws", "extra": {"role_arn": "arn:x"}}, "role_arn"),
        ({"conn_type": "aws", "extra": {"profile_name": "x"}}, "profile_name"),
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
def test_a_way_in_that_would_be_ignored_is_refused_by_name(connect, connection, named):
    connect(**connection)
    with pytest.raises(ConfigurationError, match=f"'lake'.*{named}"):
        CheckpointStoreHook("lake").options()


def test_a_dags_own_options_come_on_top_of_the_connection(connect):
    connect(conn_type="aws", extra={"region_name": "eu-west-1"})
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


def test_every_secret_is_masked_in_a_task_and_in_a_trigger(connect, monkeypatch):
    async def aget(_, conn_id):
        return Connection(conn_id=conn_id, conn_type="aws", login="AKIA", password="of-aws")

    masked: list[str] = []
    monkeypatch.setattr(module, "mask_secret", masked.append)
    monkeypatch.setattr(CheckpointStoreHook, "aget_connection", classmethod(aget))
    connect(conn_type="aws", **KEYS)

    in_a_task = CheckpointStoreHook("lake").options()
    in_a_trigger = asyncio.run(CheckpointStoreHook("lake").aoptions())

    assert in_a_task == in_a_trigger
    assert masked == ["AKIA", "of-aws"] * 2
