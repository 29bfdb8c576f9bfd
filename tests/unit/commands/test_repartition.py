"""``airflow-eos repartition`` refuses what would make Spark skip a batch; nothing is changed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_eos.checkpoint import CheckpointStore, write_heartbeat
from airflow_eos.commands import upgrade as module
from airflow_eos.errors import ConfigurationError, PipelineAliveError, RecoveryError
from tests.support.beats import beating, heartbeat


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    store = CheckpointStore.open(tmp_path)
    store.put("offsets/0", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n{"in":{"0":1}}')
    return store


def run(store) -> None:
    module.repartition(store.location, partitions=5)


def test_a_driver_that_may_run_is_drained_first(store):
    with (
        beating(store, heartbeat(interval_ms=30)),
        pytest.raises(PipelineAliveError, match=r"gave a heartbeat.*airflow-eos drain"),
    ):
        run(store)


def test_that_nobody_can_read_the_heartbeat_is_not_that_nobody_runs(store):
    store.put("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    store.put("eos/driver.json", b"")
    with pytest.raises(PipelineAliveError, match="is not known"):
        run(store)


def test_a_batch_in_flight_would_be_skipped(store):
    """Its driver died without a word, and was seen to be silent."""
    write_heartbeat(store, heartbeat(interval_ms=30))
    with pytest.raises(RecoveryError, match="batch 0 was planned and is not complete"):
        run(store)


def test_a_spark_that_cannot_is_named():
    spark = SimpleNamespace(version="4.1.1")
    with pytest.raises(ConfigurationError, match=r"Spark 4\.1\.1 cannot.*expected 4\.2"):
        module._repartition(spark, "file:///q", 5)  # type: ignore[arg-type]
