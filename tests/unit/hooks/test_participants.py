"""ParticipantsHook: Airflow's own connections, as each kind of participant is reached."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from airflow.sdk import Connection
from airflow.sdk.execution_time import task_runner

from airflow_eos.errors import ConfigurationError
from airflow_eos.hooks import store
from airflow_eos.hooks.store import ParticipantsHook

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


def test_redis_gets_a_url_in_which_no_password_can_break_out(reach):
    told = reach(conn_type="redis", host="r", port=7000, password="a/b@c", extra={"db": 2})
    assert told == "redis://:a%2Fb%40c@r:7000/2"
    assert reach(conn_type="redis", host="r", extra={"ssl": True}) == "rediss://r:6379/0"


@pytest.mark.parametrize(
    ("connection", "masked"),
    [
        ({"conn_type": "redis", "host": "r", "password": "a/b@c"}, ["a%2Fb%40c"]),
        ({"conn_type": "generic", "extra": {"url": "http://me:hush-hush@h/x"}}, ["hush-hush"]),
        ({"conn_type": "generic", "extra": {"deep": {"ssl.key.pem": "KEY"}}}, ["KEY"]),
        ({"conn_type": "generic", "extra": {"password_file": "/etc/pw", "host": "h"}}, []),
    ],
    ids=["quoted in a URL", "in a URL", "by a name of clients", "a place is none"],
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
            store.told(connection)
