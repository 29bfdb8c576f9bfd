"""Which names are secrets: one list for Kafka's clients, Spark's page and the stores' options."""

from __future__ import annotations

import pytest

from airflow_eos.secret_names import is_secret


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "sasl.jaas.config",
        "ssl.key.pem",
        "aws_secret_access_key",
        "aws_access_key_id",
        "AWS_SESSION_TOKEN",
        "azure_storage_account_key",
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
        "spark.hadoop.fs.s3a.encryption.key",
        "sas_key",
        "DB_PASSWD",
        "registry.api-key",
        "SNOWFLAKE_PRIVATE_KEY",
    ],
)
def test_a_secret_is_one_by_whichever_client_it_is_named(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "bootstrap.servers",
        "sasl.username",
        "ssl.ca.location",
        "ssl.key.location",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.mechanisms",
        "aws_region",
        "aws_endpoint",
        "azure_federated_token_file",
        "JAAS_CONFIG_FILE",
        "--password-file",
    ],
)
def test_what_is_no_secret_can_be_read(name):
    assert not is_secret(name)
