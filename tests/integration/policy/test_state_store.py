"""RocksDB with changelog checkpoints: for new checkpoints; an older one keeps the store it has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.progress import StateSize, read_state_size
from airflow_eos.events import events_since, hours_completed, read_settled
from airflow_eos.sinks.source import stateful_spark_conf
from tests.integration.hazards.spark_job import Job
from tests.support.topics import produce

pytestmark = pytest.mark.long

PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@contextmanager
def configured(job: Job) -> Iterator[None]:
    for name, value in stateful_spark_conf().items():
        job.spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in stateful_spark_conf():
            job.spark.conf.unset(name)


def count(job: Job) -> None:
    counts = job.frame().groupBy("key").count()
    rows = counts.select("key", F.col("count").cast("string").alias("value"))
    job.deliver(df=rows, output_mode="update")


def provider(job: Job) -> str:
    """The store that Spark's log says, for the newest batch."""
    folder = Path(job.checkpoint) / "offsets"
    newest = max(folder.glob("[0-9]*"), key=lambda file: int(file.name))
    return str(json.loads(newest.read_text().splitlines()[1])["conf"][PROVIDER]).rsplit(".", 1)[-1]


def noted(job: Job) -> StateSize:
    size = read_state_size(CheckpointStore.open(job.checkpoint))
    assert size is not None
    return size


def test_counts_go_on_exactly_on_rocksdb_after_a_crash(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    with configured(job):
        job.feed(100)
        count(job)
        assert provider(job) == "RocksDBStateStoreProvider"
        changes = list(Path(job.checkpoint).glob("state/**/*.changelog"))
        assert changes, "no log of changes: whole copies were written"
        job.feed(100)
        with monkeypatch.context() as dying:
            dying.setenv("EOS_FAILPOINTS", "prepared=raise")
            with pytest.raises(RuntimeError, match="prepared"):
                count(job)
        count(job)
    job.assert_counts()
    size = noted(job)
    assert size.rows == 50
    assert size.file_bytes is not None
    assert size.batch_ms > 0


def test_a_checkpoint_of_the_default_store_resumes_with_it(job: Job) -> None:
    job.feed(100)
    count(job)
    assert provider(job) == "HDFSBackedStateStoreProvider"
    job.feed(100)
    with configured(job):
        count(job)
    assert provider(job) == "HDFSBackedStateStoreProvider"
    job.assert_counts()
    assert noted(job).file_bytes is None


def test_rows_behind_the_watermark_are_counted_over_two_drivers(job: Job) -> None:
    at = F.timestamp_seconds(F.split(F.col("value").cast("string"), ":")[1].cast("long"))
    timed = job.frame().withColumn("at", at).withWatermark("at", "5 seconds")
    windows = timed.groupBy(F.window("at", "20 seconds")).count()
    rows = windows.select(F.col("count").cast("string").alias("value"))
    job.feed(500)
    job.deliver(df=rows)
    assert noted(job).late_rows == 0
    for late in (3, 2):  # each in a window of its own: Spark counts what it has added up
        told = [("late", f"{job.name}:{20 * number}") for number in range(late)]
        produce(job.bootstrap, f"{job.name}-in", told)
        job.deliver(df=rows)
    size = noted(job)
    assert size.late_rows == 5
    assert size.late_counted == size.batch_id + 1


def test_an_hour_is_complete_when_its_windows_are_there_and_no_batch_sooner(job: Job) -> None:
    """The batch that moves the watermark gives no window of it: the next one does."""
    minute = F.split(F.col("value").cast("string"), ":")[1].cast("long")
    timed = job.frame(maxOffsetsPerTrigger="100").withColumn("at", F.timestamp_seconds(60 * minute))
    windows = timed.withWatermark("at", "90 minutes").groupBy(F.window("at", "1 hour")).count()
    job.feed(500)
    job.deliver(df=windows.select(F.col("count").cast("string").alias("value")))
    settled = read_settled(CheckpointStore.open(job.checkpoint), after=None)
    told = given = 0
    for event in events_since(None, settled, each_batch=True):
        told += len(hours_completed(event, since=datetime(1970, 1, 1, tzinfo=UTC)))
        given += (event.rows or {}).get("sink", 0)
        assert told == given
    assert told > 2
