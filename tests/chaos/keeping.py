"""What is pruned of the decisions is kept for the judge: readers are slower than retention."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from airflow_eos.checkpoint import CheckpointStore


def keep_what_is_pruned(checkpoint: Path, kept: Path) -> None:
    """From now on this process links whatever of ``checkpoint`` it deletes by folder to ``kept``.

    ``readers.decisions`` finds it there.
    """
    real = CheckpointStore.delete_folder

    def delete_folder(self: CheckpointStore, prefix: str) -> bool:
        if self.location == str(checkpoint):
            kept.mkdir(exist_ok=True)
            for file in (checkpoint / prefix).glob("*.json"):
                os.link(file, kept / f"{uuid.uuid4().hex}.json")
        return real(self, prefix)

    CheckpointStore.delete_folder = delete_folder  # type: ignore[method-assign]
