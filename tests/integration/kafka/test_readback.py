"""Delivered rows, written by librdkafka and by raw requests, read back from their offsets."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer

from airflow_eos.errors import KafkaUnavailableError, TransactionError
from airflow_eos.kafka.columns import SCHEMA
from airflow_eos.kafka.transactions.identity import OffsetRange, PreparedTransaction
from airflow_eos.kafka.transactions.listing import list_open
from airflow_eos.kafka.transactions.outcomes import delivered_rows


@pytest.fixture
def raw(kafka_broker, raw_kafka):
    return raw_kafka(kafka_broker.bootstrap_servers)


def read(raw, *prepared, **kwargs):
    return [
        row for batch in delivered_rows(raw.wire, prepared, **kwargs) for row in batch.to_pylist()
    ]


@pytest.mark.long
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_librdkafka_wrote_in_a_transaction(raw, kafka_broker, topic, codec):
    out, name = topic(partitions=2), f"rd-{uuid.uuid4().hex[:6]}-eos-0-0"
    producer = Producer(
        {
            "bootstrap.servers": kafka_broker.bootstrap_servers,
            "transactional.id": name,
            "compression.type": codec,
        }
    )
    producer.init_transactions()
    producer.begin_transaction()
    sent: dict[int, list[int]] = {0: [], 1: []}
    expected = []

    def acknowledged(error, message):
        assert error is None
        sent[message.partition()].append(message.offset())

    for i in range(1000):
        key, value = b"k%d" % i, None if i % 7 == 0 else b"value " * (i % 20)
        headers: list[tuple[str, str | bytes | None]] = (
            [("h", b"1"), ("empty", None)] if i % 3 == 0 else []
        )
        producer.produce(
            out, value, key, i % 2, acknowledged, timestamp=1_700_000_000_000 + i, headers=headers
        )
        expected.append((i % 2, key, value, [{"key": k, "value": v} for k, v in headers]))
    producer.flush()
    (opened,) = list_open(raw.wire, name.removesuffix("-eos-0-0"))
    producer.commit_transaction()
    ranges = tuple(OffsetRange(out, p, min(o), max(o)) for p, o in sent.items())
    prepared = PreparedTransaction(
        name, opened.producer_id, opened.producer_epoch, ranges, 1000, "", 0, 60_000
    )
    rows = read(raw, prepared)
    found = [(r["partition"], r["key"], r["value"], r["headers"]) for r in rows]
    assert sorted(found, key=lambda r: r[1]) == sorted(expected, key=lambda r: r[1])
    assert {r["topic"] for r in rows} == {out}
    assert min(r["timestamp"].timestamp() for r in rows) == 1_700_000_000


def test_other_producers_rows_inside_the_range_are_left_out(raw, topic):
    out = topic()
    identity = raw.coordinator.init("mine-0-0", 60_000)
    first = raw.write(identity, out, rows=[(b"1", b"mine")])
    raw.plain(out, [(b"x", b"not mine")])
    stranger = raw.prepare("stranger-0-0", out, rows=[(b"y", b"not mine")])
    last = raw.produce(_second(identity), out, 0, identity.transactional_id)
    raw.end(stranger, commit=False)
    whole = PreparedTransaction(
        identity.transactional_id,
        identity.producer_id,
        identity.producer_epoch,
        (OffsetRange(out, 0, first.witness.first, last),),
        2,
        "",
        0,
        60_000,
    )
    raw.end(whole)
    assert [r["value"] for r in read(raw, whole)] == [b"mine", b"mine too"]
    (batch, *_) = delivered_rows(raw.wire, [whole])
    assert batch.schema == SCHEMA


def _second(identity):
    from kafka.record import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(
        magic=2,
        compression_type=0,
        batch_size=1 << 20,
        transactional=True,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=1,
    )
    builder.append(timestamp=1, key=b"2", value=b"mine too")
    builder.close()
    return bytes(builder.buffer())


def test_rows_past_retention_are_an_error_not_fewer_rows(raw, topic):
    out = topic()
    prepared = raw.prepare("gone-0-0", out, rows=[(b"1", b"a"), (b"2", b"b")])
    raw.end(prepared)
    raw.await_no_longer_open(prepared)
    raw.plain(out, [(None, b"later")])
    raw.delete_records(out, prepared.witness.last + 1)
    with pytest.raises(TransactionError, match=r"past retention.*as many tasks"):
        read(raw, prepared)


def test_a_count_short_of_the_promise_is_an_error(raw, topic):
    prepared = raw.prepare("short-0-0", topic())
    raw.end(prepared)
    more = PreparedTransaction(
        prepared.transactional_id,
        prepared.producer_id,
        prepared.producer_epoch,
        prepared.written,
        2,
        "",
        0,
        60_000,
    )
    with pytest.raises(TransactionError, match="only 1"):
        read(raw, more)


def test_an_open_transaction_is_waited_for_and_then_said(raw, topic):
    prepared = raw.prepare("open-0-0", topic())
    with pytest.raises(KafkaUnavailableError, match="still open"):
        read(raw, prepared, deadline_s=0.5)
    raw.end(prepared)
    assert len(read(raw, prepared)) == 1
