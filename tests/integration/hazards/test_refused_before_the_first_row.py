"""Bad input is refused before the first row, with what was found and what to do; nothing is lost.

Real Spark and a real broker; one session for all. After each refusal nothing has been written, and
where the input is put right the same checkpoint delivers every row once.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_eos.core.checkpoint.locations import LocalFiles
from airflow_eos.errors import (
    ConfigurationError,
    EosError,
    KafkaUnavailableError,
    OwnershipError,
    StoreError,
    TimeoutBudgetError,
    TopicError,
)
from airflow_eos.kafka import sink as kafka_sink
from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.direct import wait_for
from tests.integration.hazards.spark_job import Job
from tests.integration.hazards.test_shapes import set_limit
from tests.support.topics import produce

pytestmark = pytest.mark.long


@pytest.fixture
def job(spark: SparkSession, kafka_broker: EmbeddedKafka, tmp_path: Path) -> Iterator[Job]:
    made = Job(kafka_broker, tmp_path)
    made.spark = spark
    made.feed(20)
    yield made
    for query in spark.streams.active:
        query.stop()


def refused(kind: type[EosError], action: Callable[[], object], *words: str) -> None:
    """The action is refused with these words."""
    with pytest.raises(kind) as error:
        action()
    for word in words:
        assert word in str(error.value), str(error.value)


def put_right(job: Job) -> None:
    """After the refusal nothing was written; given right, all rows come once."""
    assert job.visible() == []
    assert job.open_transactions() == ()
    job.deliver()
    job.assert_exactly_once()


def test_an_unreachable_broker(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kafka_sink._LOOK_FOR_BROKER_S < 30
    monkeypatch.setattr(kafka_sink, "_LOOK_FOR_BROKER_S", 3.0)
    nowhere = replace(job.sink, bootstrap_servers="127.0.0.1:1")
    refused(KafkaUnavailableError, lambda: job.deliver(nowhere), "127.0.0.1:1", "Check that")
    put_right(job)


def test_a_cluster_of_the_source_that_does_not_answer_has_refused_nothing(job: Job) -> None:
    """It was told as a refusal, with another remedy than the brokers' return."""
    quick = {"kafka.default.api.timeout.ms": "2000", "kafka.request.timeout.ms": "1000"}
    away = job.frame(**{"kafka.bootstrap.servers": "127.0.0.1:1", **quick})
    refused(KafkaUnavailableError, lambda: job.deliver(df=away), f"{job.name}-in", "has a leader")
    put_right(job)


def test_a_missing_topic(job: Job) -> None:
    sink = replace(job.sink, topic="no-such-topic")
    refused(TopicError, lambda: job.deliver(sink), "'no-such-topic' does not exist", "Create it")
    put_right(job)


def test_a_checkpoint_of_another_pipeline(job: Job, kafka_broker: EmbeddedKafka) -> None:
    job.deliver()
    sink = replace(job.sink, transactional_id_prefix="mine-now")
    cluster = f"cluster_id '{kafka_broker.cluster_id}'"
    refused(
        OwnershipError,
        lambda: job.deliver(sink),
        f"belongs to kafka 'sink' ({cluster}, transactional_id_prefix '{job.name}')",
        f"this query uses kafka 'sink' ({cluster}, transactional_id_prefix 'mine-now')",
        "a new checkpoint location",
    )
    job.feed(5)
    job.deliver()
    job.assert_exactly_once()


def test_a_prefix_of_another_checkpoint(job: Job) -> None:
    job.deliver()
    other = str(job.folder / "other")
    refused(
        OwnershipError,
        lambda: job.deliver(checkpoint_location=other),
        f"belongs to the checkpoint {job.checkpoint}, not to {other}",
        "Use another prefix",
    )
    job.assert_exactly_once()


def test_a_checkpoint_put_back_from_an_older_copy(job: Job) -> None:
    job.deliver()
    copy = job.folder / "copy"
    shutil.copytree(job.checkpoint, copy)
    for _ in range(3):
        job.feed(5)
        job.deliver()
    newest = job.folder / "newest"
    shutil.move(job.checkpoint, newest)
    shutil.copytree(copy, job.checkpoint)
    words = ("restored from an older copy", "Restore the newest copy")
    refused(OwnershipError, job.deliver, *words)
    job.assert_exactly_once()
    shutil.rmtree(job.checkpoint)
    shutil.move(newest, job.checkpoint)
    job.feed(5)
    job.deliver()
    job.assert_exactly_once()


def test_a_lost_checkpoint(job: Job) -> None:
    job.deliver()
    shutil.rmtree(job.checkpoint)
    refused(
        OwnershipError, job.deliver, "Another checkpoint was at this place", "was lost, deleted"
    )
    job.assert_exactly_once()


def test_another_cluster_under_the_same_address(job: Job, kafka_broker: EmbeddedKafka) -> None:
    job.deliver()
    file = Path(job.checkpoint) / "eos" / "pipeline.json"
    file.write_text(file.read_text().replace(kafka_broker.cluster_id, "AnotherClusterOfKafka1"))
    refused(
        OwnershipError,
        job.deliver,
        "belongs to kafka 'sink' (cluster_id 'AnotherClusterOfKafka1', ",
        f"this query uses kafka 'sink' (cluster_id '{kafka_broker.cluster_id}', ",
    )
    job.assert_exactly_once()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"transaction_timeout": timedelta(hours=1)},
            ("3600 s", "transaction.max.timeout.ms of 900 s", "Lower transaction_timeout"),
        ),
        (
            {"recover_within": timedelta(minutes=2)},
            ("is 60 s", "(recover_within) 120 s = 130 s", "Raise transaction_timeout"),
        ),
    ],
    ids=["above the broker's maximum", "below what was promised"],
)
def test_a_timeout(job: Job, changes: dict[str, Any], words: tuple[str, ...]) -> None:
    refused(TimeoutBudgetError, lambda: job.deliver(replace(job.sink, **changes)), *words)
    put_right(job)


def test_a_store_that_overwrites(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    put = LocalFiles.put

    def overwriting(self: LocalFiles, path: str, file: bytes, *, mode: Any) -> object:
        return put(self, path, file, mode="overwrite")

    monkeypatch.setattr(LocalFiles, "put", overwriting)
    refused(StoreError, job.deliver, "let a second create replace the first", "If-None-Match")
    monkeypatch.undo()
    put_right(job)


def test_arguments_that_cannot_work(job: Job) -> None:
    frame, batch = job.frame(), job.spark.createDataFrame([("k", "v")], "key string, value string")
    connect = SimpleNamespace(isStreaming=True, sparkSession=SimpleNamespace())
    for changes, words in (
        ({"df": frame.select("key")}, ("no column 'value'", "Select one")),
        ({"df": frame.selectExpr("1 AS value")}, ("'value' is of type int", "Cast it")),
        ({"df": batch}, ("not streaming", "spark.readStream")),
        ({"df": connect}, ("Spark Connect", "spark-submit")),
        ({"guarantee": "exactly_twice"}, ("'exactly_twice'", "'at_least_once'")),
        ({"trigger": {"continuous": "1 second"}}, ("continuous", "processingTime")),
        ({"checkpoint_location": "hdfs://name/checkpoint"}, ("hdfs", "HADOOP_CONF_DIR")),
    ):
        kind = StoreError if "checkpoint_location" in changes else ConfigurationError
        refused(kind, partial(job.deliver, **changes), *words)
    put_right(job)


def test_a_row_that_is_larger_than_the_topic_takes(job: Job) -> None:
    """Refused by name; the rows before it stay, once; with a higher limit all are delivered."""
    set_limit(job.bootstrap, f"{job.name}-out", 3000)
    job.deliver()
    large = ("the-large-one", os.urandom(10_000).hex())  # no codec makes that small
    job.feed(10)
    produce(job.bootstrap, f"{job.name}-in", [large])
    job.expected.append(large)
    with pytest.raises(Exception, match="the-large-one") as error:
        job.deliver()
    assert "max.message.bytes" in str(error.value)
    assert len(job.visible()) == 20
    wait_for(lambda: job.open_transactions() == ())
    set_limit(job.bootstrap, f"{job.name}-out", 1_000_000)
    job.deliver()
    job.assert_exactly_once()
