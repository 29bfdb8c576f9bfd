"""Kept rows without Spark: what a task of a batch leaves in the checkpoint."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa

from airflow_eos.core.checkpoint import CheckpointStore, Decision, Verdict
from airflow_eos.core.protocol.decision import PreparedWork
from airflow_eos.kinds.spill.participant import SpilledRows, new_key
from tests.support.authority import OFFSETS


def keep(
    store: CheckpointStore,
    rows: pa.Table,
    *,
    kind: str,
    name: str = "orders",
    batch: int = 0,
    task: int = 0,
) -> PreparedWork:
    """As ``airflow_eos.kinds.spill.task`` does it."""
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    key = new_key(batch, task, 0)
    SpilledRows(store, name).keep(key, stream.getvalue())
    return PreparedWork(kind, name, key, rows.num_rows, "0" * 32, 0, None, {})


def decided(batch: int, nonce: str = "a", **changes: Any) -> Decision:
    return Decision(
        **{
            "batch_id": batch,
            "attempt": 1,
            "verdict": Verdict.COMMIT,
            "offsets": OFFSETS,
            "decided_by": "driver",
            "decided_at_ms": 0,
            "nonce": nonce * 32,
            **changes,
        }
    )
