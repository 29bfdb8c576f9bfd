"""What each guarantee means where the driver is killed in the middle of the same batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_eos.core.protocol.decision import Guarantee
from airflow_eos.errors import OwnershipError
from airflow_eos.local import EmbeddedKafka
from tests.support.host import Host
from tests.support.pipeline import KILLED, Pipeline

pytestmark = pytest.mark.proof


@pytest.mark.parametrize(
    ("guarantee", "missing", "twice"),
    [
        pytest.param("exactly_once", 0, 0, marks=pytest.mark.proof),
        ("at_least_once", 0, 2000),
        ("at_most_once", 0, 0),
    ],
)
def test_the_driver_is_killed_after_the_tasks_have_written(
    kafka_broker: EmbeddedKafka,
    host: Host,
    tmp_path: Path,
    spark: SparkSession,
    guarantee: Guarantee,
    missing: int,
    twice: int,
) -> None:
    """Batch 1 (rows 2,000 to 4,000) is written and not over when its driver dies."""
    pipeline = Pipeline(kafka_broker, tmp_path, host=host)
    pipeline.feed(4000)
    pipeline.run(
        expect=KILLED,
        guarantee=guarantee,
        failpoints=f"{'settled' if guarantee == 'exactly_once' else 'written'}=kill@2",
    )
    pipeline.feed(1000)
    pipeline.resume(spark, guarantee=guarantee)
    found, fed = Counter(pipeline.visible()), Counter(pipeline.expected)
    assert (fed - found).total() == missing
    assert (found - fed).total() == twice


def test_at_most_once_leaves_out_what_a_killed_driver_had_only_begun(
    kafka_broker: EmbeddedKafka, host: Host, tmp_path: Path, spark: SparkSession
) -> None:
    """And a killed worker's rows, which its task has not ended, are not written by its retry."""
    pipeline = Pipeline(kafka_broker, tmp_path, host=host)
    pipeline.feed(4000)
    pipeline.run(expect=KILLED, guarantee="at_most_once", failpoints="spent=kill@2")
    pipeline.feed(1000)
    pipeline.resume(spark, guarantee="at_most_once")
    found, fed = Counter(pipeline.visible()), Counter(pipeline.expected)
    assert found - fed == Counter(), "nothing comes twice"
    assert (fed - found).total() == 2000, "batch 1 was begun, and nobody can tell how far"


def test_a_guarantee_is_not_changed_under_a_promise(
    kafka_broker: EmbeddedKafka, host: Host, tmp_path: Path, spark: SparkSession
) -> None:
    """Batch 1 is promised and visible in part: written at once it would come twice for good."""
    pipeline = Pipeline(kafka_broker, tmp_path, host=host)
    pipeline.feed(4000)
    pipeline.run(expect=KILLED, failpoints="settled-some=kill@2")
    seen = Counter(pipeline.visible())
    with pytest.raises(OwnershipError, match="promised with exactly_once"):
        pipeline.resume(spark, guarantee="at_least_once")
    assert Counter(pipeline.visible()) == seen, "nothing was written"
    pipeline.resume(spark)
    pipeline.assert_exactly_once()
    pipeline.feed(1000)
    pipeline.resume(spark, guarantee="at_least_once")
    pipeline.assert_exactly_once()
