"""How often a driver beats follows what its store bills."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_eos.checkpoint import CheckpointStore, read_heartbeat
from airflow_eos.checkpoint.heartbeat import beat_interval
from airflow_eos.delivery.query import HeartbeatWriter


@pytest.mark.parametrize(
    ("location", "seconds"),
    [
        ("/data/query", 2),
        ("file:///data/query", 2),
        ("hdfs://name:8020/query", 5),
        ("s3a://bucket/query", 10),
        ("gs://bucket/query", 10),
        ("abfss://box@account.dfs.core.windows.net/query", 10),
    ],
)
def test_an_object_store_hears_of_a_driver_less_often_than_a_disk(location, seconds):
    assert beat_interval(location) == timedelta(seconds=seconds)


def test_a_beat_says_how_often_it_comes_so_that_a_reader_knows_when_silence_is_death(tmp_path):
    store = CheckpointStore.open(tmp_path)
    writer = HeartbeatWriter(store, application_id="app", trigger=timedelta(seconds=1))
    writer.start()
    writer.stop("stopped")
    assert read_heartbeat(store).interval_ms == 2_000
    store.location = "s3a://bucket/query"
    writer = HeartbeatWriter(store, application_id="app", trigger=timedelta(seconds=1))
    writer.start()
    writer.stop("stopped")
    assert read_heartbeat(store).interval_ms == 10_000
