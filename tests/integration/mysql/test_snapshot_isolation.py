"""A MariaDB as it is from 11.6.2 on: a lock of a row that is newer than our view is no error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pymysql
import pytest

from airflow_eos.kinds.mysql.session import asked, connected, done
from airflow_eos.kinds.sql.servers import parts_of
from airflow_eos.kinds.upsert.mysql import MySqlUpsert
from tests.support.servers.mariadb import EmbeddedMariaDb


@pytest.fixture(scope="module")
def newest() -> Iterator[EmbeddedMariaDb]:
    with EmbeddedMariaDb("--innodb-snapshot-isolation=ON") as server:
        yield server


def test_a_parent_that_was_changed_since_our_view_refuses_no_row(newest: EmbeddedMariaDb):
    """Error 1020, "Record has changed since last read": each batch was refused."""
    ours = connected(newest.url, lock_timeout_s=10, timeout_s=10)
    beside = pymysql.connect(**parts_of(newest.url), autocommit=True)
    with closing(ours), closing(beside):
        done(beside, "CREATE TABLE customers (id bigint PRIMARY KEY, seen bigint)")
        done(beside, "INSERT INTO customers VALUES (1, 0)")
        done(beside, "CREATE TABLE orders (id bigint, of bigint REFERENCES customers (id))")
        ours.begin()
        assert asked(ours, "SELECT seen FROM customers") == [(0,)]
        done(beside, "UPDATE customers SET seen = 1")
        done(ours, "INSERT INTO orders VALUES (1, 1)")
        ours.commit()
        assert asked(beside, "SELECT @@global.innodb_snapshot_isolation") == [(1,)]
        assert asked(beside, "SELECT * FROM orders") == [(1, 1)]


def test_a_session_of_upserts_has_it_off(newest: EmbeddedMariaDb):
    target = MySqlUpsert(newest.url, "totals").open(timeout_s=10)
    with closing(target), target.asking("asking") as cursor:
        cursor.execute("SELECT @@global.innodb_snapshot_isolation, @@innodb_snapshot_isolation")
        assert cursor.fetchall() == ((1, 0),)
