"""Where a first start begins, read by an app from a real topic; a later start goes on instead."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_eos.sinks.app import App, argument_parser
from tests.integration.hazards.spark_job import Job
from tests.support.pipeline import wait_until

pytestmark = pytest.mark.long

HOUR_MS = 3_600_000
# Brokers take no time stamp that is an hour ahead, and retention removes old ones.
BASE_MS = (time.time_ns() // 1_000_000 // HOUR_MS - 12) * HOUR_MS


def fill(job: Job, hours: range) -> None:
    """One row an hour to each partition, its time stamp told."""
    producer = Producer({"bootstrap.servers": job.bootstrap})
    refused: list[object] = []

    def told(error: object, _message: object) -> None:
        if error is not None:
            refused.append(error)

    for hour in hours:
        for partition in range(job.partitions):
            producer.produce(
                f"{job.name}-in",
                value=f"{partition}:{hour}",
                partition=partition,
                timestamp=BASE_MS + hour * HOUR_MS,
                on_delivery=told,
            )
    assert (producer.flush(30), refused) == (0, [])


def app(job: Job, start: str, trigger: str = "available-now") -> App:
    arguments = ["--bootstrap-servers", job.bootstrap, "--checkpoint", job.checkpoint]
    arguments += ["--start", start, "--trigger", trigger]
    return App.of(argument_parser("", prefix=job.name).parse_args(arguments))


def run(job: Job, start: str) -> set[str]:
    """Everything that is there; what readers have seen of the output since its beginning."""
    made = app(job, start)
    rows = made.read(job.spark, f"{job.name}-in").select("value")
    query = made.start(rows, topic=f"{job.name}-out", query_name=job.name)
    assert query.awaitTermination(300)
    seen = [value for _, value in job.visible()]
    assert len(set(seen)) == len(seen)
    return set(seen)


def expected(job: Job, hours: range) -> set[str]:
    return {f"{partition}:{hour}" for partition in range(job.partitions) for hour in hours}


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        (datetime.fromtimestamp(BASE_MS / 1000 + 3 * 3600, UTC).isoformat(), 3),
        (json.dumps({"0": 4, "1": 4, "2": 4}), 4),
    ],
    ids=["earliest", "timestamp", "offsets"],
)
def test_the_first_start_begins_there_and_the_next_one_goes_on(
    job: Job, start: str, first: int
) -> None:
    fill(job, range(6))
    assert run(job, start) == expected(job, range(first, 6))
    fill(job, range(6, 8))
    assert run(job, "earliest") == expected(job, range(first, 8)), "a checkpoint decides"


def test_latest_reads_what_comes_after_the_first_start(job: Job) -> None:
    fill(job, range(3))
    made = app(job, "latest", "200 milliseconds")
    rows = made.read(job.spark, f"{job.name}-in").select("value")
    query = made.start(rows, topic=f"{job.name}-out", query_name=job.name)
    began = Path(job.checkpoint) / "sources" / "0" / "0"  # Spark notes where it begins
    wait_until(began.exists, what="the first batch to be planned")
    fill(job, range(3, 5))
    wait_until(lambda: len(job.visible()) >= 2 * job.partitions, what="rows")
    query.drain()
    assert query.awaitTermination(300)
    fill(job, range(5, 7))
    assert run(job, "latest") == expected(job, range(3, 7)), "nothing is skipped while it is down"
