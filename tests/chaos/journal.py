"""What happened, for the judge: one JSON line an event, and the decisions that are pruned."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

from airflow_eos.core.checkpoint import CheckpointStore


class Journal:
    """Lines are appended whole (O_APPEND), so that processes need no lock and a kill tears none."""

    def __init__(self, file: Path, who: str) -> None:
        self.file = file
        self._who = who

    def note(self, event: str, **what: Any) -> None:
        entry = {"event": event, "at_ms": now_ms(), "who": self._who, **what}
        line = json.dumps(entry).encode() + b"\n"
        target = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(target, line)
        finally:
            os.close(target)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- keeping --------------------------------------------------------------------------------------
# What is pruned of the decisions is kept for the judge: readers are slower than retention.


def keep_what_is_pruned(store: CheckpointStore, kept: Path) -> None:
    """From now on this process copies to ``kept`` whatever it deletes by folder from ``store``.

    ``readers.decisions`` finds it there: whole, and before it is gone from the store.
    """
    real = CheckpointStore.delete_folder

    def delete_folder(self: CheckpointStore, prefix: str) -> bool:
        if self.location == store.location:
            kept.mkdir(exist_ok=True)
            for entry in self.list(prefix):
                data = self.get(entry.path)
                if data is not None:  # else another driver prunes as well
                    hidden = kept / f".{uuid.uuid4().hex}"
                    hidden.write_bytes(data)
                    hidden.rename(kept / f"{uuid.uuid4().hex}.json")
        return real(self, prefix)

    CheckpointStore.delete_folder = delete_folder  # type: ignore[method-assign]
