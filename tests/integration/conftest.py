"""One Spark for all tests that use it in this process: a JVM takes its jars only when it starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import spark_jars
from airflow_eos.sinks.source import tuned_spark_conf
from tests.support.host import Host, running
from tests.support.jvm import spark_submit_opts

pytest.register_assert_rewrite("tests.integration.sql.verbs")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    environment = pytest.MonkeyPatch()
    environment.setenv("PYSPARK_PYTHON", sys.executable)
    with pytest.MonkeyPatch.context() as starting:
        starting.setenv("SPARK_SUBMIT_OPTS", spark_submit_opts())
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", ",".join(str(jar) for jar in spark_jars()))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config(map={**tuned_spark_conf()})
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    environment.undo()


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    """The other machine: the JVM of drivers that are killed."""
    with running() as host:
        yield host
