"""What travels to executors: what is required, as it is installed here, and not Spark itself."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from airflow_eos.errors import ConfigurationError
from airflow_eos.supervision.packaging import build_environment, files_of, needed


def test_the_base_is_what_an_executor_needs_and_neither_airflow_nor_spark():
    found = needed()
    assert {"pyarrow", "numpy", "msgspec", "kafka-python", "lz4"} <= found.keys()
    assert not found.keys() & {"apache-airflow", "pyspark", "pyspark-client", "typer", "psycopg"}


def test_an_extra_brings_its_own_and_what_those_require():
    assert {"psycopg", "psycopg-binary"} <= needed(["postgres"]).keys()
    assert {"pandas", "python-dateutil"} <= needed(also=["pandas"]).keys()


def test_spark_is_left_out_although_an_extra_names_it():
    assert not needed(["spark"]).keys() & {"pyspark", "pyspark-client", "py4j"}


def test_an_extra_of_nobody_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigurationError, match=r"no extra oracle; it has .*postgres"):
        needed(["oracle"])


def test_what_is_not_installed_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="no-such-thing, which --also requires, is not"):
        needed(also=["no_such.thing"])


def test_programs_and_compiled_files_stay_here():
    names = files_of(metadata.distribution("numpy"))
    assert any(name.endswith(".so") for name in names)
    assert not [name for name in names if name.startswith("..") or name.endswith(".pyc")]
    assert all(path.is_file() for path in names.values())


def test_a_distribution_that_is_installed_from_its_sources_is_refused():
    with pytest.raises(ConfigurationError, match="editable mode"):
        files_of(metadata.distribution("airflow-provider-eos"))


def test_a_file_of_another_kind_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"end with \.tar\.gz"):
        build_environment(tmp_path / "environment.zip")
