"""Of which servers a witness can be asked; no test runs MySQL's Group Replication."""

from __future__ import annotations

from urllib.parse import quote

import pyarrow as pa
import pytest

from airflow_eos.errors import ConfigurationError, DeliveryError, StoreError
from airflow_eos.kinds.mysql.sink import statements
from airflow_eos.kinds.sql.servers import keywords_of, parts_of, reason, require_witness

pytest.importorskip("pymysql")


ALONE = {"read_only": "OFF", "innodb_flush_log_at_trx_commit": "1"}
GROUP = {
    "group_replication_group_name": "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa",
    "group_replication_single_primary_mode": "ON",
    "group_replication_consistency": "BEFORE_ON_PRIMARY_FAILOVER",
}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"wsrep_on": "ON"}, "Galera"),
        (GROUP | {"group_replication_single_primary_mode": "OFF"}, "single_primary_mode = OFF"),
        (GROUP | {"group_replication_consistency": "EVENTUAL"}, "BEFORE_ON_PRIMARY_FAILOVER"),
    ],
)
def test_a_server_that_applies_the_commits_of_others_late_is_refused(
    settings: dict[str, str], why: str
):
    with pytest.raises(ConfigurationError, match=rf"db has .*{why}.*one server that takes writes"):
        require_witness(ALONE | settings, "db")


@pytest.mark.parametrize("settings", [{}, {"wsrep_on": "OFF"}, GROUP])
def test_one_writer_is_a_witness_also_of_a_group(settings: dict[str, str]):
    require_witness(ALONE | settings, "db")
    require_witness(ALONE | settings | {"group_replication_group_name": ""}, "db")


@pytest.mark.parametrize("told", ["ON", "1", "NO_LOCK", "NO_LOCK_NO_ADMIN"])
def test_a_server_that_takes_no_writes_is_no_witness_in_whatever_words_it_says_so(told: str):
    """MariaDB 12 has four answers: by the strictest who fails over fences the former primary."""
    with pytest.raises(StoreError, match="is read-only, a replica perhaps"):
        require_witness(ALONE | {"read_only": told}, "db")
    with pytest.raises(StoreError, match="is read-only, a replica perhaps"):
        require_witness(ALONE | {"innodb_read_only": told}, "db")  # a reader of Aurora
    require_witness(ALONE | {"read_only": "0", "innodb_read_only": "OFF"}, "db")


@pytest.mark.parametrize("synced", ["0", "100"])
def test_a_server_whose_binary_log_may_lose_commits_in_a_power_cut_is_refused(synced: str):
    """InnoDB then undoes what it had prepared, and what is not in the log."""
    with pytest.raises(ConfigurationError, match=f"sync_binlog = {synced}: a power cut"):
        require_witness(ALONE | {"log_bin": "ON", "sync_binlog": synced}, "db")
    require_witness(ALONE | {"log_bin": "ON", "sync_binlog": "1"}, "db")
    require_witness(ALONE | {"log_bin": "OFF", "sync_binlog": synced}, "db")


# --- test_mysql_faults ----------------------------------------------------------------------------
# What MySQL and MariaDB say of a refused row, in one form.


pymysql = pytest.importorskip("pymysql")


@pytest.mark.parametrize("key", ["by_day", "orders.by_day"], ids=["MariaDB", "MySQL 8.0.19"])
def test_a_key_is_named_without_its_table(key: str):
    error = pymysql.err.IntegrityError(1062, f"Duplicate entry 'a.b' for key '{key}'")
    assert reason(error) == "IntegrityError 1062, a second row for the unique key 'by_day'"


def test_a_row_that_the_server_takes_is_not_refused_for_the_length_of_our_own_statements():
    """Refused with the advice to raise max_allowed_packet, which was high enough already."""
    long, head = "x" * (5 << 20), b"INSERT INTO t VALUES "
    batch = pa.RecordBatch.from_pydict({"note": ["a", "b", long, "c"]})
    pieces = list(statements(batch, head, 64 << 20))
    rows = [piece.removeprefix(head) for piece in pieces]
    assert rows == [b"('a'),('b')", f"('{long}')".encode(), b"('c')"]
    with pytest.raises(DeliveryError, match=f"max_allowed_packet leaves {(4 << 20) - len(head)}"):
        list(statements(batch, head, 4 << 20))


@pytest.mark.parametrize("password", ["12/hush", "hu/sh", "hu@sh/hush@"])
def test_a_password_that_is_not_quoted_is_taken_for_no_name_that_is_shown(password: str):
    """By the rules of URLs, and of libpq's, its rest is the name of a host or a database."""
    psycopg = pytest.importorskip("psycopg")
    with pytest.raises(ConfigurationError, match="cannot be read") as refused:
        parts_of(f"mysql://me:{password}@db/shop")
    with pytest.raises(psycopg.ProgrammingError) as unread:
        keywords_of(f"postgresql://me:{password}@db/shop")
    assert "hush" not in f"{refused.value} {unread.value}"
    quoted = quote(password, safe="")
    assert parts_of(f"mysql://me:{quoted}@db/shop%40")["database"] == "shop@"
    assert keywords_of(f"postgresql://me:{quoted}@db/shop%40")["dbname"] == "shop@"


@pytest.mark.parametrize("more", ["?ssl_ca=/etc/ca.pem", "?ssl-mode=REQUIRED", "#now"])
def test_a_setting_in_the_url_that_nobody_would_follow_is_refused_and_no_password_is_shown(
    more: str,
):
    """Left out in silence, an app that asks for TLS would send its password and rows in clear."""
    with pytest.raises(ConfigurationError, match="none is known here") as refused:
        parts_of(f"mysql://me:hush@db/shop{more}")
    assert "hush" not in str(refused.value)
    assert parts_of("mysql://me:hush@db/shop")["database"] == "shop"
