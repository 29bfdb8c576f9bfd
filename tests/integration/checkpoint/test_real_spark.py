"""A real Spark, a real Kafka source: what is read from the checkpoint is what Spark did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from airflow_eos.core.checkpoint import CheckpointState, CheckpointStore, read_state
from airflow_eos.local import spark_jars
from tests.support.jvm import spark_submit_opts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_eos.local import EmbeddedKafka

pytestmark = pytest.mark.long


APP = """
import sys, time
from pyspark.sql import SparkSession
servers, topic, checkpoint, jars, stuck_in = sys.argv[1:]
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.jars", jars).config("spark.driver.memory", "512m")
         .config("spark.sql.streaming.minBatchesToRetain", "2").getOrCreate())
rows = (spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic).option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "10").load())

def deliver(df, batch_id):
    print("batch", batch_id, df.count(), flush=True)
    if batch_id == int(stuck_in):
        print("stuck", flush=True)
        time.sleep(600)

rows.writeStream.foreachBatch(deliver).option("checkpointLocation", checkpoint).start() \\
    .awaitTermination()
"""


def run_until_stuck(
    kafka: EmbeddedKafka, topic: str, checkpoint: Path, stuck_in: int
) -> dict[int, int]:
    """Rows of each batch that began, until batch ``stuck_in`` is killed with SIGKILL."""
    jars = ",".join(str(jar) for jar in spark_jars())
    arguments = [kafka.bootstrap_servers, topic, str(checkpoint), jars, str(stuck_in)]
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_SUBMIT_OPTS": spark_submit_opts(),
    }
    rows: dict[int, int] = {}
    with subprocess.Popen(
        [sys.executable, "-c", APP, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,  # Spark's JVM and its workers die with it
    ) as app:
        assert app.stdout is not None
        try:
            for line in app.stdout:
                if line.startswith("batch"):
                    _, batch_id, count = line.split()
                    rows[int(batch_id)] = int(count)
                elif line.startswith("stuck"):
                    break
        finally:
            os.killpg(app.pid, signal.SIGKILL)
    return rows


def fill(kafka: EmbeddedKafka, topic: str, rows: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(rows):
        producer.produce(topic, json.dumps({"id": number}).encode(), partition=number % 2)
    assert producer.flush(30) == 0


def check(state: CheckpointState, batch_id: int, topic: str, rows: int) -> None:
    now_ms = time.time_ns() // 1_000_000
    assert (state.latest_offsets, state.in_flight) == (batch_id, batch_id)
    assert state.latest_commit == (batch_id - 1 if batch_id else None)
    assert state.planned_at_ms is not None
    assert 0 <= now_ms - state.planned_at_ms < 120_000
    [source] = state.sources
    assert source.kind == "kafka"
    assert source.rows == rows
    assert source.end is not None
    assert set(source.end) == {topic}


@pytest.mark.slow
def test_what_spark_did_with_a_kafka_source_is_read_from_its_checkpoint(
    kafka_broker: EmbeddedKafka, topic: Callable[..., str], tmp_path: Path
) -> None:
    orders = topic("orders", partitions=2)
    fill(kafka_broker, orders, 65)
    store = CheckpointStore.open(tmp_path / "query")

    first = run_until_stuck(kafka_broker, orders, tmp_path / "query", stuck_in=0)
    check(read_state(store), 0, orders, first[0])
    query_id = read_state(store).query_id

    second = run_until_stuck(kafka_broker, orders, tmp_path / "query", stuck_in=5)
    assert second[0] == first[0], "the batch in flight was run again as it was planned"
    check(read_state(store), 5, orders, second[5])
    assert read_state(store).query_id == query_id
    assert not (tmp_path / "query/offsets/0").exists(), "Spark purged: old batches are not needed"
