"""Interval, pause and number kept, each on a running stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.core.delivery.policy import CheckpointPolicy
from airflow_eos.sinks import start_exactly_once
from tests.integration.hazards.spark_job import Job
from tests.support.pipeline import wait_until

SECOND = timedelta(seconds=1)


@contextmanager
def running(job: Job, policy: CheckpointPolicy) -> Iterator[Any]:
    query = start_exactly_once(
        job.frame(), job.sink, checkpoint_location=job.checkpoint, policy=policy
    )
    try:
        yield query
    finally:
        query.stop()


def deliver(job: Job, batches: int) -> None:
    """One after the other: the rows of each are visible before those of the next are there."""
    for _ in range(batches):
        job.feed(5)
        wait_until(lambda: len(job.visible()) == len(job.expected), what="the rows of a batch")


def deliver_one(job: Job) -> None:
    """Of rows that were there before the start: no batch has only some of them, and then pauses."""
    wait_until(lambda: len(job.visible()) == len(job.expected), what="the rows of a batch")


def batches(query: Any) -> list[tuple[float, float]]:
    """When each was planned and ended, in seconds since the epoch, as Spark says."""
    told = [progress for progress in query.recentProgress if progress["numInputRows"]]
    return [
        (start, start + progress["durationMs"]["triggerExecution"] / 1000)
        for progress in told
        for start in [datetime.fromisoformat(progress["timestamp"]).timestamp()]
    ]


def settled(job: Job) -> list[float]:
    """When the rows of each batch became visible, by the decision's time; seconds."""
    folder = Path(job.checkpoint) / "eos" / "decisions"
    found = [max(file.stat().st_mtime for file in batch.iterdir()) for batch in folder.iterdir()]
    return sorted(found)


def logged(job: Job) -> set[str]:
    """What the checkpoint says of batches: planned and decided."""
    root = Path(job.checkpoint)
    found = [*(root / "offsets").glob("[0-9]*"), *(root / "eos" / "decisions").glob("*/*.json")]
    return {str(each.relative_to(root)) for each in found}


@pytest.mark.proof
def test_batches_start_at_the_interval(job: Job) -> None:
    """Spark has a tick each 2 s of its clock: a batch that took longer delays the next one, so that
    two may start nearer to each other than the interval, but never between the same two ticks. What
    Spark says is a little later than its tick, and so one may seem to be of the next.
    """
    with running(job, CheckpointPolicy(interval=2 * SECOND)) as query:
        deliver(job, 4)
        wait_until(lambda: len(batches(query)) >= 4, what="progress")
        starts = [start for start, _ in batches(query)]
    ticks = [int(start // 2) for start in starts]
    assert len(set(ticks)) >= len(ticks) - 1, starts
    job.assert_exactly_once()


@pytest.mark.proof
def test_a_pause_follows_each_batch(job: Job) -> None:
    """The next batch is planned no earlier than that after the last one was decided."""
    policy = CheckpointPolicy(interval=timedelta(milliseconds=100), min_pause=2 * SECOND)
    with running(job, policy) as query:
        deliver(job, 3)
        wait_until(lambda: len(batches(query)) >= 3, what="progress")
        starts, ends = [start for start, _ in batches(query)], settled(job)
    gaps = [start - end for end, start in zip(ends, starts[1:], strict=False)]
    assert all(gap >= 1.9 for gap in gaps), gaps
    job.assert_exactly_once()


CANCELLED = pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda query: query.drain(), id="drain"),
        pytest.param(lambda query: query.stop(), id="stop", marks=pytest.mark.proof),
        pytest.param(lambda query: query._query.stop(), id="stopped by Spark"),
    ],
)


@pytest.mark.proof
@CANCELLED
def test_a_pause_ends_when_somebody_ends_the_stream(job: Job, end: Callable[[Any], None]) -> None:
    job.feed(5)
    with running(job, CheckpointPolicy(min_pause=timedelta(minutes=5))) as query:
        deliver_one(job)
        end(query)
        assert query.awaitTermination(200), "it waits for the pause to be over"
    job.feed(5)
    job.deliver()
    job.assert_exactly_once()


@CANCELLED
def test_who_cancels_a_stream_removes_nothing_of_its_checkpoint(
    job: Job, end: Callable[[Any], None]
) -> None:
    """Flink's ``RETAIN_ON_CANCELLATION``: what was promised can be read, and the next goes on."""
    with running(job, CheckpointPolicy(interval=SECOND / 10)) as query:
        deliver(job, 2)
        before = logged(job)
        end(query)
        assert query.awaitTermination(300)
    assert len(before) >= 4
    assert before <= logged(job)
    job.feed(5)
    job.deliver()
    job.assert_exactly_once()


@pytest.mark.proof
def test_who_is_stopped_in_the_pause_delivers_no_row_twice(job: Job) -> None:
    """The batch is settled, and Spark has no ``commits/N`` of it yet."""
    job.feed(5)
    with running(job, CheckpointPolicy(min_pause=timedelta(minutes=5))):
        deliver_one(job)
        assert not (Path(job.checkpoint) / "commits" / "0").exists()
    job.feed(5)
    job.deliver()
    job.assert_exactly_once()


@pytest.mark.proof
def test_as_many_batches_are_kept_as_were_asked_for(job: Job) -> None:
    before = job.spark.conf.get("spark.sql.streaming.minBatchesToRetain")
    with running(job, CheckpointPolicy(interval=SECOND / 10, num_retained=3)) as query:
        deliver(job, 8)
        wait_until(lambda: len(batches(query)) >= 8, what="progress")
    for log in ("offsets", "commits", "eos/decisions"):
        names = [each.name for each in (Path(job.checkpoint) / log).iterdir()]
        kept = sorted(int(name) for name in names if name.isdigit())
        assert 3 <= len(kept) <= 5, (log, kept)
        assert kept[-1] >= 7
    assert job.spark.conf.get("spark.sql.streaming.minBatchesToRetain") == before
    job.deliver()
    job.assert_exactly_once()
