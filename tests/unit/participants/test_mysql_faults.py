"""What MySQL and MariaDB say of a refused row, in one form."""

from __future__ import annotations

import pytest

pymysql = pytest.importorskip("pymysql")

from airflow_eos.kinds.mysql.session import reason  # noqa: E402


@pytest.mark.parametrize("key", ["by_day", "orders.by_day"], ids=["MariaDB", "MySQL 8.0.19"])
def test_a_key_is_named_without_its_table(key: str):
    error = pymysql.err.IntegrityError(1062, f"Duplicate entry 'a.b' for key '{key}'")
    assert reason(error) == "IntegrityError 1062, a second row for the unique key 'by_day'"
