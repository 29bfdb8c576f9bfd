"""One pipeline on the shared session, with a policy of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.spark_job import Job


@pytest.fixture
def job(spark: SparkSession, kafka_broker: EmbeddedKafka, tmp_path: Path) -> Iterator[Job]:
    made = Job(kafka_broker, tmp_path)
    made.spark = spark
    yield made
    for query in spark.streams.active:
        query.stop()
