"""A source that gives its rows once is refused before the first row; one that seems to be such a
source, and is none, is read again exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks import start_exactly_once
from tests.integration.hazards.spark_job import Job
from tests.support.pipeline import wait_until


def socket(spark: SparkSession) -> DataFrame:
    """Spark connects with the first batch, so nobody has to listen there."""
    source = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", 9)
    return source.load()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_socket_is_refused(job: Job, guarantee: str) -> None:
    with pytest.raises(ConfigurationError, match="source 'socket', which cannot be read") as error:
        job.deliver(df=socket(job.spark), guarantee=guarantee)
    assert guarantee in str(error.value)
    assert "Kafka topic" in str(error.value)
    assert not Path(job.checkpoint).exists(), "refused after something was written"


def test_a_socket_is_refused_wherever_it_stands(job: Job) -> None:
    looked_up = job.frame().selectExpr("key", "CAST(value AS STRING) AS value")
    both = looked_up.unionByName(socket(job.spark).selectExpr("CAST('k' AS BINARY) key", "value"))
    for df in (both, both.where("value > 'a'").dropDuplicates(["value"])):
        with pytest.raises(ConfigurationError, match="'socket'"):
            job.deliver(df=df)


def test_a_socket_may_be_read_at_most_once(job: Job) -> None:
    with pytest.raises(Exception, match="onnection refused"):
        job.deliver(df=socket(job.spark), guarantee="at_most_once")


@pytest.mark.long
def test_rate_gives_the_same_rows_again(job: Job, die_at: Callable[[str], None]) -> None:
    """Its rows are computed from the offsets and a moment that the checkpoint keeps."""

    def rows() -> DataFrame:
        source = job.spark.readStream.format("rate").option("rowsPerSecond", 20)
        return source.load().selectExpr("concat(timestamp, ' ', value) AS value")

    def start() -> Any:
        return start_exactly_once(
            rows(),
            job.sink,
            checkpoint_location=job.checkpoint,
            trigger={"processingTime": "1 second"},
        )

    def run_until(rows: int) -> None:
        query = start()
        wait_until(lambda: len(job.visible()) >= rows or not query.isActive, what="rows")
        query.drain()
        assert query.awaitTermination(300)

    run_until(20)
    die_at("settled-some")
    with pytest.raises(RuntimeError, match="settled-some"):
        start().awaitTermination(300)
    die_at("")
    before = len(job.visible())
    run_until(before + 20)
    seen = sorted(int(value.rsplit(" ", 1)[1]) for _, value in job.visible())
    assert seen == list(range(len(seen))), "rows of the batch that died differ, or came twice"
