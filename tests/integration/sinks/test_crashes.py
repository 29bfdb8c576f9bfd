"""The driver dies (SIGKILL) at each step of a batch; the next start delivers each row once.

Here with its JVM, where the place is all that differs; ``tests/integration/kinds`` does the same to
every kind of sink.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from tests.support.host import Host
from tests.support.pipeline import KILLED, Pipeline

LONG = pytest.mark.proof


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, host: Host, tmp_path: Path) -> Pipeline:
    return Pipeline(kafka_broker, tmp_path, host=host)


@pytest.fixture
def alone(kafka_broker: EmbeddedKafka, tmp_path: Path) -> Pipeline:
    """Each driver has a JVM of its own, which dies with it."""
    return Pipeline(kafka_broker, tmp_path)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("sealed", marks=LONG),  # the former attempt is taken, nothing is open
        pytest.param("prepared@2", marks=LONG),  # transactions are open and undecided
        "decided@2",  # decided, not one committed
        pytest.param("settled-some@2", marks=LONG),  # decided, some committed
        pytest.param("settled@2", marks=LONG),  # all committed, Spark does not know it yet
    ],
)
def test_driver_killed(alone: Pipeline, spark: SparkSession, place: str) -> None:
    name, _, nth = place.partition("@")
    alone.feed(6000)
    alone.run(expect=KILLED, failpoints=f"{name}=kill@{nth or 1}")
    alone.feed(1000)
    alone.resume(spark)
    alone.assert_exactly_once()
    alone.assert_ordered()
    assert alone.open_transactions() == ()


@pytest.mark.proof
@pytest.mark.parametrize("place", ["prepared", pytest.param("decided", marks=LONG)])
def test_driver_killed_after_a_shuffle(pipeline: Pipeline, spark: SparkSession, place: str) -> None:
    pipeline.feed(4000)
    pipeline.run(kind="shuffle", expect=KILLED, failpoints=f"{place}=kill@2")
    pipeline.resume(spark, kind="shuffle")
    pipeline.assert_exactly_once()


@pytest.mark.parametrize("place", ["task-wrote", pytest.param("task-prepared", marks=LONG)])
def test_python_worker_killed(pipeline: Pipeline, place: str) -> None:
    """Spark runs the task again under the next attempt's id; the lost one is aborted."""
    pipeline.feed(4000)
    pipeline.run(failpoints=f"{place}=kill@2")
    pipeline.assert_exactly_once()
    assert pipeline.open_transactions() == ()


@pytest.mark.proof
@pytest.mark.parametrize(
    "place", ["decided", pytest.param("prepared", marks=LONG), pytest.param("settled", marks=LONG)]
)
def test_counts_in_spark_state_stay_exact(
    pipeline: Pipeline, spark: SparkSession, place: str
) -> None:
    pipeline.feed(6000)
    pipeline.run(kind="count", expect=KILLED, failpoints=f"{place}=kill@2")
    pipeline.feed(1000)
    pipeline.resume(spark, kind="count")
    pipeline.assert_counts()
