"""What all rooms share: one Spark, one other JVM, the servers of all kinds, places to die at."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from airflow_eos.core.checkpoint import heartbeat as beats
from airflow_eos.core.checkpoint import liveness as driver_liveness
from airflow_eos.core.checkpoint.locations import LOCAL
from airflow_eos.kinds.sql.sink import _left
from airflow_eos.local import EmbeddedKafka, avro_jars, spark_jars
from airflow_eos.sinks.source import tuned_spark_conf
from tests.integration.hazards.spark_job import Job
from tests.support.app import BEAT
from tests.support.host import Host, running
from tests.support.jvm import spark_submit_opts

if TYPE_CHECKING:
    from tests.support.kinds.servers import Servers

pytest.register_assert_rewrite("tests.integration.sql.verbs", "tests.integration.kept.table")


@pytest.fixture(autouse=True)
def _quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the drivers of ``tests/support/app.py``: who watches a dead one knows it in half the time.

    A recovery waits until three beats are missing, and hundreds of tests recover.
    """
    monkeypatch.setitem(beats._BEATS, LOCAL, BEAT)
    monkeypatch.setattr(driver_liveness, "UNTOLD_INTERVAL_S", BEAT.total_seconds() / 2)


@pytest.fixture(autouse=True)
def _no_connection_left() -> Iterator[None]:
    """Tests are tasks of one process, to tables of their own: none uses what another has left."""
    yield
    while _left:
        _left.popitem()[1].close()


@pytest.fixture
def die_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``die_at("decided")``: the driver ends there, as by an exception that nobody handles."""

    def arm(place: str) -> None:
        monkeypatch.setenv("EOS_FAILPOINTS", f"{place}=raise" if place else "")

    return arm


@pytest.fixture(scope="session")
def servers(kafka_broker: EmbeddedKafka) -> Iterator[Servers]:
    """Each is started when the first test asks for it."""
    from tests.support.kinds.servers import Servers  # and with it the clients of all kinds

    with Servers(kafka_broker) as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One for all tests of a process: a JVM takes its jars only when it starts."""
    environment = pytest.MonkeyPatch()
    environment.setenv("PYSPARK_PYTHON", sys.executable)
    with pytest.MonkeyPatch.context() as starting:
        starting.setenv("SPARK_SUBMIT_OPTS", spark_submit_opts())
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", ",".join(str(jar) for jar in (*spark_jars(), *avro_jars())))
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


@pytest.fixture
def job(spark: SparkSession, kafka_broker: EmbeddedKafka, tmp_path: Path) -> Iterator[Job]:
    """One pipeline on the shared session."""
    made = Job(kafka_broker, tmp_path)
    made.spark = spark
    yield made
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def connections(kafka_broker, monkeypatch, tmp_path) -> None:
    kafka = {"bootstrap.servers": kafka_broker.bootstrap_servers}
    for name, connection in (
        ("KAFKA", {"conn_type": "kafka", "extra": kafka}),
        ("SPARK", {"conn_type": "spark", "host": "local[2]"}),
    ):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}_DEFAULT", json.dumps(connection))
    # spark-submit, and the python that it finds, are those of this environment
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", spark_submit_opts())
    # the package reaches driver and executors only as it is shipped
    monkeypatch.chdir(tmp_path)
