"""``airflow-eos repartition`` refuses what would make Spark skip a batch; nothing is changed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.commands import repartition as module
from airflow_eos.errors import ConfigurationError, PipelineAliveError, RecoveryError

pytestmark = pytest.mark.unit


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    store = CheckpointStore.open(tmp_path)
    store.put("offsets/0", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n{"in":{"0":1}}')
    return store


@pytest.fixture
def old(monkeypatch) -> None:
    """Spark's files were written long ago: they are no sign of life."""
    monkeypatch.setattr("airflow_eos.recovery.driver_liveness.FRESH_WITHOUT_HEARTBEAT_MS", 0)


def run(store) -> None:
    module.repartition(store.location, partitions=5)


def test_a_driver_that_may_run_is_drained_first(store):
    with pytest.raises(PipelineAliveError, match="airflow-eos drain"):
        run(store)


@pytest.mark.usefixtures("old")
def test_that_nobody_can_read_the_heartbeat_is_not_that_nobody_runs(store):
    store.put("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    store.put("eos/driver.json", b"")
    with pytest.raises(PipelineAliveError, match="is not known"):
        run(store)


@pytest.mark.usefixtures("old")
def test_a_batch_in_flight_would_be_skipped(store):
    with pytest.raises(RecoveryError, match="batch 0 was planned and is not complete"):
        run(store)


def test_a_spark_that_cannot_is_named():
    spark = SimpleNamespace(version="4.1.1")
    with pytest.raises(ConfigurationError, match=r"Spark 4\.1\.1 cannot.*expected 4\.2"):
        module._repartition(spark, "file:///q", 5)  # type: ignore[arg-type]
