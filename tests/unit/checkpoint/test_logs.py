"""Spark's files: what Spark 4.2.0 wrote is understood, what it did not write is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_eos.checkpoint import spark_log as logs
from airflow_eos.errors import CheckpointFormatError

WRITTEN = Path(__file__).parent / "spark_4_2_0"
META = b'{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'
KAFKA = '{"orders":{"0":12,"1":7},"refunds":{"0":0}}'


def test_every_offsets_file_that_spark_wrote_is_read():
    found = sorted(WRITTEN.glob("*/offsets/[0-9]*"))
    assert len(found) == 7
    for path in found:
        entry = logs.parse_offsets(path.read_bytes(), path.name)
        assert entry.version == (2 if path.parts[-3] == "offsets_v2" else 1)
        assert list(entry.ends) == ["0"]
        assert entry.batch_timestamp_ms is not None
        assert entry.batch_timestamp_ms > 1_700_000_000_000


def test_every_commits_file_that_spark_wrote_is_read():
    found = sorted(WRITTEN.glob("*/commits/[0-9]*"))
    assert len(found) == 6
    for path in found:
        entry = logs.parse_commit(path.read_bytes(), path.name)
        assert entry.version == (2 if path.parts[-3] == "commits_v2" else 1)
    assert entry.next_watermark_ms == 0


def test_the_query_id_that_spark_wrote_is_read():
    data = (WRITTEN / "in_flight/metadata").read_bytes()
    assert logs.parse_query_id(data, "metadata") == "851613dd-1760-43b2-8eb9-655d0fe77200"


def test_a_line_for_each_source_and_a_dash_for_none():
    entry = logs.parse_offsets(b"v1\n" + META + f"\n{KAFKA}\n-\n5".encode(), "offsets/7")
    assert entry.ends == {"0": KAFKA, "1": None, "2": "5"}


def test_named_sources_of_a_newer_spark():
    entry = logs.parse_offsets(b"v2\n" + META + f"\norders:{KAFKA}\n1:-".encode(), "offsets/7")
    assert entry.ends == {"orders": KAFKA, "1": None}


def test_an_old_file_without_batch_metadata():
    entry = logs.parse_offsets(b"v1\n\n5\n", "offsets/7")
    assert (entry.batch_timestamp_ms, entry.watermark_ms, entry.ends) == (None, None, {"0": "5"})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty: half written"),
        (b"v", "begins with 'v'"),
        (b"v1", "ends after 1 lines"),
        (b"v1\n" + META, "ends after 2 lines"),
        (b"v1\n" + META[:30] + b"\n5", "line 2 cannot be read"),
        (b"v1\n" + META + b"\n" + KAFKA[:20].encode(), "line 3 cannot be read"),
        (b"v1\n" + META + b"\n", "ends after 2 lines"),
        (b"v1\n[]\n5", "line 2 cannot be read"),
        (b'v1\n{"batchWatermarkMs":"0","batchTimestampMs":1}\n5', "line 2 cannot be read"),
        (b"v3\n" + META + b"\n5", "version v3.*newer Spark"),
        (b"v0\n" + META + b"\n5", "begins with 'v0'"),
        (b"1\n" + META + b"\n5", "begins with '1'"),
        (b"PK\x03\x04\xff\xfe", "not UTF-8"),
        (b"v2\n\n0:5", "line 2 cannot be read"),
        (b"v2\n" + META + b"\n5", "is not <source>:<offset>"),
        (b"v2\n" + META + b"\n0:1\n0:2", "source '0' twice"),
        (b"\0" * 300, "begins with"),
    ],
)
def test_an_offsets_file_that_is_not_whole_is_refused(data, message):
    with pytest.raises(CheckpointFormatError, match=message) as refused:
        logs.parse_offsets(data, "somewhere/offsets/7")
    assert "somewhere/offsets/7" in str(refused.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty: half written"),
        (b"v1", "1 lines: expected the version and a line of JSON"),
        (b'v1\n{"nextBatch', "line 2 cannot be read"),
        (b"v4\n{}", "version v4"),
        (b"v1\n{}\nv1\n{}", "4 lines"),
        (b"\xff\xff", "not UTF-8"),
        (b"{}", "begins with"),
    ],
)
def test_a_commits_file_that_is_not_whole_is_refused(data, message):
    with pytest.raises(CheckpointFormatError, match=message) as refused:
        logs.parse_commit(data, "somewhere/commits/7")
    assert "somewhere/commits/7" in str(refused.value)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"id":"x"}', b'{"id":1}', b'{"id":"851613dd', b"\xff"]
)
def test_a_metadata_file_that_is_not_whole_is_refused(data):
    with pytest.raises(CheckpointFormatError, match="somewhere/metadata"):
        logs.parse_query_id(data, "somewhere/metadata")


def test_where_a_kafka_source_began():
    # The zero byte is Spark's own, for the sake of Spark 2.1.0 (SPARK-19517).
    assert logs.parse_kafka_start(b'\0v1\n{"orders":{"0":3}}', "sources/0/0") == {"orders": {0: 3}}


@pytest.mark.parametrize("data", [b"", b"\0", b"\0v1", b"\0v1\n0", b"\0v2\n{}", b'\0v1\n{"o":{"0"'])
def test_a_beginning_that_is_not_kafkas_is_refused(data):
    with pytest.raises(CheckpointFormatError, match="sources/0/0"):
        logs.parse_kafka_start(data, "sources/0/0")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (KAFKA, {"orders": {0: 12, 1: 7}, "refunds": {0: 0}}),
        ("5", None),
        ('{"logOffset":3}', None),
        ('{"orders":{}}', None),
        ("{}", None),
        ('{"orders":{"0":-2}}', None),
        ('{"orders":{"-1":2}}', None),
        ('{"orders":{"0":"12"}}', None),
        ('{"orders":{"0":1.5}}', None),
    ],
)
def test_only_offsets_of_kafka_are_taken_for_such(raw, expected):
    assert logs.kafka_offsets(raw) == expected
