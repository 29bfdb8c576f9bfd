"""What Spark 4.2 lets change of the sources of a checkpoint: refused by name, before the term."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.terms import newest_term
from airflow_eos.errors import ConfigurationError, ContinuityError, EosError, InputLostError
from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.spark_job import Job
from tests.support.topics import produce

pytestmark = pytest.mark.long

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


@pytest.fixture
def job(spark: SparkSession, kafka_broker: EmbeddedKafka, tmp_path: Path) -> Evolving:
    made = Evolving(kafka_broker, tmp_path)
    made.spark = spark
    for topic in ("a", "b", "c"):
        kafka_broker.create_topic(f"{made.name}-{topic}")
    return made


@contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def test_sources_do_not_come_go_or_change_places(job: Evolving) -> None:
    """Spark plans a batch with the offsets of the wrong source, and no start gets past it."""
    job.fill("a", "b")
    job.deliver(df=job.unnamed("a", "b"))
    job.refused(job.unnamed("a"), InputLostError, "the query does not read it")
    job.refused(job.unnamed("a", "b", "c"), ContinuityError, "2 sources, and the query has 3")
    job.refused(job.unnamed("b", "a"), ContinuityError, "have changed places")
    job.fill("b", "a")
    job.deliver(df=job.unnamed("a", "b"))
    job.assert_exactly_once()


def test_offset_log_2_and_names_are_refused(job: Evolving) -> None:
    job.fill("a")
    job.deliver(df=job.unnamed("a"))
    with configured(job.spark, FORMAT_2):
        job.refused(job.unnamed("a"), ConfigurationError, "offsetLog.formatVersion is 2: with it")
    with configured(job.spark, NAMES):
        job.refused(job.named("a"), ConfigurationError, "goes by the positions of sources")
    with configured(job.spark, NAMED_SINKS):
        job.refused(job.unnamed("a"), ConfigurationError, "only if its sink has a name")
    job.fill("a")
    job.deliver(df=job.unnamed("a"))
    job.assert_exactly_once()


def test_spark_does_not_start_again_over_a_batch_in_flight_of_offset_log_2(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing of ours is in it. Once this fails, log 2 and names of sources can be let in."""
    boom = [False, True, False]

    def write(df: DataFrame, _batch: int) -> None:
        df.count()
        if boom.pop(0):
            raise RuntimeError("the driver dies")

    def run(number: int) -> None:
        (tmp_path / f"{number}.txt").write_text("row\n")
        rows = spark.readStream.text(str(tmp_path))
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).foreachBatch(write).start().awaitTermination(300)

    with configured(spark, FORMAT_2):
        run(0)
        with pytest.raises(StreamingQueryException, match="the driver dies"):
            run(1)
        with pytest.raises(StreamingQueryException, match=r"None\.get"):
            run(2)
