"""Log lines in a file for each day and batch, each line once."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest

from demo.inputs import log_line
from tests.support.topics import produce

DAYS = ("2026-11-23", "2026-11-24", "2026-11-25")


@pytest.mark.examples
def test_each_line_is_in_the_file_of_its_day_once_and_a_batch_is_a_file_a_day(
    example, play, topic, kafka_broker, tmp_path
):
    logs, folder = topic("logs", 4), tmp_path / "logs"
    app = example(
        "log_sync",
        *("--input-topic", logs, "--folder", str(folder)),
        *("--max-offsets-per-trigger", "300"),
    )
    lines = [log_line(number) for number in range(600)]
    produce(kafka_broker.bootstrap_servers, logs, [*lines, ("web-0", "no time at all")])

    play(app, "prepared@1", "settled-some@2")

    kept = pq.read_table(folder, partitioning="hive").to_pylist()
    expected = Counter((value, json.loads(value)["at"][:10]) for _, value in lines)
    found = Counter((row["line"], str(row["day"])) for row in kept if row["host"])
    assert found == expected
    assert [row["line"] for row in kept if not row["host"]] == ["no time at all"]
    batches = len(list((app.checkpoint / "commits").glob("[0-9]*")))
    for day in DAYS:
        assert 0 < len(list((folder / f"day={day}").glob("[!_.]*"))) <= batches
