"""A repartition of the state that Spark has not finished, or could not make."""

from __future__ import annotations

import json
import shutil

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.core.checkpoint import repartition as module
from airflow_eos.core.checkpoint.repartition import (
    at_work,
    put_aside,
    require_finished,
    require_possible,
    unfinished,
)
from airflow_eos.errors import ContinuityError, PipelineAliveError, RecoveryError
from tests.support.pipelines import commit_of

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
DEFAULT = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


def entry(partitions: int, provider: str = ROCKSDB) -> bytes:
    conf = {
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.stateStore.providerClass": provider,
    }
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": conf})
    return f'v1\n{head}\n{{"in":{{"0":1}}}}'.encode()


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    """Batch 0 is complete."""
    store = CheckpointStore.open(tmp_path)
    store.put("metadata", b'{"id":"6a1d2f0e-27e3-4f9f-9d0f-2b0f7f6a0c11"}')
    store.put("offsets/0", entry(2))
    store.put("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    store.put("state/0/0/1.changelog", b"state")
    return store


def test_a_start_on_a_half_repartitioned_state_is_refused_with_both_ways(store):
    store.put("offsets/1", entry(5))
    with pytest.raises(ContinuityError, match=r"to 5 partitions \(from 2\)") as refused:
        require_finished(store)
    go_on, undo = refused.value.remedies
    assert "--partitions 5" in go_on.commands[0]
    assert "--undo" in undo.commands[0]
    assert store.location in undo.commands[0]


def test_where_spark_cannot_go_on_it_is_only_undone(store):
    store.put("offsets/0", entry(2, DEFAULT))
    store.put("offsets/1", entry(5, DEFAULT))
    with pytest.raises(ContinuityError) as refused:
        require_finished(store)
    [undo] = refused.value.remedies
    assert "--undo" in undo.commands[0]


def test_a_batch_of_the_query_or_one_that_is_promised_is_no_repartition(store):
    store.put("offsets/1", entry(2))
    require_finished(store)
    store.put("offsets/1", entry(5))
    DecisionLog(store).record(commit_of(1, offsets=entry(5).decode()))
    assert unfinished(store) is None


def test_no_state_of_it_is_left_for_the_next_batch_to_read(store):
    """Spark reads a snapshot before the change log of the same version."""
    store.put("offsets/1", entry(5))
    for name in ("0/2.zip", "4/2.zip", "0/left/2.changelog", "1/2_7a-1.snapshot"):
        store.put(f"state/0/{name}", b"half")
    store.put("state/0/_metadata/v2/1", b"half")
    store.put("state/0/0/12.zip", b"of another batch")
    found = unfinished(store)
    assert found is not None
    put_aside(store, found)
    assert sorted(store.below("state")) == ["state/0/0/1.changelog", "state/0/0/12.zip"]
    require_finished(store)
    assert store.get("offsets/1") is None


def test_what_spark_refuses_after_it_has_written_is_refused_before(store):
    require_possible(store, 0, 5)
    with pytest.raises(RecoveryError, match="has 2 partitions already"):
        require_possible(store, 0, 2)
    store.put("offsets/0", entry(2, DEFAULT))
    with pytest.raises(RecoveryError, match="is in HDFSBackedStateStoreProvider"):
        require_possible(store, 0, 5)


def test_a_query_without_state_has_nothing_to_repartition(store):
    shutil.rmtree(f"{store.location}/state")
    with pytest.raises(RecoveryError, match="holds no state"):
        require_possible(store, 0, 5)


def test_two_at_a_time_are_refused_and_one_that_was_killed_is_not(store, monkeypatch):
    monkeypatch.setattr(module, "_BEAT_S", 0.05)
    with at_work(store):
        sign = store.get("eos/repartition.json")
        with pytest.raises(PipelineAliveError, match="being repartitioned now"), at_work(store):
            pass
    assert store.get("eos/repartition.json") is None
    store.put("eos/repartition.json", sign)
    with at_work(store):
        pass
