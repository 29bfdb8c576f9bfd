"""What is pruned of the decisions is kept for the judge: readers are slower than retention."""

from __future__ import annotations

import uuid
from pathlib import Path

from airflow_eos.checkpoint import CheckpointStore


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
