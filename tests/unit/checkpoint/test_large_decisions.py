"""A decision of many tasks: notes/scale.md reckons with these sizes."""

from __future__ import annotations

import uuid
from pathlib import Path

from airflow_eos.checkpoint import CheckpointStore, Decision, DecisionLog, Verdict
from airflow_eos.kafka.transactions.identity import OffsetRange, PreparedTransaction, as_work
from airflow_eos.protocol.decision import PreparedWork, encode


def work(task: int, partitions: int) -> PreparedWork:
    transaction = PreparedTransaction(
        transactional_id=f"orders-etl-{task}-0",
        producer_id=4000 + task,
        producer_epoch=3,
        written=tuple(
            OffsetRange("orders.clean", each, 12_345_678, 12_345_690) for each in range(partitions)
        ),
        rows=1000,
        fingerprint="0123456789abcdef" * 2,
        opened_at_ms=1_795_000_000_000,
        timeout_ms=900_000,
    )
    return as_work(transaction, "sink")


def decision(tasks: int, partitions: int) -> Decision:
    return Decision(
        batch_id=9,
        attempt=1,
        verdict=Verdict.COMMIT,
        works=tuple(work(task, partitions) for task in range(tasks)),
        offsets="v1\n{}\n{}",
        decided_by="a test",
        decided_at_ms=1,
        nonce=uuid.uuid4().hex,
    )


def test_ten_thousand_tasks_that_each_write_one_partition_are_three_megabytes(tmp_path: Path):
    large = decision(10_000, 1)
    log = DecisionLog(CheckpointStore.open(tmp_path))
    assert 2_500_000 < len(encode(large)) < 3_000_000
    assert log.record(large)
    assert not log.record(decision(1, 1)), "the first one stands"
    assert log.of_batch(9) == (large,)


def test_each_further_partition_of_a_task_costs_75_bytes():
    few, many = len(encode(decision(100, 1))), len(encode(decision(100, 101)))
    assert 65 < (many - few) / (100 * 100) < 80
