"""Marks of rows that readers may see although no decision names them: ``eos/spent/<batch>/…``.

The driver writes ``mark`` before any row of the batch is written; a task writes ``<task>``, at
most once, before it writes rows.

Marks are kept for the batches that Spark may still run again. A task that wakes up after that
finds the place of its own mark empty, so it also looks for the driver's, which is removed first.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_eos.core.checkpoint.backend import SPENT, visibility_marker_path

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint import CheckpointStore
    from airflow_eos.core.protocol.decision import Guarantee


@dataclass(frozen=True)
class VisibilityMarkers:
    """Markers written before rows can become visible, by the driver and its tasks.

    Attributes:
        store: the checkpoint.
        run: a random id that tells this run's marks from all others.
    """

    store: CheckpointStore
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def of(cls, store: CheckpointStore, guarantee: Guarantee) -> VisibilityMarkers | None:
        """Return the markers of this run; None where tasks need no marks of their own."""
        return cls(store) if guarantee == "at_most_once" else None

    def begin(self, batch_id: int) -> bool:
        """Mark the batch; return True only for its first mark ever."""
        return self.store.create(
            visibility_marker_path(batch_id), f"{self.run} {uuid.uuid4().hex}".encode()
        )

    def begin_again(self, batch_id: int) -> None:
        """Mark the batch, whoever has marked it before."""
        self.store.put(visibility_marker_path(batch_id), self.run.encode())

    def is_first(self, batch_id: int, task: int) -> bool:
        """Whether a task may write: nobody has begun the task, and its driver's mark stands."""
        own = self.store.create(f"{SPENT}/{batch_id}/{task}", uuid.uuid4().hex.encode())
        standing = self.store.get(visibility_marker_path(batch_id)) if own else None
        return standing is not None and standing.startswith(self.run.encode())

    def prune(self, batch_id: int) -> None:
        """Remove a batch's marks, the driver's first: no task writes from then on."""
        self.store.delete([visibility_marker_path(batch_id)])
        self.store.delete_folder(f"{SPENT}/{batch_id}")
