"""The topic of all prefixes is read whole: a claim that is overlooked lets two pipelines in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException

from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.client import compacted_topic
from airflow_eos.kafka.client import compacted_topic as compacted
from airflow_eos.kafka.client import errors as deadline
from tests.model.wire import VirtualTime

TOPIC = "airflow-eos.prefixes"


def record(offset: int) -> Any:
    key = b"%d" % offset
    return SimpleNamespace(error=lambda: None, key=lambda: key, value=lambda: b"v")


def the_end(offset: int) -> Any:
    return SimpleNamespace(error=lambda: Code(Code._PARTITION_EOF), offset=lambda: offset)


class Consumer:
    """``fetched``: what librdkafka gives, lot by lot; ``end``: said where it is asked, or an error.

    A new leader refuses that question, and what is in ``refusals`` comes first.
    """

    def __init__(self, *fetched: list[Any], end: int, refusals: int = 0) -> None:
        self._fetched, self._end, self._refusals = list(fetched), end, refusals
        self.is_assigned = False

    def list_topics(self, topic: str, **_options: Any) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None})})

    def get_watermark_offsets(self, _place: Any, **_options: Any) -> tuple[int, int]:
        if self._refusals:
            self._refusals -= 1
            raise KafkaException(Code(Code.OFFSET_NOT_AVAILABLE))
        return 0, self._end

    def assign(self, _places: Any) -> None:
        self.is_assigned = True

    def unassign(self) -> None:
        self.is_assigned = False

    def consume(self, _most: int, **_options: Any) -> list[Any]:
        return self._fetched.pop(0) if self._fetched else []


def keys(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    monkeypatch.setattr(deadline, "time", VirtualTime())
    reader: Any = compacted.CompactedTopicReader.__new__(compacted.CompactedTopicReader)
    reader._topic, reader._consumer = TOPIC, consumer
    try:
        return [key for key, _ in reader.read()]
    finally:
        assert not consumer.is_assigned


def test_an_end_before_what_was_acknowledged_is_none(monkeypatch):
    """A new leader says so, as long as it does not know how far its log was acknowledged."""
    consumer = Consumer([the_end(0)], [record(0), the_end(1)], [record(1), the_end(2)], end=2)
    assert keys(consumer, monkeypatch) == [b"0", b"1"]


def test_records_of_others_that_come_meanwhile_are_not_waited_for(monkeypatch):
    consumer = Consumer([record(0), record(1)], [the_end(2)], end=1)
    assert keys(consumer, monkeypatch) == [b"0", b"1"]


def test_a_new_leader_is_asked_until_it_says_how_far_its_log_was_acknowledged(monkeypatch):
    consumer = Consumer([record(0), the_end(1)], end=1, refusals=2)
    assert keys(consumer, monkeypatch) == [b"0"]


def test_a_topic_that_does_not_come_to_its_end_is_an_error_and_not_read_whole(monkeypatch):
    monkeypatch.setattr(compacted, "_TIMEOUT_S", 0.1)
    with pytest.raises(KafkaUnavailableError, match="cannot be read to its end"):
        keys(Consumer([record(0), the_end(1)], end=2), monkeypatch)


def test_a_leader_that_never_says_is_an_error(monkeypatch):
    monkeypatch.setattr(compacted_topic, "_TIMEOUT_S", 30.0)
    with pytest.raises(KafkaUnavailableError, match="OFFSET_NOT_AVAILABLE"):
        keys(Consumer([the_end(0)], end=0, refusals=99), monkeypatch)
