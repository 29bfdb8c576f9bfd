"""A batch that takes longer than its time: failed, its work aborted, its pieces gone, the next
start exact. Real Spark, a real broker, real files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, Verdict
from airflow_eos.core.delivery.policy import CheckpointPolicy
from airflow_eos.errors import BatchTimeoutError
from airflow_eos.sinks import FileSink, Output, start_exactly_once
from tests.integration.hazards.spark_job import Job

ROWS = 120
POLICY = CheckpointPolicy(timeout=timedelta(seconds=6))
LATER = CheckpointPolicy(timeout=timedelta(minutes=10))


def dawdling(batches: Iterator[pa.RecordBatch], marker: str) -> Iterator[pa.RecordBatch]:
    """Passes all its rows on, so that the sink has written some, and then takes its time."""
    for batch in batches:
        yield batch
        if Path(marker).exists():
            time.sleep(300)


@pytest.fixture
def slow(job: Job) -> Path:
    """While it is there, tasks take five minutes."""
    marker = job.folder / "slow"
    marker.touch()
    return marker


def frame(job: Job, slow: Path) -> DataFrame:
    df = job.frame()
    return df.mapInArrow(partial(dawdling, marker=str(slow)), df.schema)


def decisions(job: Job) -> list[Verdict]:
    log = DecisionLog(CheckpointStore.open(job.checkpoint))
    return [each.verdict for each in log.of_batch(0)]


@pytest.mark.proof
def test_it_is_failed_aborted_and_run_again_exactly(job: Job, slow: Path) -> None:
    job.feed(ROWS)
    started = time.monotonic()
    with pytest.raises(BatchTimeoutError, match=r"longer than 6 s \(timeout of the Checkpoint"):
        job.deliver(df=frame(job, slow), policy=POLICY)
    assert time.monotonic() - started < 250, "it waited for the tasks to end by themselves"
    assert Verdict.COMMIT not in decisions(job)
    assert job.visible() == []
    assert job.open_transactions() == (), "what the tasks had prepared stayed open"
    slow.unlink()
    job.deliver(df=frame(job, slow), policy=LATER)
    job.assert_exactly_once()
    assert job.open_transactions() == ()


@pytest.mark.proof
def test_its_staged_files_are_gone(job: Job, slow: Path) -> None:
    job.feed(ROWS)
    folder = job.folder / "rows"
    columns = ["key", "CAST(value AS STRING) AS value"]
    outputs = [Output("files", FileSink(str(folder)), rows=columns), Output("topic", job.sink)]

    def deliver(policy: CheckpointPolicy) -> None:
        query = start_exactly_once(
            frame(job, slow),
            outputs,
            checkpoint_location=job.checkpoint,
            trigger={"availableNow": True},
            policy=policy,
        )
        assert query.awaitTermination(500)

    with pytest.raises(BatchTimeoutError):
        deliver(POLICY)
    assert files(folder) == [], "pieces of the batch that was given up"
    assert job.open_transactions() == ()
    slow.unlink()
    deliver(LATER)
    job.assert_exactly_once()
    read: Any = job.spark.read.parquet(str(folder))
    assert sorted(row.value for row in read.collect()) == sorted(v for _, v in job.expected)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix == ".parquet"]
