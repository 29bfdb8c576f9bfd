"""Kafka → Arrow in the tasks → a sink, with the real parts."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import SparkSession

from airflow_eos.cli import app as cli
from airflow_eos.cli.recovery import _skippable
from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, read_state
from airflow_eos.core.recovery.acceptance import InputRange
from airflow_eos.errors import ConfigurationError, TopicError
from airflow_eos.kafka.client.fetch import batch_headers
from airflow_eos.local import EmbeddedKafka
from airflow_eos.sinks import FileSink, KafkaSink, start_exactly_once
from airflow_eos.sources import ArrowKafkaSource
from tests.support.pipeline import Pipeline
from tests.support.topics import produce, read_messages

pytestmark = pytest.mark.proof


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, tmp_path: Path) -> Pipeline:
    return Pipeline(kafka_broker, tmp_path)


@pytest.fixture
def admin(kafka_broker: EmbeddedKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})


def source_of(pipeline: Pipeline, **how: Any) -> ArrowKafkaSource:
    return ArrowKafkaSource(pipeline.bootstrap, f"{pipeline.name}-in", **how)


def sink_of(pipeline: Pipeline) -> KafkaSink:
    return KafkaSink(
        pipeline.bootstrap, topic=f"{pipeline.name}-out", transactional_id_prefix=pipeline.name
    )


def run(pipeline: Pipeline, source: ArrowKafkaSource, sink: Any = None) -> Any:
    query = start_exactly_once(
        source,
        sink or sink_of(pipeline),
        checkpoint_location=pipeline.checkpoint,
        trigger={"availableNow": True},
    )
    try:
        assert query.awaitTermination(240)
    finally:
        query.stop()
    return query


def test_rows_arrive_once_and_in_order_of_their_keys(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.feed(5000)
    pipeline.resume(spark, kind="arrow")
    pipeline.assert_exactly_once()
    pipeline.assert_ordered()
    pipeline.feed(1)  # a batch of one row
    pipeline.resume(spark, kind="arrow")
    pipeline.resume(spark, kind="arrow")  # nothing new: an empty run
    pipeline.assert_exactly_once()
    state = read_state(CheckpointStore.open(pipeline.checkpoint))
    (progress,) = state.sources
    assert progress.kind == "kafka"
    ends = (progress.end or {})[f"{pipeline.name}-in"]
    assert sum(ends.values()) == 5001


@pytest.mark.usefixtures("spark")
def test_rows_of_every_kind_are_passed_on_as_they_are(pipeline: Pipeline) -> None:
    """Null keys and values, empty ones, headers of equal names, time stamps of fifty years."""
    producer = Producer({"bootstrap.servers": pipeline.bootstrap, "compression.type": "zstd"})
    for number in range(200):
        producer.produce(
            f"{pipeline.name}-in",
            key=(None, b"", b"k%d" % number)[number % 3],
            value=(b"%d" % number * 40, None, b"")[number % 7 % 3],
            headers=[("h", b"x" * number), ("h", None), ("é", b"")] if number % 2 else None,
            timestamp=1_700_000_000_000 - number * 8_000_000_000,
        )
    assert producer.flush(30) == 0

    run(pipeline, source_of(pipeline).select("key", "value", "headers", "timestamp"))

    def told(topic: str) -> list[Any]:
        return sorted(
            repr((m.key(), m.value(), m.headers() or [], m.timestamp()[1]))
            for m in read_messages(pipeline.bootstrap, topic)
        )

    assert len(told(f"{pipeline.name}-in")) == 200
    assert told(f"{pipeline.name}-out") == told(f"{pipeline.name}-in")


@pytest.mark.usefixtures("spark")
def test_one_python_worker_does_all_of_a_task(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scan itself fetches and writes: there is no second Python process that a row goes to."""
    pipeline.feed(100)
    query = run(pipeline, source_of(pipeline).select("key", "value"))
    query._query.explain()
    plan = capsys.readouterr().out
    assert "MicroBatchScan[report" in plan
    assert "InArrow" not in plan


@pytest.mark.usefixtures("spark")
def test_rows_are_transformed_and_the_jvm_sees_ranges_alone(pipeline: Pipeline) -> None:
    def shouted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            value = pc.binary_join_element_wise(batch["value"].cast("string"), "!", "")
            columns = [batch["key"], value, batch["timestamp"], batch["headers"]]
            yield pa.RecordBatch.from_arrays(columns, ["key", "value", "timestamp", "headers"])

    pipeline.feed(3000)
    schema = (
        "key binary, value string, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>"
    )
    query = run(pipeline, source_of(pipeline).map(shouted, schema))
    pipeline.expected = [(key, f"{value}!") for key, value in pipeline.expected]
    pipeline.assert_exactly_once()
    # One range for each partition of the input, and no row besides.
    assert sum(each.numInputRows for each in query.recentProgress) == pipeline.partitions


@pytest.mark.parametrize(
    ("form", "alone"), [("parquet", True), pytest.param("json", False, marks=pytest.mark.proof)]
)
def test_a_task_writes_plain_columns_alone_and_spark_brings_the_rows_to_other_sinks(
    pipeline: Pipeline, spark: SparkSession, tmp_path: Path, form: Any, alone: bool
) -> None:
    pipeline.feed(1000)
    folder = tmp_path / "files"
    folder.mkdir()
    source, sink = (
        source_of(pipeline).select("key", "value"),
        FileSink(str(folder), format=form, compression="none"),
    )
    opened = source.connected(spark, CheckpointStore.open(str(tmp_path / "other")))
    assert (opened.fused(sink) is not None) == alone
    run(pipeline, source, sink)
    files = list(folder.rglob(f"*.{form}*"))
    if form == "parquet":
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    else:
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        rows = [{name: base64.b64decode(line[name]) for name in line} for line in lines]
    found = [(row["key"].decode(), row["value"].decode()) for row in rows]
    assert sorted(found) == sorted(pipeline.expected)


@pytest.mark.usefixtures("spark")
def test_a_large_range_is_cut_for_several_tasks_and_its_batch_says_how(pipeline: Pipeline) -> None:
    pipeline.feed(3000)
    run(pipeline, source_of(pipeline, max_rows_per_task=300).select("key", "value"))
    pipeline.assert_exactly_once()
    store = CheckpointStore.open(pipeline.checkpoint)
    decision = next(each for each in DecisionLog(store).of_batch(0) if each.works)
    assert len(decision.works) >= 10
    assert '"/rows_a_task"' in (store.get("offsets/0") or b"").decode()
    (progress,) = read_state(store).sources
    assert set(progress.end or {}) == {f"{pipeline.name}-in"}


@pytest.mark.proof  # the next one has them, too
@pytest.mark.usefixtures("spark")
def test_partitions_that_are_added_are_read_from_their_beginning(
    pipeline: Pipeline, admin: AdminClient
) -> None:
    pipeline.feed(500)
    run(pipeline, source_of(pipeline).select("key", "value"))
    topic = f"{pipeline.name}-in"
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    pipeline.feed(500)
    run(pipeline, source_of(pipeline).select("key", "value"))
    pipeline.assert_exactly_once()


@pytest.mark.usefixtures("spark")
def test_a_batch_that_has_no_range_is_a_batch(pipeline: Pipeline, admin: AdminClient) -> None:
    """A partition is new and empty: the offsets are others, and no task runs."""
    pipeline.feed(500)
    source = source_of(pipeline).select("key", "value")
    run(pipeline, source)
    topic = f"{pipeline.name}-in"
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    run(pipeline, source)
    state = read_state(CheckpointStore.open(pipeline.checkpoint))
    assert (state.latest_offsets, state.latest_commit) == (1, 1)
    pipeline.feed(500)
    run(pipeline, source)
    pipeline.assert_exactly_once()


@pytest.mark.usefixtures("spark")
def test_a_batch_whose_rows_were_all_aborted_is_complete_and_delivers_none(
    pipeline: Pipeline,
) -> None:
    """Its ranges have rows and markers; what tasks find in them is nothing."""
    pipeline.feed(300)
    source = source_of(pipeline).select("key", "value")
    run(pipeline, source)
    topic = f"{pipeline.name}-in"
    producer = Producer({"bootstrap.servers": pipeline.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(50):
        producer.produce(topic, key=b"k", value=b"aborted", partition=0)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    end = 0
    while end < 351:  # 50 rows and a marker, which is written after the abort is acknowledged
        run(pipeline, source)
        state = read_state(CheckpointStore.open(pipeline.checkpoint))
        (progress,) = state.sources
        end = sum((progress.end or {})[topic].values())
    assert (end, state.latest_offsets, state.latest_commit) == (351, 1, 1)
    pipeline.assert_exactly_once()
    pipeline.feed(300)
    run(pipeline, source)
    pipeline.assert_exactly_once()


def test_a_transformation_may_have_what_spark_has_broadcast(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    names = spark.sparkContext.broadcast({"mark": "?"})

    def asked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            value = pc.binary_join_element_wise(
                batch["value"].cast("string"), names.value["mark"], ""
            )
            yield pa.RecordBatch.from_arrays([batch["key"], value], ["key", "value"])

    pipeline.feed(100)
    source = source_of(pipeline).select("key", "value")
    run(pipeline, source.map(asked, "key binary, value string"))
    pipeline.expected = [(key, f"{value}?") for key, value in pipeline.expected]
    pipeline.assert_exactly_once()


@pytest.mark.usefixtures("spark")
def test_latest_means_the_same_after_a_start_that_delivered_nothing(pipeline: Pipeline) -> None:
    """Spark asks for the beginning until a batch is committed; here it is noted when first told."""
    produce(pipeline.bootstrap, f"{pipeline.name}-in", [("old", "old")] * 10)
    source = source_of(pipeline, starting="latest").select("key", "value")
    run(pipeline, source)
    pipeline.feed(200)
    run(pipeline, source)
    pipeline.assert_exactly_once()


@pytest.mark.usefixtures("spark")
def test_offsets_that_retention_took_end_the_query_with_an_error_that_names_them(
    pipeline: Pipeline, admin: AdminClient
) -> None:
    pipeline.feed(300)
    run(pipeline, source_of(pipeline).select("key", "value"))
    pipeline.feed(600)
    topic = f"{pipeline.name}-in"
    lost = [TopicPartition(topic, number, OFFSET_END) for number in range(pipeline.partitions)]
    for answer in admin.delete_records(lost).values():
        answer.result(30)
    before = pipeline.visible()
    with pytest.raises(
        Exception, match=rf"InputError: Offset \d+ of partition \d of topic '{topic}'"
    ):
        run(pipeline, source_of(pipeline).select("key", "value"))
    assert pipeline.visible() == before
    assert pipeline.open_transactions() == ()


def garbled_on_disk(broker: EmbeddedKafka, topic: str) -> tuple[int, int]:
    """The middle batch of partition 0 says that it has a record less, under a CRC that holds.

    A broker lets no producer write that; its disk can have it, and a reader is sent it as it lies.
    """
    assert broker._data is not None
    (segment,) = broker._data.glob(f"node-1/log/{topic}-0/*.log")
    data = bytearray(segment.read_bytes())
    places, position = [], 0
    for batch in batch_headers(bytes(data)):
        places.append((position, batch))
        position += 61 + len(batch.payload)
    place, batch = places[len(places) // 2]
    end = place + 61 + len(batch.payload)
    struct.pack_into(">i", data, place + 57, batch.records - 1)
    struct.pack_into(">I", data, place + 17, crc32c.crc32c(bytes(data[place + 21 : end])))
    with segment.open("r+b") as file:  # in its place: the broker has it open
        file.seek(place)
        file.write(data[place:end])
    return batch.base_offset, batch.last_offset


@pytest.mark.usefixtures("spark")
def test_a_person_steps_over_a_batch_with_a_lying_count_and_all_other_rows_are_there_once(
    pipeline: Pipeline, kafka_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"{pipeline.name}-in"
    pipeline.feed(100)  # in all partitions
    producer = Producer({"bootstrap.servers": pipeline.bootstrap, "linger.ms": 200})
    for number in range(5):
        for key, value in pipeline.expect(20):
            producer.produce(topic, key=key, value=value, partition=0)
        assert producer.flush(30) == 0, number
    first, last = garbled_on_disk(kafka_broker, topic)
    lost = {
        m.value()
        for m in read_messages(pipeline.bootstrap, topic)
        if m.partition() == 0 and first <= m.offset() <= last
    }
    source = source_of(pipeline, max_rows_per_task=30).select("key", "value")
    with pytest.raises(Exception, match="does not hold") as told:
        run(pipeline, source)
    assert pipeline.visible() == []

    (command, *_) = re.findall(r"`(airflow-eos accept CHECKPOINT [^`]*)`", str(told.value))
    assert f" --skip-input {topic}:0:{first}-{last} " in command
    assert f"{last - first + 1} at most" in str(told.value)
    monkeypatch.setattr("sys.argv", command.replace("CHECKPOINT", pipeline.checkpoint).split())
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0

    run(pipeline, source)
    before = len(pipeline.expected)
    pipeline.expected = [row for row in pipeline.expected if row[1].encode() not in lost]
    assert 0 < before - len(pipeline.expected) <= last - first + 1
    pipeline.assert_exactly_once()
    pipeline.feed(50)
    run(pipeline, source)
    pipeline.assert_exactly_once()
    with pytest.raises(ConfigurationError, match="No batch is in flight"):
        _skippable(CheckpointStore.open(pipeline.checkpoint), InputRange(topic, 0, first, last))


@pytest.mark.usefixtures("spark")
def test_a_topic_that_was_made_again_is_refused(
    pipeline: Pipeline, admin: AdminClient, kafka_broker: EmbeddedKafka
) -> None:
    pipeline.feed(300)
    run(pipeline, source_of(pipeline).select("key", "value"))
    topic = f"{pipeline.name}-in"
    admin.delete_topics([topic])[topic].result(30)
    with pytest.raises(TopicError, match=topic):
        run(pipeline, source_of(pipeline).select("key", "value"))
    kafka_broker.create_topic(topic, pipeline.partitions)
    before = pipeline.visible()
    pipeline.feed(900)
    with pytest.raises(TopicError, match="deleted and made again"):
        run(pipeline, source_of(pipeline).select("key", "value"))
    assert pipeline.visible() == before
