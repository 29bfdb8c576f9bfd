"""A checkpoint that a driver has left, and one whose driver seems to live."""

from __future__ import annotations

import tarfile
import time
from pathlib import Path
from typing import Any

from airflow_eos.checkpoint import CheckpointStore, read_heartbeat, write_heartbeat
from tests.support.fleet import said_again

RECORDED = Path(__file__).parents[2] / "recorded" / "format_1" / "recording.tar.xz"


def recorded_checkpoint(folder: Path, name: str = "killed-settling") -> Path:
    """A copy of a recorded checkpoint: its driver was killed with a batch in flight."""
    with tarfile.open(RECORDED) as archive:
        wanted = [m for m in archive.getmembers() if m.name.startswith(f"{name}/checkpoint")]
        archive.extractall(folder, wanted, filter="data")
    return folder / name / "checkpoint"


def beats(checkpoint: Path) -> None:
    """Its driver gives a sign of life now, which stands for an hour."""
    _changed(checkpoint, beat_at_ms=time.time_ns() // 1_000_000, interval_ms=3_600_000)


def falls_silent(checkpoint: Path) -> None:
    """Its last sign of life is of long ago again."""
    _changed(checkpoint, beat_at_ms=1, interval_ms=2_000)


def _changed(checkpoint: Path, **changes: Any) -> None:
    store = CheckpointStore.open(checkpoint)
    heartbeat = read_heartbeat(store)
    assert heartbeat is not None
    write_heartbeat(store, said_again(heartbeat, **changes))
