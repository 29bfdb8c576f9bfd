"""Ranges read and decoded by ourselves, from a real broker: the rows that librdkafka sees."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_eos.arrow.records.decode import tables
from airflow_eos.errors import InputError, KafkaUnavailableError, TopicError
from airflow_eos.kafka.client.fetch import ahead
from airflow_eos.kafka.client.offsets import EARLIEST, LATEST, partitions_of, positions
from airflow_eos.kafka.client.reading import OffsetSpan, read_span
from airflow_eos.local import EmbeddedKafka

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COMPACTING = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "0",
}


@pytest.fixture
def raw(kafka_broker: EmbeddedKafka, raw_kafka: Callable[[str], Any]) -> Any:
    return raw_kafka(kafka_broker.bootstrap_servers)


@pytest.fixture
def topic(kafka_broker: EmbeddedKafka) -> str:
    return kafka_broker.create_topic(f"read-{uuid.uuid4().hex[:8]}", 1)


def end(raw: Any, topic: str, *, committed_only: bool = True) -> int:
    found = positions(raw.wire, [(topic, 0)], LATEST, committed_only=committed_only)
    return found[topic, 0]


def rows(raw: Any, topic: str, first: int = 0, until: int | None = None, **how: Any) -> list[Any]:
    committed = how.get("committed_only", True)
    until = end(raw, topic, committed_only=committed) if until is None else until
    span = OffsetSpan(topic, 0, first, until)
    found = [t for batches in read_span(raw.wire, span, **how) for t in tables(batches, span)]
    return [row for table in found for row in table.to_pylist()]


def as_librdkafka_has_it(message: Any) -> dict[str, Any]:
    return {
        "offset": message.offset(),
        "key": message.key(),
        "value": message.value(),
        "timestamp": message.timestamp()[1],
        "headers": [{"key": k, "value": v} for k, v in message.headers() or []],
    }


def as_we_have_it(row: dict[str, Any]) -> dict[str, Any]:
    stamp = round(row["timestamp"].timestamp() * 1000)
    chosen = {name: row[name] for name in ("offset", "key", "value", "headers")}
    return chosen | {"timestamp": stamp}


@pytest.mark.long
@pytest.mark.parametrize("stamped_by", ["CreateTime", "LogAppendTime"])
def test_every_row_of_every_codec_is_as_librdkafka_has_it(
    kafka_broker: EmbeddedKafka, raw: Any, read: Callable[..., list[Any]], stamped_by: str
) -> None:
    topic = kafka_broker.create_topic(
        f"codecs-{uuid.uuid4().hex[:8]}", 1, {"message.timestamp.type": stamped_by}
    )
    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": kafka_broker.bootstrap_servers,
                "compression.type": codec,
                "linger.ms": 20,
            }
        )
        for number in range(300):
            producer.produce(
                topic,
                key=None if number % 7 == 0 else b"k%d" % number,
                value=None if number % 11 == 0 else b"%s-%d" % (codec.encode(), number) * 3,
                headers=[("h", b"x" * number), ("n", None)] if number % 5 == 0 else None,
                timestamp=1_700_000_000_000 + number,
            )
        assert producer.flush(30) == 0
    expected = [as_librdkafka_has_it(message) for message in read(topic)]
    found = [as_we_have_it(row) for row in rows(raw, topic)]
    assert len(expected) == 300 * len(CODECS)
    assert found == expected
    middle = [as_we_have_it(row) for row in rows(raw, topic, first=123, until=987, fetch_bytes=1)]
    assert middle == expected[123:987]


@pytest.mark.parametrize("codec", [each for each in CODECS if each != "none"])
def test_what_the_broker_itself_has_compressed_is_read(
    kafka_broker: EmbeddedKafka, raw: Any, read: Callable[..., list[Any]], codec: str
) -> None:
    """A topic with ``compression.type`` has its rows compressed anew, as Java's libraries do it."""
    topic = kafka_broker.create_topic(
        f"packed-{uuid.uuid4().hex[:8]}", 1, {"compression.type": codec}
    )
    raw.plain(topic, [(b"k%d" % number, b"%d" % number * 500) for number in range(400)])
    span = OffsetSpan(topic, 0, 0, 400)
    codecs = {batch.codec for batches in read_span(raw.wire, span) for batch in batches}
    assert codecs == {CODECS.index(codec)}
    expected = [as_librdkafka_has_it(message) for message in read(topic)]
    assert [as_we_have_it(row) for row in rows(raw, topic)] == expected
    assert len(expected) == 400


def test_rows_of_aborted_transactions_are_no_rows(
    raw: Any, topic: str, read: Callable[..., list[Any]]
) -> None:
    raw.plain(topic, [(b"a", b"plain")])
    first = raw.prepare(f"{topic}-1", topic, rows=[(b"b", b"aborted")] * 3)
    second = raw.prepare(f"{topic}-2", topic, rows=[(b"c", b"committed")] * 2)
    raw.plain(topic, [(b"d", b"between")])
    raw.end(first, commit=False)
    raw.end(second)
    raw.await_no_longer_open(first)
    raw.await_no_longer_open(second)
    again = raw.prepare(f"{topic}-1", topic, rows=[(b"e", b"committed later")])
    raw.end(again)
    raw.await_no_longer_open(again)
    found = [(row["offset"], row["value"]) for row in rows(raw, topic)]
    assert found == [(m.offset(), m.value()) for m in read(topic)]
    assert b"aborted" not in {value for _, value in found}
    assert len(found) == 5
    # Each fetch is told anew which transactions in it were aborted: also one that begins inside.
    for first_offset in range(found[-1][0] + 1):
        inside = [(row["offset"], row["value"]) for row in rows(raw, topic, first=first_offset)]
        assert inside == [each for each in found if each[0] >= first_offset]


@pytest.mark.long
def test_rows_of_an_open_transaction_are_for_those_who_ask_for_them(raw: Any, topic: str) -> None:
    raw.plain(topic, [(b"a", b"plain")])
    prepared = raw.prepare(f"{topic}-1", topic, rows=[(b"b", b"open")])
    assert end(raw, topic) == 1
    assert [row["value"] for row in rows(raw, topic)] == [b"plain"]
    assert len(rows(raw, topic, committed_only=False)) == 2
    with pytest.raises(KafkaUnavailableError, match=r"partition 0 .*from offset 1 .*still open"):
        rows(raw, topic, until=2, stalled_s=1)
    raw.end(prepared, commit=False)
    raw.await_no_longer_open(prepared)
    assert [row["value"] for row in rows(raw, topic)] == [b"plain"]


def test_a_range_past_retention_is_an_error_that_names_it(raw: Any, topic: str) -> None:
    raw.plain(topic, [(b"a", b"1")] * 10)
    raw.delete_records(topic, 4)
    assert positions(raw.wire, [(topic, 0)], EARLIEST) == {(topic, 0): 4}
    with pytest.raises(InputError, match=rf"Offset 2 of partition 0 of topic '{topic}'"):
        rows(raw, topic, first=2)
    assert len(rows(raw, topic, first=4)) == 6


@pytest.mark.long
def test_a_topic_deleted_while_it_is_read_is_an_error_that_names_it(raw: Any, topic: str) -> None:
    raw.plain(topic, [(b"a", b"1")] * 10)
    assert len(rows(raw, topic)) == 10
    raw.delete_topic(topic)
    with pytest.raises(TopicError, match=topic):
        rows(raw, topic, until=10)
    with pytest.raises(TopicError, match=topic):
        partitions_of(raw.wire, [topic], refresh=True)


@pytest.mark.long
def test_what_compaction_has_left_of_a_range_is_read_and_no_more(
    kafka_broker: EmbeddedKafka, raw: Any, wait_until: Callable[..., Any]
) -> None:
    topic = kafka_broker.create_topic(f"compacted-{uuid.uuid4().hex[:8]}", 1, COMPACTING)
    for number in range(40):
        raw.plain(topic, [(b"k%d" % (number % 4), b"%d" % number)])
    planned = end(raw, topic)

    def compacted() -> list[Any]:
        # A key of its own keeps the segment rolling: the newest one is never cleaned.
        raw.plain(topic, [(b"other", b"x")])
        found = rows(raw, topic, until=planned)
        return found if len(found) == 4 else []

    found = wait_until(compacted)
    assert [row["value"] for row in found] == [b"36", b"37", b"38", b"39"]
    assert rows(raw, topic, first=0, until=36) == []


@pytest.mark.long
def test_a_tombstone_that_the_cleaner_has_marked_keeps_its_time(
    kafka_broker: EmbeddedKafka, raw: Any, wait_until: Callable[..., Any]
) -> None:
    """Its batch then begins with when it may go (KIP-534), not with a time of its rows."""
    keeping = COMPACTING | {"delete.retention.ms": "86400000"}
    topic = kafka_broker.create_topic(f"marked-{uuid.uuid4().hex[:8]}", 1, keeping)
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    stamp = 1_700_000_000_000
    for number in range(20):
        gone = None if number == 19 else b"%d" % number
        producer.produce(topic, key=b"k", value=gone, timestamp=stamp + number)
        assert producer.flush(30) == 0

    def marked() -> Any:
        raw.plain(topic, [(b"other", b"x")])
        batches = [b for each in read_span(raw.wire, OffsetSpan(topic, 0, 0, 20)) for b in each]
        return batches[0] if len(batches) == 1 else None

    batch = wait_until(marked)
    assert batch.attributes & 0x40
    assert batch.base_timestamp_ms > stamp + 1000
    [row] = rows(raw, topic, until=20)
    assert (row["key"], row["value"], row["offset"]) == (b"k", None, 19)
    assert as_we_have_it(row)["timestamp"] == stamp + 19


def test_a_moment_is_found_and_a_later_one_than_all_rows_is_not(raw: Any, topic: str) -> None:
    raw.plain(topic, [(b"a", b"1")] * 3)
    assert positions(raw.wire, [(topic, 0)], 0) == {(topic, 0): 0}
    assert positions(raw.wire, [(topic, 0)], 1 << 45) == {(topic, 0): -1}


def test_who_leaves_early_leaves_no_thread_that_fetches_on() -> None:
    asked = []

    def items() -> Any:
        for number in range(1000):
            asked.append(number)
            yield number

    left = ahead(items(), 3)
    assert next(left) == 0
    left.close()
    for thread in threading.enumerate():
        if thread.name == "airflow-eos-fetch":
            thread.join(120)
            assert not thread.is_alive()
    assert len(asked) <= 5
