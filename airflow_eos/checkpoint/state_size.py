"""``eos/state.json``: how large a query's state is, and what it costs a batch; for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint.paths import STATE
from airflow_eos.errors import CheckpointFormatError
from airflow_eos.protocol.codec import Stored, encode

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore


class StateSize(Stored, frozen=True, kw_only=True):
    """Of all stateful operators, after ``batch_id``; times in ms.

    ``update_ms`` and ``commit_ms`` are added up over the tasks, of which there are ``tasks``, so
    that their sum can exceed ``batch_ms``, which is by the clock. ``file_bytes`` is what RocksDB
    has on the executors' disks; None for Spark's default store, which has its state in memory.
    """

    batch_id: int
    rows: int
    memory_bytes: int
    file_bytes: int | None
    tasks: int
    update_ms: int
    commit_ms: int
    batch_ms: int


def read_state_size(store: CheckpointStore) -> StateSize | None:
    """The newest note; None where there is none, or one that nobody can read."""
    try:
        return store.read(STATE, StateSize)
    except CheckpointFormatError:
        return None  # the next batch writes it anew


def write_state_size(store: CheckpointStore, size: StateSize) -> None:
    """Replace the note."""
    store.put(STATE, encode(size))
