"""The driver, or a task that reads for itself, dies (SIGKILL) at each step of a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from tests.support.host import Host
from tests.support.pipeline import KILLED, Pipeline, wait_until


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, host: Host, tmp_path: Path) -> Pipeline:
    return Pipeline(kafka_broker, tmp_path, host=host)


@pytest.mark.proof
@pytest.mark.parametrize(
    "place",
    [
        pytest.param("prepared@2", marks=pytest.mark.proof),  # transactions are open and undecided
        pytest.param("decided@2", marks=pytest.mark.proof),  # decided, not one committed
        "settled-some@2",  # decided, some committed
        # all of the first batch committed, Spark does not know it yet
        pytest.param("settled", marks=pytest.mark.proof),
    ],
)
def test_driver_killed(pipeline: Pipeline, spark: SparkSession, place: str) -> None:
    name, _, nth = place.partition("@")
    pipeline.feed(6000)
    pipeline.run(kind="arrow", expect=KILLED, failpoints=f"{name}=kill@{nth or 1}")
    pipeline.feed(1000)
    pipeline.resume(spark, kind="arrow")
    pipeline.assert_exactly_once()
    pipeline.assert_ordered()
    assert pipeline.open_transactions() == ()


@pytest.mark.proof
def test_ranges_that_were_cut_are_gone_on_with_by_a_driver_that_cuts_none(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    """The batch in flight is cut as it was: its tasks are those that were promised."""
    pipeline.feed(6000)
    pipeline.run(
        kind="arrow", max_rows_per_task=150, expect=KILLED, failpoints="settled-some=kill@2"
    )
    pipeline.feed(1000)
    pipeline.resume(spark, kind="arrow")
    pipeline.assert_exactly_once()
    assert pipeline.open_transactions() == ()


@pytest.mark.proof
@pytest.mark.parametrize("place", ["task-wrote", "task-prepared"])
def test_python_worker_killed(pipeline: Pipeline, place: str) -> None:
    """Spark runs the task again, over the same range, under the next attempt's id."""
    pipeline.feed(4000)
    pipeline.run(kind="arrow", failpoints=f"{place}=kill@2")
    pipeline.assert_exactly_once()
    assert pipeline.open_transactions() == ()


@pytest.mark.proof
def test_a_promise_that_timed_out_is_replayed_by_spark_as_it_was_made_by_the_tasks(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    """The replay's hashes are made in the JVM, those of the promise were made in Arrow."""
    pipeline.feed(6000)
    pipeline.run_in_time(kind="arrow", timeout_s=4, failpoints="settled-some=kill@2")
    wait_until(lambda: pipeline.open_transactions() == (), what="the broker's own abort")
    pipeline.resume(spark, kind="arrow", timeout_s=30)
    pipeline.assert_exactly_once()
    pipeline.feed(1000)
    pipeline.resume(spark, kind="arrow")
    pipeline.assert_exactly_once()


@pytest.mark.proof
def test_a_checkpoint_of_sparks_own_source_is_gone_on_with_and_back(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    for kind in ("map", "arrow", "map", "arrow"):
        pipeline.feed(500)
        pipeline.resume(spark, kind=kind)
        pipeline.assert_exactly_once()
