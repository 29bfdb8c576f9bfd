"""Parts of a connection as text: what is odd in a password stays what it was."""

from __future__ import annotations

import pytest

from airflow_eos.kinds.sql.servers import as_text, parts_of

ODD = "p'w \\\\%40:@/?#é"


def test_an_odd_password_reaches_postgres_as_it_is():
    conninfo = pytest.importorskip("psycopg").conninfo
    told = {"host": "db", "port": 5432, "password": ODD}
    found = conninfo.conninfo_to_dict(as_text("postgres", told))
    assert found == {"host": "db", "port": "5432", "password": ODD}


def test_an_odd_password_reaches_mysql_as_it_is():
    told = {"host": "db", "user": "u@x", "password": ODD, "database": "a/b"}
    assert parts_of(as_text("mysql", told) or "") == {
        "host": "db",
        "port": 3306,
        "user": "u@x",
        "password": ODD,
        "database": "a/b",
    }


@pytest.mark.parametrize("how", [None, "", {}, 7, ["x"]])
def test_what_says_nothing_is_nothing(how):
    assert as_text("redis", how) is None


def test_a_url_is_a_url():
    assert as_text("redis", "redis://x") == as_text("redis", {"url": "redis://x"}) == "redis://x"
