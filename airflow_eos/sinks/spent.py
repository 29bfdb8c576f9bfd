"""Marks of what readers may see although no decision names it: ``eos/spent/<batch>/…``.

===========  =====================================================================================
``mark``     the driver's, before any row of the batch is written
``<task>``   a task's, at most once, before it writes
===========  =====================================================================================

They are kept for the batches that Spark may still run again. A task that wakes up after that finds
the place of its own mark empty, so it also looks for the driver's, which goes first.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.backend import SPENT
from airflow_eos.checkpoint.progress import read_state

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore
    from airflow_eos.sinks.port import Guarantee


@dataclass(frozen=True)
class Marks:
    """What one run of a query marks, its driver and, pickled, its tasks.

    Attributes:
        store: the checkpoint.
        run: tells this run's marks from those of others, for ever.
    """

    store: CheckpointStore
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def of(cls, store: CheckpointStore, guarantee: Guarantee) -> Marks | None:
        """None where tasks need no marks of their own."""
        return cls(store) if guarantee == "at_most_once" else None

    def begin(self, batch_id: int) -> bool:
        """Mark the batch; True for the first who ever did."""
        return self.store.create(_mark(batch_id), f"{self.run} {uuid.uuid4().hex}".encode())

    def begin_again(self, batch_id: int) -> None:
        """Mark the batch, whoever did before."""
        self.store.put(_mark(batch_id), self.run.encode())

    def is_first(self, batch_id: int, task: int) -> bool:
        """Whether a task may write: nobody has begun it, and its driver's mark stands."""
        own = self.store.create(f"{SPENT}/{batch_id}/{task}", uuid.uuid4().hex.encode())
        standing = self.store.get(_mark(batch_id)) if own else None
        return standing is not None and standing.startswith(self.run.encode())

    def prune(self, batch_id: int) -> None:
        """Forget a batch, the driver's mark first: no task writes from then on."""
        self.store.delete([_mark(batch_id)])
        self.store.delete_folder(f"{SPENT}/{batch_id}")


def is_spent(store: CheckpointStore) -> bool:
    """Whether rows of the batch in flight may be visible, although nothing has promised them."""
    batch = read_state(store).in_flight
    return batch is not None and store.head(_mark(batch)) is not None


def _mark(batch_id: int) -> str:
    return f"{SPENT}/{batch_id}/mark"
