"""What Spark's progress says of state, as a note for people."""

from __future__ import annotations

from airflow_eos.delivery.heartbeat import state_size


def operator(**other):
    return {
        "numRowsTotal": 1000,
        "memoryUsedBytes": 5_000_000,
        "allUpdatesTimeMs": 40,
        "allRemovalsTimeMs": 2,
        "commitTimeMs": 300,
        "numStateStoreInstances": 4,
        "customMetrics": {},
        **other,
    }


def progress(*operators):
    return {
        "batchId": 7,
        "stateOperators": list(operators),
        "durationMs": {"triggerExecution": 900},
    }


def test_a_query_without_state_or_without_a_batch_has_none():
    assert state_size(None) is None
    assert state_size(progress()) is None


def test_operators_are_added_up():
    size = state_size(progress(operator(), operator(numRowsTotal=1)))
    assert size is not None
    assert (size.batch_id, size.rows, size.tasks, size.batch_ms) == (7, 1001, 8, 900)
    assert (size.update_ms, size.commit_ms, size.file_bytes) == (84, 600, None)


def test_rocksdb_has_files():
    size = state_size(progress(operator(customMetrics={"rocksdbSstFileSize": 123})))
    assert size is not None
    assert size.file_bytes == 123
