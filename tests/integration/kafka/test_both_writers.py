"""One contract, two writers: what a task may rely on, whichever producer writes its rows."""

from __future__ import annotations

import datetime as dt
import gc
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_eos.arrow.producer.partitioner import murmur2_of
from airflow_eos.arrow.producer.writer import TransactionalWriter
from airflow_eos.errors import (
    ConfigurationError,
    FencedError,
    RowError,
    TopicError,
    TransactionError,
)
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.sink import PRODUCERS, Writer, _forget_writer, _warm_writer, open_writer
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator, end_transactions
from airflow_eos.kafka.transactions.identity import (
    OffsetRange,
    TransactionIdentity,
    transaction_of,
    transactional_id_of,
)
from airflow_eos.kafka.transactions.listing import list_open
from airflow_eos.kafka.writer import LibrdkafkaWriter
from airflow_eos.local import EmbeddedKafka
from airflow_eos.sinks import KafkaSink
from tests.integration.hazards.test_shapes import set_limit

TIMEOUT_MS = 60_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Opener = Callable[..., Writer]


@pytest.fixture(params=PRODUCERS)
def producer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def settings(kafka_broker: EmbeddedKafka) -> KafkaSettings:
    return KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})


@pytest.fixture
def opened(producer: Any, settings: KafkaSettings) -> Iterator[Opener]:
    """``opened(topic)``: a writer of this kind, its wire closed at the end."""
    writers: list[Any] = []

    def open_one(topic: str | None, compression: str = "lz4") -> Writer:
        writer = open_writer(settings, producer=producer, topic=topic, compression=compression)
        writers.append(writer)
        return writer

    yield open_one
    for writer in writers:
        writer._wire.close()


@pytest.fixture
def wire(settings: KafkaSettings) -> Iterator[ConnectionPool]:
    with ConnectionPool(settings) as opened:
        yield opened


def test_a_worker_that_was_warmed_has_taken_no_id_and_sent_no_row(
    producer, kafka_broker, topic, read, wire
):
    """A standby warms its workers while another driver delivers under the same ids."""
    name, prefix = topic(), f"warmed-{producer}"
    sink = KafkaSink(
        kafka_broker.bootstrap_servers,
        topic=name,
        transactional_id_prefix=prefix,
        producer=producer,
    )
    warm: Any = _warm_writer(sink)
    try:
        sink.warm(numbered(0, 3))
        with pytest.raises(TransactionError, match="describing"):
            TransactionCoordinator(wire).holder(transactional_id_of(prefix, 0, 0))
        task: Any = sink.opened(0, 0)
        assert task._writer is warm, "the worker's first task opens another one"
        task.write(numbered(3, 5))
        end_transactions(wire, [transaction_of(task.prepare("f").identity)], commit=True)
    finally:
        _forget_writer(sink)
        warm._wire.close()
    assert [each.value() for each in read(name)] == [b"value-3", b"value-4"]


def numbered(start: int, stop: int, keys: int = 97) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "key": [f"key-{i % keys}" for i in range(start, stop)],
            "value": [f"value-{i}" for i in range(start, stop)],
        }
    )


def value_rows(*values: str | bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values)})


def values(messages: list[Any]) -> list[bytes]:
    return [m.value() for m in messages]


def write_and_prepare(writer: Writer, rows: pa.RecordBatch) -> Any:
    writer.write(rows)
    return writer.prepare()


def test_the_choice_is_made_by_name(opened, producer, topic):
    kind = {"arrow": TransactionalWriter, "librdkafka": LibrdkafkaWriter}[producer]
    assert type(opened(topic())) is kind


@pytest.mark.long
def test_every_column_arrives_as_it_was_given(opened, producer, topic, read, wire):
    default, other = topic("default", partitions=4), topic("other", partitions=2)
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
    rows = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"a", None, b"", b"d", b"e"], pa.binary()),
            "key": pa.array([b"k", b"", None, b"k", b"\x00\xff"], pa.binary()),
            "topic": [None, default, other, None, None],
            "partition": pa.array([3, 2, 1, None, None], pa.int32()),
            "timestamp": pa.array([at, None, at, at, at], pa.timestamp("us", "UTC")),
            "headers": pa.array(
                [
                    [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
                    None,
                    [],
                    [{"key": "ü", "value": b""}],
                    None,
                ],
                HEADERS,
            ),
        }
    )
    writer = opened(default)
    writer.begin(f"columns-{producer}-0-0", TIMEOUT_MS)
    written = write_and_prepare(writer, rows)
    end_transactions(wire, [written.identity], commit=True)

    found = {(m.topic(), m.value(), m.key()): m for m in read(default) + read(other)}
    assert found.keys() == {
        (default, b"a", b"k"),
        (default, None, b""),
        (other, b"", None),
        (default, b"d", b"k"),
        (default, b"e", b"\x00\xff"),
    }
    first, tombstone = found[default, b"a", b"k"], found[default, None, b""]
    empty, by_key = found[other, b"", None], found[default, b"d", b"k"]
    assert (first.partition(), tombstone.partition(), empty.partition()) == (3, 2, 1)
    assert by_key.partition() == (murmur2_of(b"k") & 0x7FFFFFFF) % 4
    assert first.timestamp()[1] == int(at.timestamp() * 1000) == by_key.timestamp()[1]
    assert abs(tombstone.timestamp()[1] - written.opened_at_ms) < 10_000
    assert first.headers() == [("h", b"1"), ("h", None)]
    assert by_key.headers() == [("ü", b"")]
    assert not tombstone.headers()
    assert not empty.headers()


def test_rows_of_a_key_go_where_java_sends_them_and_keep_their_order(
    opened, producer, topic, read, wire
):
    name = topic(partitions=5)
    writer = opened(name)
    writer.begin(f"keys-{producer}-0-0", TIMEOUT_MS)
    for start in range(0, 30_000, 7_500):
        writer.write(numbered(start, start + 7_500))
    end_transactions(wire, [writer.prepare().identity], commit=True)

    messages = read(name)
    assert sorted(values(messages)) == sorted(f"value-{i}".encode() for i in range(30_000))
    for partition in range(5):
        ours = [m for m in messages if m.partition() == partition]
        numbers = [int(m.value()[6:]) for m in ours]
        assert numbers == sorted(numbers)
        assert {(murmur2_of(m.key()) & 0x7FFFFFFF) % 5 for m in ours} == {partition}


def test_what_was_prepared_stays_open_when_the_writer_is_gone_and_another_commits_it(
    opened, producer, topic, read, wire
):
    name = topic(partitions=3)
    prefix = f"gone-{producer}"
    writer = opened(name)
    writer.begin(f"{prefix}-eos-0-0", TIMEOUT_MS)
    written = write_and_prepare(writer, numbered(0, 500))
    writer.begin(f"{prefix}-eos-1-0", TIMEOUT_MS)  # the process goes on
    second = write_and_prepare(writer, numbered(500, 600))
    del writer
    gc.collect()

    still_open = [t.identity for t in list_open(wire, prefix)]
    assert still_open == [written.identity, second.identity]
    ended = end_transactions(wire, still_open, commit=True)
    assert {result.name for result in ended.values()} == {"DONE"}
    messages = read(name)
    assert sorted(values(messages)) == sorted(f"value-{i}".encode() for i in range(600))
    assert (written.rows, second.rows) == (500, 100)
    for offsets in written.written:
        ours = [
            m.offset()
            for m in messages
            if m.partition() == offsets.partition and int(m.value()[6:]) < 500
        ]
        assert (offsets.first, offsets.last) == (min(ours), max(ours))
    assert sum(r.last - r.first + 1 for r in written.written) == 500


LEAVING = """
import sys
import msgspec, pyarrow as pa
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.sink import open_writer
servers, producer, topic, transactional_id = sys.argv[1:]
settings = KafkaSettings.from_librdkafka({"bootstrap.servers": servers})
writer = open_writer(settings, producer=producer, topic=topic, compression="lz4")
writer.begin(transactional_id, 60_000)
writer.write(pa.RecordBatch.from_pydict({"value": ["a", "b", "c"]}))
print(msgspec.json.encode(writer.prepare().identity).decode())
"""


@pytest.mark.long
def test_what_was_prepared_stays_open_when_its_process_exits(
    producer, topic, read, wire, kafka_broker
):
    name, prefix = topic(), f"exit-{producer}"
    left = subprocess.run(
        [
            sys.executable,
            "-c",
            LEAVING,
            kafka_broker.bootstrap_servers,
            producer,
            name,
            f"{prefix}-eos-0-0",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert left.returncode == 0, left.stderr
    identity = msgspec.json.decode(left.stdout, type=TransactionIdentity)

    assert [t.identity for t in list_open(wire, prefix)] == [identity]
    end_transactions(wire, [identity], commit=True)
    assert values(read(name)) == [b"a", b"b", b"c"]


@pytest.mark.usefixtures("at_once")
def test_an_aborted_transaction_is_invisible_and_the_writer_goes_on(
    opened, producer, topic, read, wire
):
    name, prefix = topic(), f"abort-{producer}"
    writer = opened(name)
    writer.begin(f"{prefix}-eos-0-0", TIMEOUT_MS)
    writer.write(numbered(0, 60_000))
    writer.abort()
    assert list_open(wire, prefix) == ()
    writer.abort()
    writer.begin(f"{prefix}-eos-0-0", TIMEOUT_MS)
    end_transactions(wire, [write_and_prepare(writer, numbered(0, 3)).identity], commit=True)

    assert values(read(name)) == [b"value-0", b"value-1", b"value-2"]


def test_taking_the_id_aborts_what_was_left_open_under_it(opened, producer, topic, read, wire):
    name, prefix = topic(), f"taken-{producer}"
    lost, writer = opened(name), opened(name)
    lost.begin(f"{prefix}-eos-0-0", TIMEOUT_MS)
    old = write_and_prepare(lost, value_rows("old"))
    writer.begin(f"{prefix}-eos-0-0", TIMEOUT_MS)
    new = write_and_prepare(writer, value_rows("new"))

    assert end_transactions(wire, [old.identity], commit=True)[old.identity].name != "DONE"
    end_transactions(wire, [new.identity], commit=True)
    assert values(read(name)) == [b"new"]


@pytest.mark.long
@pytest.mark.usefixtures("at_once")
def test_whoever_lost_the_id_is_fenced(opened, producer, topic, read, wire):
    name = topic()
    old, new = opened(name), opened(name)
    old.begin(f"fenced-{producer}-0-0", TIMEOUT_MS)
    old.write(numbered(0, 30_000))
    new.begin(f"fenced-{producer}-0-0", TIMEOUT_MS)
    taken = write_and_prepare(new, value_rows("new"))

    with pytest.raises(FencedError, match="omebody else took the transactional id"):
        write_and_prepare(old, numbered(30_000, 31_000))
    old.abort()
    end_transactions(wire, [taken.identity], commit=True)
    assert values(read(name)) == [b"new"]


def test_a_task_without_rows_opens_nothing(opened, producer, topic, wire):
    prefix = f"empty-{producer}"
    writer = opened(topic())
    writer.begin(f"{prefix}-eos-0-0", TIMEOUT_MS)
    assert write_and_prepare(writer, numbered(0, 0)) is None
    writer.begin(f"{prefix}-eos-0-0", TIMEOUT_MS)
    writer.abort()
    assert list_open(wire, prefix) == ()


def test_a_second_begin_is_refused_until_the_first_has_ended(opened, topic):
    writer = opened(topic())
    writer.begin("twice-0-0", TIMEOUT_MS)
    with pytest.raises(ConfigurationError, match="still writes 'twice-0-0'"):
        writer.begin("twice-0-1", TIMEOUT_MS)


def test_a_row_too_large_is_refused_by_name_before_any_is_sent(opened, producer, topic, read, wire):
    name, prefix = topic(config={"max.message.bytes": "20000"}), f"large-{producer}"
    rows = pa.RecordBatch.from_pydict({"key": ["fine", "culprit"], "value": ["x", "y" * 20_000]})
    writer = opened(name, "none")
    writer.begin(f"{prefix}-eos-0-0", TIMEOUT_MS)
    with pytest.raises(RowError, match=r"key b'culprit' needs 200\d\d bytes.*takes 20000"):
        write_and_prepare(writer, rows)
    assert list_open(wire, prefix) == ()
    writer.abort()
    assert read(name) == []


@pytest.mark.long
def test_a_row_that_only_fits_compressed_is_sent(opened, producer, topic, read, wire):
    name = topic(config={"max.message.bytes": "20000"})
    writer = opened(name, "zstd")
    writer.begin(f"squeezed-{producer}-0-0", TIMEOUT_MS)
    written = write_and_prepare(writer, value_rows("small", "x" * 2_000_000, "small"))
    end_transactions(wire, [written.identity], commit=True)
    assert [len(value) for value in values(read(name))] == [5, 2_000_000, 5]


@pytest.mark.long
def test_record_batches_stay_under_the_topics_limit(opened, producer, topic, read, wire):
    name = topic(partitions=2, config={"max.message.bytes": "20000"})
    noise = random.Random(3)
    contents = [noise.randbytes(noise.choice([10, 500, 9_000, 19_000])) for _ in range(300)]
    rows = {"value": pa.array(contents, pa.binary()), "partition": pa.array([0] * 300, pa.int32())}
    writer = opened(name)
    writer.begin(f"limit-{producer}-0-0", TIMEOUT_MS)
    written = write_and_prepare(writer, pa.RecordBatch.from_pydict(rows))
    end_transactions(wire, [written.identity], commit=True)
    assert values(read(name)) == contents


COMPRESSIBLE = value_rows(*(b"%06d " % n + b"abcdefgh " * 100 for n in range(4_000)))


@pytest.mark.parametrize(
    "config",
    [
        {"compression.type": "uncompressed"},
        {"compression.type": "gzip", "compression.gzip.level": "1"},
        {"compression.type": "snappy"},
        {"compression.type": "lz4", "compression.lz4.level": "17"},
        {"compression.type": "zstd", "compression.zstd.level": "22"},
    ],
    ids=lambda config: ", ".join(config.values()),
)
@pytest.mark.parametrize("compression", ["lz4", "none"])
def test_batches_are_within_the_limit_as_the_topic_stores_them(
    opened, producer, topic, read, wire, config, compression
):
    """Brokers measure what they store, too: 1 MB of lz4 can be 50 MB there."""
    name = topic(config={"max.message.bytes": "100000", **config})
    writer = opened(name, compression)
    writer.begin(f"stored-{producer}-0-0", TIMEOUT_MS)
    written = write_and_prepare(writer, COMPRESSIBLE)
    end_transactions(wire, [written.identity], commit=True)
    assert values(read(name)) == COMPRESSIBLE.column("value").to_pylist()


def test_a_row_too_large_as_its_topic_stores_it_is_refused_before_any_is_sent(
    opened, producer, topic, wire, settings
):
    """And what the message advises helps: the topic stores what is sent then."""
    name = topic(config={"max.message.bytes": "20000", "compression.type": "uncompressed"})
    large = value_rows("small", "x" * 30_000)
    writer, prefix = opened(name, "lz4"), f"stored-large-{producer}"
    writer.begin(f"{prefix}-eos-0-0", TIMEOUT_MS)
    with pytest.raises(RowError, match=r"set compression\.type=producer"):
        write_and_prepare(writer, large)
    assert list_open(wire, prefix) == ()
    writer.abort()
    set_limit(settings.bootstrap_servers, name, "producer", "compression.type")
    writer = opened(name, "lz4")
    writer.begin(f"{prefix}-eos-0-1", TIMEOUT_MS)
    written = write_and_prepare(writer, large)
    assert written.rows == 2
    end_transactions(wire, [written.identity], commit=False)


@pytest.mark.parametrize("producer", ["arrow"])
@pytest.mark.parametrize("kind", ["producer", "uncompressed"])
def test_where_settings_may_not_be_read_what_a_broker_calls_too_large_is_halved(
    opened, producer, topic, read, wire, kind, monkeypatch
):
    """As Java's producer does; the rows keep their order, and each has one place."""
    name = topic(config={"max.message.bytes": "20000", "compression.type": kind})
    writer = opened(name, "none")

    def hidden(*_: Any) -> Any:
        raise TopicError("may not be read")

    monkeypatch.setattr(writer._wire.cluster, "topic_config", hidden)
    writer.begin(f"halved-{kind}-0-0", TIMEOUT_MS)
    written = write_and_prepare(writer, COMPRESSIBLE)
    end_transactions(wire, [written.identity], commit=True)
    assert values(read(name)) == COMPRESSIBLE.column("value").to_pylist()
    [its] = written.written
    assert its == OffsetRange(name, 0, 0, 3_999, its.topic_id)


@pytest.mark.parametrize("producer", ["arrow"])
def test_a_limit_that_is_lowered_beneath_a_writer_halves_its_batches(
    opened, producer, topic, read, wire, settings
):
    name = topic(partitions=2)
    writer = opened(name, "none")
    for attempt, limit in enumerate((1_048_588, 20_000)):
        set_limit(settings.bootstrap_servers, name, limit)
        writer.begin(f"lowered-0-{attempt}", TIMEOUT_MS)
        written = write_and_prepare(writer, COMPRESSIBLE)
        end_transactions(wire, [written.identity], commit=True)
    found = sorted(values(read(name)))
    assert found == sorted(2 * COMPRESSIBLE.column("value").to_pylist())


@pytest.mark.long
def test_a_missing_topic_is_refused_before_any_row_is_sent(opened, producer, topic, read):
    name = topic()
    writer = opened(name)
    writer.begin(f"missing-{producer}-0-0", TIMEOUT_MS)
    rows = pa.RecordBatch.from_pydict({"value": ["a", "b"], "topic": [name, "no-such-topic"]})
    with pytest.raises(TopicError, match="'no-such-topic' does not exist"):
        write_and_prepare(writer, rows)
    writer.abort()
    assert read(name) == []


@pytest.mark.parametrize(
    ("columns", "topic_given", "message"),
    [
        ({"key": ["k"]}, True, "no column 'value'"),
        ({"value": ["v"]}, False, "no column 'topic', and the sink names no topic"),
        ({"value": ["v"], "partition": [7]}, True, "partition 7 .* has the partitions 0 to 0"),
        ({"value": ["v"], "timestamp": [-1]}, True, "timestamp -1 ms"),
    ],
)
def test_rows_that_cannot_be_sent_are_refused(
    opened, producer, topic, columns, topic_given, message
):
    writer = opened(topic() if topic_given else None)
    writer.begin(f"refused-{producer}-0-0", TIMEOUT_MS)
    with pytest.raises(RowError, match=message):
        write_and_prepare(writer, pa.RecordBatch.from_pydict(columns))
    writer.abort()


@pytest.mark.long
def test_without_a_transaction_rows_are_visible_at_once(opened, topic, read):
    name = topic(partitions=2)
    writer = opened(name)
    for start in (0, 1_000):
        writer.begin(None, TIMEOUT_MS)
        written = write_and_prepare(writer, numbered(start, start + 1_000))
        assert written.identity is None
    assert len(read(name)) == 2_000
    writer.begin(None, TIMEOUT_MS)
    writer.write(numbered(0, 10))
    writer.abort()


@pytest.mark.long
def test_offsets_are_ours_where_others_write_in_between(opened, producer, topic, read, wire):
    name = topic()
    writer = opened(name)
    writer.begin(None, TIMEOUT_MS)
    write_and_prepare(writer, numbered(0, 5))
    writer.begin(f"between-{producer}-0-0", TIMEOUT_MS)
    written = write_and_prepare(writer, numbered(5, 15))
    end_transactions(wire, [written.identity], commit=True)
    [its] = written.written
    assert its == OffsetRange(name, 0, 5, 14, its.topic_id)
    assert its.topic_id, "nobody can tell that the topic was made again"
    assert len(read(name)) == 15


# --- A topic's limit is remembered for a minute, but never against whoever has just raised it -----


def test_a_limit_raised_because_of_a_row_counts_at_once(kafka_broker, topic):
    servers = kafka_broker.bootstrap_servers
    name = topic("limited", 1, {"max.message.bytes": "3000"})
    large = pa.RecordBatch.from_pydict({"value": [os.urandom(9000)]})
    with ConnectionPool(KafkaSettings.from_librdkafka({"bootstrap.servers": servers})) as wire:
        writer = TransactionalWriter(wire, topic=name)
        writer.begin(None, 60_000)
        writer.write(large)
        with pytest.raises(RowError, match=r"max\.message\.bytes"):
            writer.prepare()
        writer.abort()
        set_limit(servers, name, 100_000)
        writer.begin(None, 60_000)
        writer.write(large)
        written = writer.prepare()
    assert written is not None
    assert written.rows == 1
