"""Many checkpoints for the page to show, made from a recorded one: each with a life of its own."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

from airflow_eos.checkpoint import CheckpointStore, Heartbeat, read_heartbeat, write_heartbeat

BATCHES = 18
SYSTEMS = ("orders", "payments", "clicks", "stock", "returns", "ledger", "search", "parcels")
PLACES = ("eu", "us", "in", "br", "jp")
OTHERS = {3: "silent", 7: "failed", 12: "draining", 21: "stopped", 26: "idle", 30: "silent"}
"""By number of the pipeline, where its driver does not simply go on."""


def fleet(recorded: Path, folder: Path, count: int) -> list[Path]:
    """``count`` checkpoints below ``folder``: pipelines that run, but for those of ``OTHERS``."""
    chance = random.Random(18)
    return [
        _made(recorded, folder / _name(number) / "checkpoint", number, chance)
        for number in range(count)
    ]


def _name(number: int) -> str:
    system, place = SYSTEMS[number % 8], PLACES[number // 8 % 5]
    return f"{system}-{place}-{number:03}"


def _made(recorded: Path, checkpoint: Path, number: int, chance: random.Random) -> Path:
    kind = OTHERS.get(number, "running")
    shutil.copytree(recorded, checkpoint)
    for stale in ("offsets", "commits"):
        shutil.rmtree(checkpoint / stale)
        (checkpoint / stale).mkdir()
    decisions = checkpoint / "eos" / "decisions"
    [promise] = (json.loads(file.read_text()) for file in (decisions / "2").glob("*.json"))
    shutil.rmtree(decisions)
    newest = 1_000 + number
    now = time.time_ns() // 1_000_000 - (3_600_000 if kind == "idle" else 0)
    begin = now - BATCHES * 2_500 - (40_000 if kind in ("silent", "failed") else 0)
    rows, read = chance.randint(200, 30_000), 10_000_000
    for batch in range(newest - BATCHES, newest + 1):
        planned = begin + (batch - newest + BATCHES) * 2_500
        _planned(checkpoint, batch, planned, read)
        flying = batch == newest and kind in ("silent", "failed", "running")
        if not flying:
            _committed(checkpoint, batch, planned + chance.randint(700, 1_900))
        _decided(decisions, promise, batch, planned, rows)
        read += int(rows * chance.uniform(0.7, 1.3))
    if kind in ("stopped", "idle") or (kind == "running" and number % 2):
        shutil.rmtree(decisions / str(newest))
        if not (checkpoint / "commits" / str(newest)).exists():
            _committed(checkpoint, newest, planned + 1_500)
    _heart(checkpoint, kind, newest, now)
    return checkpoint


def _planned(checkpoint: Path, batch: int, at_ms: int, read: int) -> None:
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": at_ms, "conf": {}})
    ends = json.dumps({"input": {str(p): (read + p) // 3 for p in range(3)}})
    file = checkpoint / "offsets" / str(batch)
    file.write_text(f"v1\n{head}\n{ends}")
    os.utime(file, (at_ms / 1000,) * 2)


def _committed(checkpoint: Path, batch: int, at_ms: int) -> None:
    file = checkpoint / "commits" / str(batch)
    file.write_text('v1\n{"nextBatchWatermarkMs":0}')
    os.utime(file, (at_ms / 1000,) * 2)


def _decided(decisions: Path, recorded: dict[str, Any], batch: int, at_ms: int, rows: int) -> None:
    works = [
        {**work, "opened_at_ms": at_ms + 200, "timeout_ms": 120_000, "rows": rows // 3}
        for work in recorded.get("works", recorded.get("transactions", ()))
    ]
    told = {**recorded, "batch_id": batch, "attempt": 1, "decided_at_ms": at_ms + 600}
    told["works" if "works" in recorded else "transactions"] = works
    (decisions / str(batch)).mkdir(parents=True)
    (decisions / str(batch) / "1.json").write_text(json.dumps(told))


def said_again(told: Heartbeat, **changes: Any) -> Heartbeat:
    """An older heartbeat as a driver of today writes it, with changes."""
    fields = {name: getattr(told, name) for name in told.__struct_fields__}
    del fields["format_version"]
    return Heartbeat(**(fields | changes))


def _heart(checkpoint: Path, kind: str, batch: int, now: int) -> None:
    store = CheckpointStore.open(checkpoint)
    told = read_heartbeat(store)
    assert told is not None
    is_over = kind in ("silent", "failed", "stopped")
    phase = {"failed": "failed", "stopped": "stopped", "idle": "waiting"}.get(kind, "settling")
    write_heartbeat(
        store,
        said_again(
            told,
            phase=phase,
            batch_id=batch,
            beat_at_ms=now - 20_000 if is_over else int(time.time() * 1000),
            started_at_ms=now - 7_200_000,
            interval_ms=2_000 if is_over else 3_600_000,
        ),
    )
    if kind == "draining":
        from airflow_eos.checkpoint import request_drain

        request_drain(store, requested_by="cli ann", reason="new release")
