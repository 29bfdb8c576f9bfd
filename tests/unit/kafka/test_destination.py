"""Rows that a topic cannot take: whichever writer sends them, they are refused before any is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_eos.arrow.producer.writer import batches_of
from airflow_eos.arrow.records.columns import columns_of
from airflow_eos.arrow.records.encode import encode_runs
from airflow_eos.errors import RowError, TopicError
from airflow_eos.kafka.client.codecs import codec
from airflow_eos.kafka.client.records import HEADER_BYTES, first_record
from airflow_eos.kafka.destination import Destination, _larger
from tests.unit.kafka.record_rows import HEADERS, as_bytes, record_rows

LARGE = "x" * 3_000


def cluster(limit: int = 2_000, stored: str = "producer") -> Any:
    def leaders(name: str, **_: Any) -> dict[int, int]:
        if name == "absent":
            raise TopicError("topic 'absent' does not exist")
        return {0: 1}

    config = {"max.message.bytes": str(limit), "compression.type": stored}
    return SimpleNamespace(cluster=SimpleNamespace(leaders=leaders, topic_config=lambda *_: config))


def refused(
    rows: pa.RecordBatch, wire: Any, compression: str = "none", topic: str | None = "t"
) -> str:
    """What both writers say of the rows; empty: they take them."""
    to = Destination(wire, topic=topic, compression=compression)
    said = []
    for check in (lambda: to.require_sendable(rows), lambda: batches_of([rows], to)):
        try:
            check()
            said.append("")
        except (RowError, TopicError) as error:
            said.append(str(error))
    assert said[0] == said[1]
    return said[0]


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(record_rows(), st.sampled_from([200, 9_000, 80_000]), st.sampled_from(["none", "lz4"]))
def test_rows_are_refused_if_one_does_not_fit_alone_and_only_then(
    rows: pa.RecordBatch, limit: int, compression: str
) -> None:
    alone = [columns_of(rows.slice(n, 1), now_ms=0) for n in range(rows.num_rows)]
    bodies = [next(encode_runs(columns, [0, 1])).body for columns in alone]
    largest = HEADER_BYTES + max(len(codec(compression).compress(body)) for body in bodies)
    assert (refused(rows, cluster(limit), compression) != "") == (largest > limit)


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
def test_a_row_that_cannot_be_sent_is_refused_with_what_to_do(columns: Any, said: str) -> None:
    found = refused(pa.RecordBatch.from_pydict(columns), cluster())
    assert said in found
    assert bool(found) == bool(said)


def test_rows_without_any_topic_are_refused() -> None:
    said = refused(pa.RecordBatch.from_pydict({"value": ["v"]}), cluster(), topic=None)
    assert "no column 'topic', and the sink names no topic" in said


@pytest.mark.parametrize("kind", ["uncompressed", "producer"])
def test_a_row_is_measured_as_its_topic_stores_it(kind: str) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [LARGE]})
    said = refused(rows, cluster(stored=kind), "lz4")
    assert ("set compression.type=producer" in said) == (kind == "uncompressed")


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_a_row_of_exactly_the_limit_fits_and_one_byte_more_does_not(more: int, fits: bool) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [LARGE], "key": ["k"]})
    needed = HEADER_BYTES + len(first_record(b"k", as_bytes(LARGE)))
    assert (refused(rows, cluster(needed - more)) == "") == fits


def test_only_rows_that_may_be_too_large_are_looked_at_one_by_one() -> None:
    rows = pa.RecordBatch.from_pydict({"value": ["v"] * 500 + [LARGE] + ["v"] * 500})
    assert list(_larger(rows, 2_000)) == [500]
    assert list(_larger(rows, 20_000)) == []
