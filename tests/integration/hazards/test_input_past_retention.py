"""The input of the batch in flight is gone (DeleteRecords): what docs/recovery.md says, done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from airflow_eos import cli
from airflow_eos.errors import EosError
from airflow_eos.local import EmbeddedKafka
from airflow_eos.sinks import KafkaSink, start_exactly_once
from tests.integration.hazards.spark_job import Job
from tests.support.pipeline import wait_until

pytestmark = pytest.mark.integration

FED, GONE, ALL = 300, 60, OFFSET_END


class Trimmed(Job):
    """Its input can lose its beginning."""

    def deliver(self, sink: KafkaSink | None = None, **changes: Any) -> None:
        """To the end of the input, or to the error; a busy machine may take its time."""
        query = start_exactly_once(
            changes.pop("df", None) or self.frame(),
            sink or self.sink,
            checkpoint_location=self.checkpoint,
            trigger={"availableNow": True},
        )
        query.awaitTermination()

    def lose_input(self, *, before: int) -> None:
        """Retention passes over the first offsets of every partition."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = [TopicPartition(f"{self.name}-in", p, before) for p in range(self.partitions)]
        for answer in admin.delete_records(wanted).values():
            answer.result(30)

    def refused_by_spark(self) -> None:
        with pytest.raises(Exception, match="failOnDataLoss"):
            self.deliver()

    def deliver_what_is_left(self) -> None:
        """One start with ``failOnDataLoss`` off."""
        self.deliver(df=self.frame(failOnDataLoss="false"))


@pytest.fixture
def job(spark: SparkSession, kafka_broker: EmbeddedKafka, tmp_path: Path) -> Iterator[Trimmed]:
    made = Trimmed(kafka_broker, tmp_path)
    made.spark = spark
    made.feed(FED)
    yield made
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def die_once_at(job: Trimmed, die_at: Callable[[str], None]) -> Callable[..., None]:
    def die(place: str, **changes: Any) -> None:
        die_at(place)
        with pytest.raises(RuntimeError, match=place):
            job.deliver(**changes)
        die_at("")

    return die


def goes_on(job: Trimmed) -> None:
    """The next rows come as ever, with ``failOnDataLoss`` on again."""
    before = len(job.visible())
    job.feed(90)
    job.deliver()
    seen = job.visible()
    assert len(seen) == before + 90
    assert set(job.expected[-90:]) <= set(seen)
    assert job.open_transactions() == ()


def test_a_batch_that_was_never_promised_delivers_what_is_left(
    job: Trimmed, die_once_at: Callable[..., None]
) -> None:
    die_once_at("prepared")
    job.lose_input(before=GONE)
    job.refused_by_spark()
    assert job.visible() == []
    job.deliver_what_is_left()
    left = job.visible()
    assert len(set(left)) == len(left) == FED - GONE * job.partitions
    goes_on(job)


def test_a_batch_that_readers_have_goes_on_without_its_input(
    job: Trimmed, die_once_at: Callable[..., None]
) -> None:
    die_once_at("settled")
    job.lose_input(before=ALL)
    job.refused_by_spark()
    job.deliver_what_is_left()
    job.assert_exactly_once()
    goes_on(job)


def test_a_promise_that_can_never_be_kept_is_accepted_as_it_is(
    job: Trimmed, die_once_at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part of it timed out, and its input is gone: only a person can let the pipeline go on."""
    short = replace(
        job.sink,
        transaction_timeout=timedelta(seconds=8),
        batch_within=timedelta(seconds=2),
        recover_within=timedelta(seconds=2),
    )
    die_once_at("settled-some", sink=short)
    wait_until(lambda: job.open_transactions() == (), what="the broker's own abort")
    there = job.visible()
    assert 0 < len(there) < FED
    job.lose_input(before=ALL)
    with pytest.raises(EosError, match="airflow-eos accept CHECKPOINT --batch 0"):
        job.deliver_what_is_left()
    command = ["accept", job.checkpoint, "-b", job.bootstrap, "--batch", "0", "--yes"]
    monkeypatch.setattr("sys.argv", ["airflow-eos", *command])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    job.deliver_what_is_left()
    assert job.visible() == there, "what was given up was not written, nothing came twice"
    goes_on(job)
