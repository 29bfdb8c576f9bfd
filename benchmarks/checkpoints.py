"""Makes checkpoints as Spark leaves them after many batches, without running any batch."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    Heartbeat,
    PipelineIdentity,
    claim,
    write_heartbeat,
)
from airflow_eos.core.protocol.participant import Member, Owner

_ROWS_A_BATCH = 1000


def make(store: CheckpointStore, member: Member, *, batches: int) -> Owner:
    """Make a checkpoint of ``batches`` batches, none purged, the last one in flight."""
    root = Path(store.location)
    for folder in ("offsets", "commits", "sources/0"):
        (root / folder).mkdir(parents=True)
    (root / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="utf-8")
    (root / "sources/0/0").write_bytes(b"\0v1\n" + _offsets(0).encode())
    for batch in range(batches):
        header = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1000 * batch, "conf": {}})
        (root / f"offsets/{batch}").write_text(
            f"v1\n{header}\n{_offsets(batch + 1)}", encoding="utf-8"
        )
        if batch < batches - 1:
            (root / f"commits/{batch}").write_text('v1\n{"nextBatchWatermarkMs":0}', "utf-8")
    pipeline = claim(
        store,
        PipelineIdentity(
            id=uuid.uuid4().hex,
            participants=(member,),
            created_at_ms=0,
            created_by="benchmark",
        ),
    )
    write_heartbeat(store, _heartbeat(batches - 1))
    return Owner.at(pipeline.id, store.location)


def forget_heartbeat(store: CheckpointStore) -> None:
    """Delete the heartbeat; without one the log is listed to find its end."""
    store.delete(["eos/driver.json"])


def _offsets(batches: int) -> str:
    return json.dumps({"in": {str(number): batches * _ROWS_A_BATCH for number in range(4)}})


def _heartbeat(batch_id: int) -> Heartbeat:
    return Heartbeat(
        application_id="benchmark",
        host="benchmark",
        pid=1,
        batch_id=batch_id,
        phase="stopped",
        beat_at_ms=time.time_ns() // 1_000_000,
        interval_ms=2000,
        trigger_ms=1000,
        started_at_ms=0,
    )
