"""A start that is going to be refused stops nobody: a term that is taken ends a healthy driver.

Real Spark and a real broker. A query runs; a second start on its checkpoint is refused for one
reason or another; the first one's term stands, and it delivers what comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.backend import TOPICS
from airflow_eos.core.checkpoint.terms import newest_term
from airflow_eos.core.checkpoint.topics import SourceTopicIds
from airflow_eos.core.delivery.query import ExactlyOnceQuery
from airflow_eos.core.protocol.decision import encode
from airflow_eos.errors import ConfigurationError, EosError, TopicError
from airflow_eos.local import EmbeddedKafka
from airflow_eos.sinks import start_exactly_once
from airflow_eos.sources import ArrowKafkaSource
from tests.integration.hazards.direct import wait_for
from tests.integration.hazards.spark_job import Job

NAME = "healthy"


@pytest.fixture
def job(spark: SparkSession, kafka_broker: EmbeddedKafka, tmp_path: Path) -> Job:
    made = Job(kafka_broker, tmp_path)
    made.spark = spark
    return made


@pytest.fixture
def healthy(job: Job) -> Iterator[ExactlyOnceQuery]:
    job.feed(20)
    query = start_exactly_once(
        job.frame(), job.sink, checkpoint_location=job.checkpoint, query_name=NAME
    )
    wait_for(lambda: len(job.visible()) == 20)
    yield query
    query.stop()


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_mode": "complete"}, "with output_mode 'complete'"),
        ({"output_mode": "apend"}, "output_mode 'apend': expected 'append', "),
        ({"query_name": NAME}, "name 'healthy' is running"),
        ({"df": lambda job: job.frame().sort("value")}, "with output_mode 'append'"),
    ],
    ids=["wrong mode", "no mode", "same name", "unsupported plan"],
)
def test_a_second_start_that_spark_refuses(
    job: Job, healthy: ExactlyOnceQuery, changes: dict[str, Any], words: str
) -> None:
    given = {
        name: value(job) if isinstance(value, Callable) else value  # type: ignore[arg-type]
        for name, value in changes.items()
    }
    _refused(job, healthy, ConfigurationError, words, **given)


@pytest.mark.parametrize("source", ["Spark's", "ours"])
def test_a_second_start_whose_input_is_missing(
    job: Job, healthy: ExactlyOnceQuery, source: str
) -> None:
    if source == "ours":
        rows: Any = ArrowKafkaSource(job.bootstrap, "no-such-input").select("key", "value")
    else:
        rows = job.frame(subscribe="no-such-input")
    _refused(job, healthy, TopicError, "no-such-input.*does not exist", df=rows)


@pytest.mark.long
def test_a_second_start_whose_input_is_another_than_was_read(
    job: Job, healthy: ExactlyOnceQuery
) -> None:
    """As on a mirror of the cluster, whose topics have the same names and other ids."""
    store = CheckpointStore.open(job.checkpoint)
    noted = store.get(TOPICS)
    assert noted is not None
    term = newest_term(store)
    store.put(TOPICS, encode(SourceTopicIds(ids={f"{job.name}-in": "of-another"})))
    try:
        with pytest.raises(TopicError, match="deleted and made again"):
            job.deliver()
    finally:
        store.put(TOPICS, noted)
    assert newest_term(store) == term
    assert healthy.isActive


def _refused(
    job: Job, healthy: ExactlyOnceQuery, kind: type[EosError], words: str, **given: Any
) -> None:
    """It raises that, and the one that runs is not disturbed."""
    store = CheckpointStore.open(job.checkpoint)
    term = newest_term(store)
    with pytest.raises(kind, match=words):
        job.deliver(**given)
    assert newest_term(store) == term
    job.feed(20)
    wait_for(lambda: len(job.visible()) == 40)
    assert healthy.isActive
    job.assert_exactly_once()
