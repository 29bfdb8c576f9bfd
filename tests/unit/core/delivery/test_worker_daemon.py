"""A worker takes pyspark from the folder whose zip Spark names, and from no other."""

from __future__ import annotations

import pytest

from airflow_eos.core.delivery.worker_daemon import without_zip


@pytest.fixture
def installed(tmp_path):
    def make(name):
        lib = tmp_path / name / "pyspark/python/lib"
        lib.mkdir(parents=True)
        return str(tmp_path / name), str(lib / "pyspark.zip")

    return make


def test_the_zip_of_the_installed_pyspark_is_left_out(installed):
    site, zipped = installed("site")
    assert without_zip(["", zipped, "py4j.zip", site]) == ["", "py4j.zip", site]


def test_the_zip_of_another_spark_stays(installed):
    site, _ = installed("site")
    _, zipped = installed("spark")
    path = ["", zipped, site]
    assert without_zip(path) == path


def test_the_zip_stays_where_another_pyspark_would_be_found_before_its_own(installed):
    first, _ = installed("first")
    site, zipped = installed("site")
    path = ["", zipped, first, site]
    assert without_zip(path) == path


def test_the_zip_stays_where_nothing_is_installed(tmp_path):
    path = ["", str(tmp_path / "python/lib/pyspark.zip"), str(tmp_path)]
    assert without_zip(path) == path
