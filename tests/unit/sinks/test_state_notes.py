"""What Spark's progress says of state, as a note for people."""

from __future__ import annotations

from types import SimpleNamespace

from airflow_eos.delivery.query import state_size


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


def ended(batch: int, *dropped: int) -> SimpleNamespace:
    """A batch as Spark's own object tells it: late rows by operator."""
    operators = [SimpleNamespace(numRowsDroppedByWatermark=lambda n=each: n) for each in dropped]
    return SimpleNamespace(batchId=lambda: batch, stateOperators=lambda: operators)


def test_late_rows_are_counted_once_by_batch_over_all_drivers():
    first = state_size(progress(operator()), [ended(6, 2, 1), ended(7, 4)])
    assert first is not None
    assert (first.late_rows, first.late_counted) == (7, 2)
    later = {**progress(operator()), "batchId": 9}
    recent = [ended(6, 2, 1), ended(7, 4), ended(8, 0), ended(9, 5), ended(10, 100)]
    second = state_size(later, recent, first)
    assert second is not None
    assert (second.late_rows, second.late_counted) == (12, 4), "batch 10 is the next note's"
    third = state_size({**later, "batchId": 12}, [ended(10, 100), ended(12, 1)], second)
    assert third is not None
    assert (third.late_rows, third.late_counted) == (113, 6), "of 13 batches: the others not known"
