"""A real query, observed: each of its batches is one trace from plan to commit."""

from __future__ import annotations

from itertools import pairwise

import pyarrow.dataset as ds
import pytest

from airflow_eos.sinks import FileSink, start_exactly_once
from tests.support.otlp import attributes, otlp_receiver, process_that_sends_to

pytestmark = pytest.mark.long

STEPS = ["plan", "look", "prepare", "decide", "settle", "commit"]


def test_each_batch_of_a_real_query_is_one_trace_and_its_rows_are_counted(spark, tmp_path):
    given = tmp_path / "given"
    for _ in range(3):
        spark.range(100).coalesce(1).write.mode("append").parquet(str(given))
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(given))
    sink, checkpoint = FileSink(str(tmp_path / "out")), tmp_path / "checkpoint"

    with otlp_receiver() as receiver, process_that_sends_to(receiver.address) as exit_now:
        query = start_exactly_once(
            rows, sink, checkpoint_location=str(checkpoint), trigger={"availableNow": True}
        )
        assert query.awaitTermination(300)
        exit_now()

    assert ds.dataset(tmp_path / "out").count_rows() == 300
    wholes = [span for span in receiver.spans() if span.name == "batch"]
    assert [attributes(each)["eos.batch"] for each in wholes] == ["0", "1", "2"]
    assert {attributes(each)["checkpoint"] for each in wholes} == {str(checkpoint)}
    for number, whole in enumerate(wholes):
        steps = receiver.steps_of(whole)
        assert [step.name for step in steps] == STEPS
        assert all(b.start_time_unix_nano == a.end_time_unix_nano for a, b in pairwise(steps))
        committed_ns = (checkpoint / "commits" / str(number)).stat().st_mtime_ns
        rounding_ns = 20e6  # Spark tells milliseconds, and a disk's clock ticks
        assert whole.start_time_unix_nano < committed_ns
        assert committed_ns < whole.end_time_unix_nano + rounding_ns
    (delivered,) = receiver.points("eos.rows.delivered").values()
    (read,) = receiver.points("eos.rows.read").values()
    assert (delivered.as_int, read.as_int) == (300, 300)
    assert {dict(by)["verb"] for by in receiver.points("eos.store.request.duration")} >= {
        "get",
        "list",
        "create",
        "put",
    }
