"""Many checkpoints for the page to show, made from a recorded one: each with a life of its own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_eos.core.checkpoint import CheckpointStore, Heartbeat, read_heartbeat, write_heartbeat
from airflow_eos.errors import CheckpointFormatError
from tests.support.beats import beside

BATCHES = 24  # so many as the page shows of one, and more than its list draws
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
    flies = kind in ("silent", "failed") or (kind == "running" and number % 2 == 0)
    lives = [_life(chance) for _ in range(BATCHES + 1)]
    now = time.time_ns() // 1_000_000
    ended = now - {"idle": 3_600_000, "stopped": 900_000, "silent": 41_000, "failed": 62_000}.get(
        kind, 0
    )
    planned = ended - sum(life.apart for life in lives[:-1]) - lives[-1].decided
    usual, read = chance.randint(200, 30_000), 10_000_000
    _planned(checkpoint, newest - BATCHES - 1, planned - 2_000, read)
    _committed(checkpoint, newest - BATCHES - 1, planned - 200)
    for batch, life in zip(range(newest - BATCHES, newest + 1), lives, strict=True):
        rows = int(usual * chance.uniform(0.6, 1.4))
        read += rows
        _planned(checkpoint, batch, planned, read)
        _decided(decisions, promise, batch, planned, rows, life)
        if batch != newest or not flies:
            _committed(checkpoint, batch, planned + life.committed)
        planned += life.apart
    _heart(checkpoint, kind, newest, ended)
    return checkpoint


@dataclass(frozen=True)
class _Life:
    """Of one batch, in ms since it was planned: what it waits for, writes and settles."""

    opened: int
    decided: int
    committed: int
    apart: int
    """Until the next one is planned."""


def _life(chance: random.Random) -> _Life:
    opened = chance.randint(90, 700)
    decided = opened + chance.randint(150, 1_100)
    committed = decided + chance.randint(40, 500)
    return _Life(opened, decided, committed, max(2_500, committed))


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


def _decided(
    decisions: Path, recorded: dict[str, Any], batch: int, at_ms: int, rows: int, life: _Life
) -> None:
    field = "works" if "works" in recorded else "transactions"
    shared = [(rows + n) // len(recorded[field]) for n in range(len(recorded[field]))]
    works = [
        {**work, "opened_at_ms": at_ms + life.opened, "timeout_ms": 900_000, "rows": part}
        for work, part in zip(recorded[field], shared, strict=True)
    ]
    told = {**recorded, "batch_id": batch, "attempt": 1, "decided_at_ms": at_ms + life.decided}
    told[field] = works
    (decisions / str(batch)).mkdir(parents=True)
    (decisions / str(batch) / "1.json").write_text(json.dumps(told))


@contextmanager
def kept_alive(checkpoints: Sequence[Path]) -> Iterator[None]:
    """Drivers that go on, as whoever looks twice sees: all but those that ``OTHERS`` end."""
    going = [
        CheckpointStore.open(each)
        for each in checkpoints
        if OTHERS.get(int(each.parent.name[-3:])) not in ("silent", "failed", "stopped")
    ]

    def go_on(ended: threading.Event) -> None:
        while not ended.wait(1):
            for store in going:
                with contextlib.suppress(CheckpointFormatError):  # a test has damaged it
                    told = read_heartbeat(store)
                    assert told is not None
                    now_ms = time.time_ns() // 1_000_000
                    write_heartbeat(store, said_again(told, beat_at_ms=now_ms))

    with beside(go_on):
        yield


def said_again(told: Heartbeat, **changes: Any) -> Heartbeat:
    """An older heartbeat as a driver of today writes it, with changes."""
    fields = {name: getattr(told, name) for name in told.__struct_fields__}
    del fields["format_version"]
    return Heartbeat(**(fields | changes))


FAILED = (
    "TopicError: topic 'orders.clean' has 3 partitions, and had 6 when the query began. Somebody "
    "has made it anew: restore it, or begin a new checkpoint."
)
ENDED: dict[str, dict[str, Any]] = {
    "failed": {"phase": "failed", "end": "failed", "reason": FAILED},
    "stopped": {
        "phase": "stopped",
        "end": "drained",
        "drained_by": "cli ann",
        "reason": "cli ann: new release",
    },
    "idle": {"phase": "waiting"},
}


def _heart(checkpoint: Path, kind: str, batch: int, ended: int) -> None:
    store = CheckpointStore.open(checkpoint)
    told = read_heartbeat(store)
    assert told is not None
    is_over = kind in ("silent", "failed", "stopped")
    write_heartbeat(
        store,
        said_again(
            told,
            **{"phase": "settling", **ENDED.get(kind, {})},
            batch_id=batch,
            beat_at_ms=ended + 400 if is_over else int(time.time() * 1000),
            started_at_ms=ended - 7_200_000,
            interval_ms=2_000 if is_over else 3_600_000,
        ),
    )
    if kind == "draining":
        from airflow_eos.core.checkpoint import request_drain

        request_drain(store, requested_by="cli ann", reason="new release")
