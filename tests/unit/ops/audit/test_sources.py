"""What the audit reads, and what a checkpoint tells it: what nobody has read is not "none"."""

from __future__ import annotations

import itertools
import json
from array import array
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError as Code

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.topics import require_same_topics
from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.ops.audit import audit as auditing
from airflow_eos.ops.audit import rows as auditing_rows
from airflow_eos.ops.audit.compare import parse
from airflow_eos.ops.audit.rows import (
    PartitionEnds,
    _drain,
    _MessageColumns,
    is_compacted,
    topic_id,
)

ANYWHERE = KafkaSettings.from_librdkafka({"bootstrap.servers": "nowhere:9092"})


class Told:
    """One row of partition 0, or what a fetch calls its end."""

    def __init__(self, offset, *, is_end=False):
        self._offset, self._is_end = offset, is_end

    def error(self):
        return Code(Code._PARTITION_EOF) if self._is_end else None

    def partition(self):
        return 0

    def offset(self):
        return self._offset

    def key(self):
        return None

    def value(self):
        return b"%d" % self._offset


class Answers:
    """A consumer that is told one answer after another, and then nothing more."""

    def __init__(self, *answers):
        self._answers = list(answers)

    def assign(self, places):
        assert [(each.partition, each.offset) for each in places] == [(0, 0)]

    def consume(self, *_most, **_within):
        return self._answers.pop(0) if self._answers else []


class Admin:
    """An ``AdminClient`` to which the broker says this, or nothing in time."""

    def __init__(self, *settings):
        self._told: Future[Any] = Future()
        if settings:
            self._told.set_result(*settings)

    def describe_configs(self, resources, **_):
        return dict.fromkeys(resources, self._told)

    def describe_topics(self, _topics, **_):
        return {"t": self._told}


@pytest.mark.parametrize("ask", [is_compacted, topic_id])
def test_a_broker_that_is_silent_while_a_topic_is_looked_at_is_one_that_did_not_answer(
    monkeypatch, ask
):
    """librdkafka's own time may end a moment later than the one that its answer is waited for."""
    monkeypatch.setattr(auditing_rows, "AdminClient", lambda *_, **__: Admin())
    with pytest.raises(KafkaUnavailableError, match=r"nowhere:9092 did not answer: .*Timed out"):
        ask(ANYWHERE, "t", 0.01)


def test_a_policy_that_no_broker_tells_is_not_the_one_that_keeps_all_rows(monkeypatch):
    monkeypatch.setattr(auditing_rows, "AdminClient", lambda *_, **__: Admin({}))
    assert is_compacted(ANYWHERE, "t", 1.0) is None


def drained(*answers):
    columns = _MessageColumns(array("q"), array("q"), array("i"), array("q"))
    consumer: Any = Answers(*answers)
    ends, value = {0: PartitionEnds(0, 4, 4)}, parse("value")
    _drain(consumer, "orders", ends, columns, value, parse("key"), 0.01)
    return list(columns.offsets)


def test_what_a_new_leader_calls_the_end_is_not_the_end_where_rows_were_there_before():
    early = [Told(0), Told(1), Told(2, is_end=True)]
    assert drained(early, [Told(2), Told(3)]) == [0, 1, 2, 3]
    assert drained(early, [Told(4, is_end=True)]) == [0, 1], "only markers were left"
    with pytest.raises(KafkaUnavailableError, match=r"partitions \[0\] are not read to their end"):
        drained(early)  # a log that was cut off: its rows are not "none"


def test_rows_that_are_written_on_elsewhere_do_not_keep_an_audit_waiting_for_ever():
    """The leader of partition 1 is gone; whoever writes to partition 0 goes on."""
    columns = _MessageColumns(array("q"), array("q"), array("i"), array("q"))
    rows = (Told(offset) for offset in itertools.count())
    whole, value = PartitionEnds(0, 4, 4), parse("value")

    class Alive:
        def assign(self, _places):
            pass

        def consume(self, *_most, **_within):
            row = next(rows)
            assert row.offset() < 1_000_000, "it waits for ever"
            return [row]

    consumer: Any = Alive()
    with pytest.raises(KafkaUnavailableError, match=r"partitions \[1\] are not read to their end"):
        _drain(consumer, "orders", {0: whole, 1: whole}, columns, value, parse("key"), 0.01)
    assert list(columns.offsets) == [0, 1, 2, 3]


def checkpoint(tmp_path, before, planned, *, complete, began=None):
    """Batch 1 is planned; each of these has the offsets of its sources."""
    store = CheckpointStore.open(tmp_path / "checkpoint")
    store.put("metadata", b'{"id":"7b6b3d0e-2c0d-4d5f-9a80-53a1f8f6b6c5"}')
    head = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0}'
    for batch, sources in enumerate((before, planned)):
        lines = [json.dumps(each) for each in sources]
        store.put(f"offsets/{batch}", "\n".join([head, *lines]).encode())
    for batch in (0, 1) if complete else (0,):
        store.put(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
    for index, each in enumerate(before):
        start = began or {topic: dict.fromkeys(ends, 0) for topic, ends in each.items()}
        store.put(f"sources/{index}/0", b"\0v1\n" + json.dumps(start).encode())
    return store


def told(store, *inputs):
    return auditing._sources(store, ANYWHERE, inputs, 1.0)


def test_topics_of_one_name_in_two_clusters_are_two(tmp_path, monkeypatch):
    """The rows of the other one came from elsewhere; and how far it was read says nothing here."""
    monkeypatch.setattr(auditing, "topic_id", lambda *_: "A")
    here, there = {"orders": {"0": 9}}, {"orders": {"0": 4}}
    store = checkpoint(tmp_path, [here, there], [here, there], complete=True)
    require_same_topics(store, {"orders": "A", "1/orders": "B"})
    found = told(store, "orders")
    assert found.others == ["orders, maybe of another cluster, in source 1"]
    assert found.read == {("orders", 0): (0, 4)}, "what is due is due of both"
    assert not found.remade
    store.delete(["eos/topics.json"])
    assert told(store, "orders").others, "nobody says whether it is one"
    require_same_topics(store, {"orders": "A", "1/orders": "A"})
    assert told(store, "orders").others == []


def test_a_topic_that_the_batch_in_flight_reads_first_is_not_delivered_yet(tmp_path):
    old = {"orders": {"0": 9}}
    store = checkpoint(tmp_path, [old], [old | {"new": {"0": 7, "1": 7}}], complete=False)
    found = told(store, "orders", "new")
    assert found.read == {("orders", 0): (0, 9), ("new", 0): (0, 0), ("new", 1): (0, 0)}


def test_where_the_first_batch_began_is_lost_and_nothing_of_it_is_known_to_be_delivered(tmp_path):
    store = checkpoint(tmp_path, [{"orders": {"0": 9}}], [{"orders": {"0": 9}}], complete=False)
    store.delete(["offsets/1", "commits/0", "sources/0/0"])
    assert told(store, "orders").read == {("orders", 0): (0, 0)}
