"""What Spark promises a Python sink that writes Arrow in a stream (``notes/data-source.md``)."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from tests.integration.hazards.spark_job import Job

pytestmark = pytest.mark.long

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers know no tests


class Rows(WriterCommitMessage):
    """What a task has written."""

    def __init__(self, rows: list[str]) -> None:
        self.rows = rows


class Writer(DataSourceStreamArrowWriter):
    """Says of each call what it was told, and in which process it is."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.calls = 0

    def say(self, call: str, messages: Any = (), batch: int | None = None) -> None:
        self.calls += 1
        rows = [row for message in messages if message is not None for row in message.rows]
        told = {"call": call, "calls": self.calls, "pid": os.getpid(), "batch": batch, "rows": rows}
        with (self.folder / "calls").open("a") as calls:
            calls.write(json.dumps(told) + "\n")

    def asked(self, name: str) -> bool:
        """Whether the test has asked for it; once."""
        with suppress(FileNotFoundError):
            (self.folder / name).unlink()
            return True
        return False

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Rows:
        rows = [row.decode() for each in iterator for row in each.column("value").to_pylist()]
        if self.asked("another-driver-plans-less"):
            entry = self.folder / "checkpoint" / "offsets" / "0"
            *head, ends = entry.read_text().splitlines()
            less = {topic: dict.fromkeys(at, 0) for topic, at in json.loads(ends).items()}
            entry.with_name(".0.crc").unlink(missing_ok=True)
            entry.write_text("\n".join([*head, json.dumps(less)]))
        self.say("write")
        return Rows(rows)

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        self.say("commit", messages, batchId)
        if self.asked("commit-fails"):
            raise RuntimeError("after it has committed")

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        self.say("abort", messages, batchId)


class Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return "eos-tests"

    def streamWriter(self, schema: Any, overwrite: bool) -> Writer:  # noqa: ARG002, N802
        return Writer(self.options["folder"])


def run(job: Job, expected: str = "nothing") -> list[dict[str, Any]]:
    """Over all that there is to read; what the sink was called for."""
    calls = job.folder / "calls"
    calls.write_text("")
    job.spark.dataSource.register(Source)
    query = (
        job.frame()
        .writeStream.format("eos-tests")
        .option("checkpointLocation", job.checkpoint)
        .option("folder", str(job.folder))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(300)
    except StreamingQueryException as error:
        assert expected in str(error), str(error)  # noqa: PT017 - not where nothing is expected
    return [json.loads(line) for line in calls.read_text().splitlines()]


def test_a_commit_that_fails_after_it_has_committed_is_aborted_and_comes_again(job: Job) -> None:
    job.feed(60)
    (job.folder / "commit-fails").touch()
    first, second = run(job, "after it has committed"), run(job)
    committed, aborted = (each for each in first if each["call"] != "write")
    assert (committed["call"], aborted["call"]) == ("commit", "abort")
    assert Counter(committed["rows"]) == Counter(value for _, value in job.expected)
    assert Counter(aborted["rows"]) == Counter(committed["rows"])
    assert [each["batch"] for each in second if each["call"] == "commit"] == [0]


def test_each_commit_is_of_a_writer_that_is_made_for_it_alone(job: Job) -> None:
    """In a process of Spark's that may be an old one or a new one, and never the driver's."""
    for _ in range(2):
        job.feed(60)
        [committed] = [each for each in run(job) if each["call"] == "commit"]
        assert committed["calls"] == 1
        assert committed["pid"] != os.getpid()


def test_a_commit_is_not_told_that_another_driver_has_replaced_its_range(job: Job) -> None:
    """A batch of ours is refused there: it asks the query for the plan that it evaluates."""
    job.feed(60)
    (job.folder / "another-driver-plans-less").touch()
    ended = [each for each in run(job) + run(job) if each["call"] != "write"]
    assert {each["call"] for each in ended} == {"commit"}
    came = Counter(row for each in ended for row in each["rows"])
    assert set(came.values()) == {2}, "each row comes twice, and nobody has complained"
