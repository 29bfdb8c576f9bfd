"""Kafka → Spark → Kafka with the real parts, in the shapes that a batch can have."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_eos.core.delivery.spark_session import MANAGER
from airflow_eos.local import EmbeddedKafka
from tests.support.host import Host
from tests.support.pipeline import Pipeline
from tests.support.topics import read_topic

pytestmark = pytest.mark.proof


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, host: Host, tmp_path: Path) -> Pipeline:
    return Pipeline(kafka_broker, tmp_path, host=host)


@pytest.mark.parametrize("producer", ["arrow", pytest.param("librdkafka", marks=pytest.mark.proof)])
def test_rows_arrive_once_and_in_order_of_their_keys(
    pipeline: Pipeline, spark: SparkSession, producer: str
) -> None:
    pipeline.feed(5000)
    pipeline.run(kind="map", producer=producer)
    pipeline.assert_exactly_once()
    pipeline.assert_ordered()
    pipeline.feed(1)  # a batch of one row, and tasks without any
    pipeline.resume(spark, kind="map", producer=producer)
    pipeline.resume(spark, kind="map", producer=producer)  # nothing new: an empty run
    pipeline.assert_exactly_once()


def test_a_checkpoint_goes_on_by_the_manager_that_a_user_chose_for_its_logs_and_back(
    pipeline: Pipeline,
) -> None:
    """With ``tuned_spark_conf``, Spark's own choice writes no sums; what others wrote stays."""
    sparks = "org.apache.spark.sql.execution.streaming.checkpointing"
    by_context = {MANAGER: f"{sparks}.FileContextBasedCheckpointFileManager"}
    for conf, found in (
        ({}, {"0", ".0.crc"}),
        (by_context, {"0", ".0.crc", "1"}),
        ({}, {"0", ".0.crc", "1", "2", ".2.crc"}),
    ):
        pipeline.feed(500)
        pipeline.elsewhere().run(kind="map", spark_conf=conf)
        there = {file.name for file in (Path(pipeline.checkpoint) / "offsets").iterdir()}
        assert there == found
    pipeline.assert_exactly_once()


def test_rows_arrive_once_after_a_shuffle_with_retried_and_speculative_tasks(
    pipeline: Pipeline,
) -> None:
    pipeline.feed(3000)
    output = pipeline.elsewhere().run(
        kind="flaky",
        spark_conf={
            "spark.speculation": "true",
            "spark.speculation.interval": "50ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.3",
            "spark.speculation.minTaskRuntime": "50ms",
        },
        master="local[2,3]",
    )
    pipeline.assert_exactly_once()
    assert pipeline.open_transactions() == (), output[-3000:]


def test_at_least_once_loses_nothing_and_opens_no_transaction(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.feed(3000)
    pipeline.resume(spark, kind="map", guarantee="at_least_once")
    assert set(pipeline.visible()) == set(pipeline.expected)
    assert (
        read_topic(pipeline.bootstrap, f"{pipeline.name}-out", isolation="read_uncommitted")
        == pipeline.visible()
    )
