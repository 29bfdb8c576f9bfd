"""A broker as Kafka ships it makes each topic that is asked for; nothing of ours asks that way."""

from __future__ import annotations

import subprocess
import sys
import uuid
from contextlib import suppress

import obstore.store
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.progress import SourceProgress
from airflow_eos.errors import EosError
from airflow_eos.kafka.client.compacted_topic import Appender, CompactedTopicReader
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.sink import PRODUCERS, open_writer
from airflow_eos.kafka.transactions.hanging import find_hanging
from airflow_eos.ops.supervision.preflight import require_prefix_free
from airflow_eos.ops.supervision.progress import unread_offsets
from airflow_eos.recovery import audit

pytestmark = pytest.mark.long


def command(*arguments):
    def run(settings, topic):
        given = [each.format(topic=topic, servers=settings.bootstrap_servers) for each in arguments]
        ran = subprocess.run(
            [sys.executable, "-m", "airflow_eos", *given],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert "Usage:" not in ran.stderr, ran.stderr

    return run


def on_a_wire(look):
    def run(settings, topic):
        with ConnectionPool(settings) as wire:
            look(wire, topic)

    return run


def appended(settings, topic):
    appender = Appender(settings, topic)
    appender.append(b"k", b"v")
    appender.close()


ROWS = pa.record_batch({"key": pa.array([b"k"]), "value": pa.array([b"v"])})
LOOKS = {
    "leaders": on_a_wire(lambda wire, topic: wire.cluster.leaders(topic)),
    "settings": on_a_wire(lambda wire, topic: wire.cluster.topic_config(topic, ["cleanup.policy"])),
    "hanging": on_a_wire(lambda wire, topic: find_hanging(wire, [topic], older_than_ms=0)),
    "reader": lambda settings, topic: list(CompactedTopicReader(settings, topic).read()),
    "appender": appended,
    "unread": lambda settings, topic: unread_offsets(
        settings, [SourceProgress(0, "kafka", None, {topic: {0: 1}}, "-")]
    ),
    "audit": lambda settings, topic: audit(settings, topic, f"{topic}-out", timeout_s=3),
    "prefix": lambda settings, topic: require_prefix_free(
        settings, topic, CheckpointStore(obstore.store.MemoryStore(), "memory")
    ),
    "doctor": command(
        *("doctor", "{topic}-checkpoint", "-b", "{servers}", "--rounds", "1", "--timeout", "5"),
        *("--topic", "{topic}", "--input-topic", "{topic}-in", "--prefix", "{topic}"),
    ),
    "plan": command("plan", "{topic}-checkpoint", "-b", "{servers}", "--prefix", "{topic}"),
    "hanging-command": command("hanging", "{topic}", "-b", "{servers}"),
}


def topics(settings, named):
    """Topics so named, and our own ones.

    Others come and go: a consumer of Spark's that an earlier test has left in its JVM asks, as it
    is closed after five idle minutes, for a topic that was deleted, and so makes it again.
    """
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    there = admin.list_topics(timeout=60).topics
    return {each for each in there if named in each or each.startswith("airflow-eos")}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_at_a_topic_that_is_not_there_makes_none(kafka_broker, look, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    topic = f"absent-{uuid.uuid4().hex[:8]}"
    before = topics(settings, topic)
    with suppress(EosError):  # most refuse; what counts is what they leave behind
        LOOKS[look](settings, topic)
    assert topics(settings, topic) == before


@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_writer_makes_no_topic(kafka_broker, producer):
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    topic = f"absent-{uuid.uuid4().hex[:8]}"
    before = topics(settings, topic)
    with suppress(EosError):
        writer = open_writer(settings, producer=producer, topic=topic, compression="none")
        writer.begin(f"{topic}-0-1", 10_000)
        writer.write(ROWS)
        writer.prepare()
    assert topics(settings, topic) == before
