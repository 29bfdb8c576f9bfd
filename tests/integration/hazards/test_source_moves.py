"""The source changes under a running stream: partitions grow, retention overtakes the reader, the
topic is deleted, or deleted and made again. Nothing of it goes by in silence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import DataFrame, SparkSession

from airflow_eos.core.checkpoint import topics
from airflow_eos.core.delivery.policy import CheckpointPolicy
from airflow_eos.core.protocol.decision import Guarantee
from airflow_eos.errors import TopicError
from airflow_eos.local import EmbeddedKafka
from airflow_eos.sinks import start_exactly_once
from tests.integration.hazards.spark_job import Job
from tests.support.pipeline import wait_until

pytestmark = pytest.mark.long

PAUSED = CheckpointPolicy(interval=timedelta(milliseconds=200), min_pause=timedelta(minutes=5))
QUICK = CheckpointPolicy(interval=timedelta(milliseconds=200))


class Moving(Job):
    """A pipeline whose input topic is not left alone."""

    @property
    def topic(self) -> str:
        return f"{self.name}-in"

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def started(self, policy: CheckpointPolicy, df: DataFrame | None = None) -> Any:
        return start_exactly_once(
            self.frame() if df is None else df,
            self.sink,
            checkpoint_location=self.checkpoint,
            policy=policy,
        )

    def until_all_visible(self) -> None:
        wait_until(lambda: len(self.visible()) >= len(self.expected), what="the rows")

    def delete(self) -> None:
        for answer in self.admin.delete_topics([self.topic]).values():
            answer.result(30)
        wait_until(lambda: self.topic not in self.admin.list_topics().topics, what="deletion")

    def make_again(self) -> None:
        def made() -> bool:
            with contextlib.suppress(Exception):
                self.broker.create_topic(self.topic, self.partitions)
                return True
            return False

        wait_until(made, what="the topic to be made again")

    def ends_with(self, query: Any, *words: str) -> None:
        """The stream ends with an error that says so."""
        with pytest.raises(Exception, match="|".join(words)):
            assert not query.awaitTermination(240), "it ended as if nothing had happened"


@pytest.fixture
def job(spark: SparkSession, kafka_broker: EmbeddedKafka, tmp_path: Path) -> Iterator[Moving]:
    made = Moving(kafka_broker, tmp_path)
    made.spark = spark
    made.feed(60)
    yield made
    for query in spark.streams.active:
        query.stop()


def test_partitions_that_grow_are_read_from_their_beginning(job: Moving) -> None:
    query = job.started(QUICK)
    job.until_all_visible()
    wanted = job.partitions + 2
    for answer in job.admin.create_partitions([NewPartitions(job.topic, wanted)]).values():
        answer.result(30)
    job.feed(200, keys=200)
    job.until_all_visible()
    query.drain()
    assert query.awaitTermination(300)
    job.assert_exactly_once()
    assert f'"{wanted - 1}"' in newest_offsets(job), "no row came by way of the new partitions"


def test_retention_that_overtakes_the_reader_ends_the_stream(job: Moving) -> None:
    query = job.started(PAUSED)
    job.until_all_visible()
    job.feed(300)
    gone = [TopicPartition(job.topic, p, OFFSET_END) for p in range(job.partitions)]
    for answer in job.admin.delete_records(gone).values():
        answer.result(30)
    lost = job.expected[60:]
    job.feed(30)
    query._run.ending.set()  # the pause is over
    job.ends_with(query, "failOnDataLoss", "KAFKA_DATA_LOSS")
    assert not set(lost) & set(job.visible())
    assert len(job.visible()) == 60


def test_a_topic_that_is_deleted_ends_the_stream(job: Moving) -> None:
    query = job.started(QUICK)
    job.until_all_visible()
    job.delete()
    job.ends_with(query, "failOnDataLoss", "UnknownTopicOrPartition", "KAFKA_DATA_LOSS")
    assert len(job.visible()) == 60


@pytest.mark.parametrize("again", [6, 300], ids=["fewer rows", "more rows"])
def test_a_topic_that_is_made_again_ends_the_stream(job: Moving, again: int) -> None:
    """Its offsets mean other rows: with more of them than were read nothing else would tell."""
    query = job.started(PAUSED)
    job.until_all_visible()
    job.delete()
    job.make_again()
    job.feed(again)
    query._run.ending.set()
    job.ends_with(query, "failOnDataLoss", "made again", "KAFKA_DATA_LOSS")
    assert len(job.visible()) == 60
    with pytest.raises(Exception, match=r"made again|failOnDataLoss"):
        job.deliver()
    assert len(job.visible()) == 60


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_a_topic_that_was_made_again_is_refused_whatever_was_promised(
    job: Moving, guarantee: Guarantee
) -> None:
    job.deliver(guarantee=guarantee)
    job.delete()
    job.make_again()
    job.feed(300)
    with pytest.raises(TopicError, match="made again"):
        job.deliver(guarantee=guarantee)
    assert len(job.visible()) == 60


def test_without_the_ids_rows_of_the_new_topic_would_be_skipped_in_silence(
    job: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: why offsets alone are not enough."""
    monkeypatch.setattr(topics, "require_same_topics", lambda *_: None)
    query = job.started(PAUSED)
    job.until_all_visible()
    job.delete()
    job.make_again()
    job.feed(300)
    query._run.ending.set()
    wait_until(lambda: len(job.visible()) == 300, what="the rows after the old offsets")
    query.stop()
    assert len(job.expected) == 360


def newest_offsets(job: Moving) -> str:
    folder = Path(job.checkpoint) / "offsets"
    return max(folder.glob("[0-9]*"), key=lambda file: int(file.name)).read_text()
