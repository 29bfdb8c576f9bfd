"""Spark's offset log 2 and named sources on a running pipeline: exact, or refused before the term.

What Spark 4.2.0 does by itself is said beside each refusal: it was tried without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.terms import newest_term
from airflow_eos.errors import ConfigurationError, ContinuityError, EosError
from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.spark_job import Job
from tests.support.topics import produce

pytestmark = pytest.mark.integration

FORMAT_2 = {"spark.sql.streaming.offsetLog.formatVersion": "2"}
NAMES = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}
NAMED_SINKS = {"spark.sql.streaming.queryEvolution.enableSinkEvolution": "true"}


class Evolving(Job):
    """A pipeline that reads several topics, each by a source of its own."""

    def fill(self, *topics: str) -> None:
        """Thirty rows more in each."""
        for topic in topics:
            produce(self.bootstrap, f"{self.name}-{topic}", self.expect(30))

    def source(self, topic: str, name: str = "") -> DataFrame:
        reader = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", f"{self.name}-{topic}")
            .option("startingOffsets", "earliest")
        )
        return (reader.name(name) if name else reader).load().select("key", "value")

    def unnamed(self, *topics: str) -> DataFrame:
        return reduce(DataFrame.union, [self.source(topic) for topic in topics])

    def named(self, *topics: str) -> DataFrame:
        return reduce(DataFrame.union, [self.source(topic, topic) for topic in topics])

    def refused(self, df: DataFrame, error: type[EosError], words: str) -> None:
        """And whoever runs is not stopped."""
        store = CheckpointStore.open(self.checkpoint)
        before = newest_term(store)
        with pytest.raises(error, match=words):
            self.deliver(df=df)
        assert newest_term(store) == before

    def format_of(self, batch: int) -> str:
        return (Path(self.checkpoint) / "offsets" / str(batch)).read_text().partition("\n")[0]


@pytest.fixture
def job(spark: SparkSession, kafka_broker: EmbeddedKafka, tmp_path: Path) -> Evolving:
    made = Evolving(kafka_broker, tmp_path)
    made.spark = spark
    for topic in ("a", "b", "c"):
        kafka_broker.create_topic(f"{made.name}-{topic}")
    return made


@contextmanager
def configured(job: Job, settings: Mapping[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        job.spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            job.spark.conf.unset(name)


@pytest.fixture
def die_at(monkeypatch: pytest.MonkeyPatch):
    def die(job: Evolving, df: DataFrame, place: str) -> None:
        with monkeypatch.context() as dying:
            dying.setenv("EOS_FAILPOINTS", f"{place}=raise")
            with pytest.raises(RuntimeError, match=place):
                job.deliver(df=df)

    return die


def test_offset_log_2_is_exact_through_deaths(job: Evolving, die_at) -> None:
    with configured(job, FORMAT_2):
        for place in ("prepared", "decided"):
            job.fill("a")
            die_at(job, job.unnamed("a"), place)
            job.deliver(df=job.unnamed("a"))
    assert job.format_of(1) == "v2"
    job.assert_exactly_once()


def test_a_checkpoint_keeps_the_offset_log_that_it_began_with(job: Evolving) -> None:
    job.fill("a")
    job.deliver(df=job.unnamed("a"))
    job.fill("a")
    with configured(job, FORMAT_2):
        job.deliver(df=job.unnamed("a"))
    assert job.format_of(1) == "v1"
    job.assert_exactly_once()
    with configured(job, NAMES | FORMAT_2):
        job.refused(job.named("a"), ContinuityError, "1 source without names")


def test_named_sources_change_their_order_and_a_new_one_comes_while_a_batch_is_promised(
    job: Evolving, die_at
) -> None:
    with configured(job, NAMES | FORMAT_2):
        job.fill("a", "b")
        job.deliver(df=job.named("a", "b"))
        job.fill("a", "b")
        die_at(job, job.named("b", "a"), "decided")
        job.fill("a", "b", "c")
        job.deliver(df=job.named("c", "b", "a"))
    job.assert_exactly_once()


def test_a_named_source_goes_after_a_drain_and_does_not_come_back(job: Evolving, die_at) -> None:
    """Spark leaves the rows in flight out, and reads one that comes back from its beginning."""
    with configured(job, NAMES | FORMAT_2):
        job.fill("a", "b")
        job.deliver(df=job.named("a", "b"))
        job.fill("a", "b")
        die_at(job, job.named("a", "b"), "prepared")
        job.refused(job.named("a"), ContinuityError, "in flight, which reads rows of 'b'")
        job.deliver(df=job.named("a", "b"))
        job.fill("a")
        job.deliver(df=job.named("a"))
        job.refused(job.named("a", "b"), ContinuityError, "'b', which batch 1 read up to")
    job.assert_exactly_once()


def test_sources_by_position_do_not_come_go_change_places_or_get_names(job: Evolving) -> None:
    """Spark plans a batch with the offsets of the wrong source, and no start gets past it."""
    with configured(job, FORMAT_2):
        job.fill("a", "b")
        job.deliver(df=job.unnamed("a", "b"))
        for other in (job.unnamed("a"), job.unnamed("b"), job.unnamed("a", "b", "c")):
            job.refused(other, ContinuityError, "2 sources without names")
        job.refused(job.unnamed("b", "a"), ContinuityError, "have changed places")
        with configured(job, NAMES):
            job.refused(job.named("a", "b"), ContinuityError, "has 'a' and 'b'")
        job.fill("b", "a")
        job.deliver(df=job.unnamed("a", "b"))
    job.assert_exactly_once()


def test_names_that_spark_does_not_write_into_its_log_are_refused(job: Evolving) -> None:
    """Spark 4.2.0 goes by position there, though it has the names."""
    with configured(job, NAMES):
        job.refused(job.named("a", "b"), ConfigurationError, "formatVersion to 2")


def test_sinks_that_must_have_names_are_refused(job: Evolving) -> None:
    """Spark refuses ``foreachBatch`` then, and would after the term."""
    job.fill("a")
    job.deliver(df=job.unnamed("a"))
    with configured(job, NAMED_SINKS):
        job.refused(job.unnamed("a"), ConfigurationError, "only if its sink has a name")
