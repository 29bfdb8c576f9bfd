"""Rows that a topic cannot take: both writers refuse the same ones, in the same words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_eos.arrow.producer.writer import batch_builder
from airflow_eos.errors import RowError, TopicError
from airflow_eos.kafka.client.records import HEADER_BYTES, first_record
from airflow_eos.kafka.destination import Destination, _larger
from tests.unit.kafka.record_rows import HEADERS, as_bytes, record_rows

LARGE = "x" * 3_000


def cluster(limit: int = 2_000, **told: str) -> Any:
    def leaders(name: str, **_: Any) -> dict[int, int]:
        if name == "absent":
            raise TopicError("topic 'absent' does not exist")
        return {0: 1}

    config = {"max.message.bytes": str(limit), **told}
    return SimpleNamespace(cluster=SimpleNamespace(leaders=leaders, topic_config=lambda *_: config))


def refusals(
    rows: pa.RecordBatch, wire: Any, compression: str = "none", topic: str | None = "t"
) -> list[str]:
    """What each writer says of the rows; empty: it takes them."""
    to = Destination(wire, topic=topic, compression=compression)
    said = []
    for check in (
        lambda: to.require_sendable(rows),
        lambda: batch_builder(rows, to.topic, to.topics, to.codec),
    ):
        try:
            check()
            said.append("")
        except (RowError, TopicError) as error:
            said.append(str(error))
    return said


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(record_rows(), st.sampled_from([200, 9_000, 80_000]), st.sampled_from(["none", "lz4"]))
def test_rows_of_any_size_are_refused_by_both_writers_or_by_none(
    rows: pa.RecordBatch, limit: int, compression: str
) -> None:
    plain, arrow = refusals(rows, cluster(limit), compression)
    assert plain == arrow


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": ["k"]}, "no column 'value'"),
        ({"value": [1]}, "column 'value' is int64"),
        ({"value": ["v"], "key": [1.5]}, "column 'key' is double"),
        ({"value": ["v"], "timestamp": ["now"]}, "column 'timestamp' is string"),
        ({"value": ["v", "w"], "timestamp": [1, -1]}, "row 1 has the timestamp -1 ms"),
        ({"value": ["v"], "partition": ["0"]}, "column 'partition' is string"),
        ({"value": ["v", "w"], "partition": [0, 1]}, "row 1 is for partition 1 of topic 't'"),
        ({"value": ["v"], "headers": [["h"]]}, "column 'headers' is list"),
        ({"value": ["v"], "headers": [[{"key": "h", "value": 1}]]}, "'headers.value' is int64"),
        (
            {"value": ["v"], "headers": pa.array([[{"key": None, "value": b"1"}]], HEADERS)},
            "a header without a key",
        ),
        ({"value": ["v", "w"], "topic": ["t", "absent"]}, "'absent' does not exist"),
        ({"value": ["v", "w"], "topic": ["u", None]}, ""),
        ({"value": ["v"] * 99 + [LARGE], "key": [f"k{n}" for n in range(100)]}, "key b'k99' needs"),
        ({"value": ["v", LARGE], "topic": ["u", None]}, "topic 't' takes 2000"),
        (
            {"value": ["v"], "headers": pa.array([[{"key": "h", "value": LARGE}]], HEADERS)},
            "the row without a key needs 3",
        ),
        ({"value": ["v"], "key": ["k" * 3_000]}, f"key b'{'k' * 60}...' needs"),
    ],
)
def test_both_writers_refuse_a_row_in_the_same_words(columns: Any, said: str) -> None:
    plain, arrow = refusals(pa.RecordBatch.from_pydict(columns), cluster())
    assert plain == arrow
    assert said in plain
    assert bool(plain) == bool(said)


def test_without_any_topic_both_writers_refuse() -> None:
    plain, arrow = refusals(pa.RecordBatch.from_pydict({"value": ["v"]}), cluster(), topic=None)
    assert plain == arrow
    assert "no column 'topic', and the sink names no topic" in plain


@pytest.mark.parametrize("kind", ["uncompressed", "producer"])
def test_a_row_is_measured_as_its_topic_stores_it(kind: str) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [LARGE]})
    plain, arrow = refusals(rows, cluster(**{"compression.type": kind}), "lz4")
    assert plain == arrow
    assert ("set compression.type=producer" in plain) == (kind == "uncompressed")


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_a_row_of_exactly_the_limit_fits_and_one_byte_more_does_not(more: int, fits: bool) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [LARGE], "key": ["k"]})
    needed = HEADER_BYTES + len(first_record(b"k", as_bytes(LARGE)))
    plain, arrow = refusals(rows, cluster(needed - more))
    assert plain == arrow
    assert (plain == "") == fits


def test_only_rows_that_may_be_too_large_are_looked_at_one_by_one() -> None:
    rows = pa.RecordBatch.from_pydict({"value": ["v"] * 500 + [LARGE] + ["v"] * 500})
    assert list(_larger(rows, 2_000)) == [500]
    assert list(_larger(rows, 20_000)) == []
