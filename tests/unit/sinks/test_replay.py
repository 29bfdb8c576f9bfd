"""What is missing of a promise: paired by content, never by task number."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_eos.delivery.port import TaskReport
from airflow_eos.delivery.replay import undelivered_tasks
from airflow_eos.delivery.task import HASH_COLUMN, Fingerprint
from airflow_eos.protocol.decision import PreparedWork
from airflow_eos.protocol.promise import combined


def report(task: int, rows: int, content: str) -> TaskReport:
    return TaskReport(task, rows, content)


def delivered(rows: int, content: str, task: int = 0) -> PreparedWork:
    return PreparedWork("fake", "sink", f"p-{task}-0", rows, content, 0, 1, {})


def test_tasks_are_paired_by_content_whatever_their_numbers():
    tasks = [report(0, 2, "b"), report(1, 5, "a"), report(2, 0, "-")]
    assert undelivered_tasks(tasks, [delivered(5, "a", task=0)]) == [0]


def test_equal_contents_pair_one_to_one():
    tasks = [report(0, 2, "a"), report(1, 2, "a")]
    assert undelivered_tasks(tasks, [delivered(2, "a")]) == [1]


def test_the_same_hash_with_another_row_count_does_not_pair():
    assert undelivered_tasks([report(0, 2, "a")], [delivered(3, "a")]) is None


def test_what_was_delivered_under_another_cut_cannot_be_paired():
    assert undelivered_tasks([report(0, 3, "ab")], [delivered(2, "a")]) is None


def hashed(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({HASH_COLUMN: np.array(values, dtype=np.int64)})


def fingerprint(*batches: pa.RecordBatch) -> str:
    running = Fingerprint()
    for batch in batches:
        running.add(batch)
    return running.hex()


def test_a_fingerprint_knows_no_order_and_no_batch_borders():
    assert fingerprint(hashed(1, 2), hashed(3)) == fingerprint(hashed(3, 2, 1))


def test_a_fingerprint_tells_hashes_with_the_same_sum_apart():
    assert fingerprint(hashed(1, 4)) != fingerprint(hashed(2, 3))


def test_a_fingerprint_counts_repeated_rows():
    assert fingerprint(hashed(5)) != fingerprint(hashed(5, 5))


def test_fingerprints_of_tasks_add_up_to_that_of_the_batch_across_overflow():
    big = 2**63 - 1
    whole = fingerprint(hashed(big, big, -1, 7))
    assert combined([fingerprint(hashed(big, 7)), fingerprint(hashed(-1, big))]) == whole
