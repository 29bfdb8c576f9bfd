"""What a start opens, by the name of what is opened, counted where it is really opened.

In the driver; a task has connections of its own. Real Spark, a real broker and a real disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from airflow_eos.core.checkpoint.locations import LocalFiles
from airflow_eos.kafka.client import compacted_topic
from airflow_eos.kafka.client.connection import ConnectionManager
from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.spark_job import Job

OF_THE_LEDGER = {"AdminClient": 1, "Consumer": 1, "Producer": 1}
"""librdkafka's clients of the topic that remembers who owns a prefix: one for each direction."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each was opened: they are opened as ever."""
    found: Counter[str] = Counter()

    def counting(owner: Any, name: str, what: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def open_it(*args: Any, **given: Any) -> Any:
            found[what] += 1
            return real(*args, **given)

        monkeypatch.setattr(owner, name, open_it)

    counting(LocalFiles, "__init__", "checkpoint")
    counting(ConnectionManager, "bootstrap", "Kafka")
    counting(compacted_topic, "Consumer", "Consumer")
    counting(compacted_topic, "Producer", "Producer")
    # By its constructor, since AdminClient names itself in there.
    counting(AdminClient, "__init__", "AdminClient")
    return found


def test_a_start_opens_the_checkpoint_once_and_kafka_once(
    spark: SparkSession, kafka_broker: EmbeddedKafka, tmp_path: Path, opened: Counter[str]
) -> None:
    """Also one that finds a batch in flight, and recovers it; and the batches open nothing more."""
    job = Job(kafka_broker, tmp_path)
    job.spark = spark
    job.feed(20)
    job.sink.settings.librdkafka()  # checked by a client that sends nothing, once in a process
    for started in ("on an empty checkpoint", "on a batch in flight"):
        opened.clear()
        job.deliver()
        assert opened == {"checkpoint": 1, "Kafka": 1, **OF_THE_LEDGER}, started
        (Path(job.checkpoint) / "commits" / "0").unlink()
    job.assert_exactly_once()
