"""``eos/works/<participant>/<key>``: files that were begun, noted before the first byte of them.

A listing of the table's folder would not tell ours from another writer's, and costs more with every
batch; this one holds what is in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint.backend import EOS
from airflow_eos.errors import ConfigurationError
from airflow_eos.protocol.decision import is_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_eos.checkpoint.store import CheckpointStore

WORKS = f"{EOS}/works"


class WorkNotes:
    """The notes of one participant.

    Args:
        store: the pipeline's checkpoint.
        participant: its name in decisions.
    """

    def __init__(self, store: CheckpointStore, participant: str) -> None:
        self._store = store
        self._folder = f"{WORKS}/{participant}"

    def write(self, key: str, file: str) -> None:
        """Note it; durable on return. ``file`` is for people."""
        self._store.create(self._path(key), file.encode())

    def has(self, key: str) -> bool:
        """Whether it was noted and has not ended."""
        return self._store.head(self._path(key)) is not None

    def listed(self) -> list[tuple[str, int]]:
        """What has not ended: key, and when it was begun (ms since the epoch)."""
        return [
            (entry.name, entry.modified_at_ms)
            for entry in self._store.list(self._folder)
            if is_key(entry.name)
        ]

    def forget(self, keys: Iterable[str]) -> None:
        """They have ended; those gone already are no error."""
        self._store.delete(map(self._path, keys))

    def _path(self, key: str) -> str:
        return f"{self._folder}/{checked(key)}"


def checked(key: str) -> str:
    """Return ``key`` if a file may be called so (ConfigurationError)."""
    if not is_key(key):
        raise ConfigurationError(f"{key!r} is no key of a file: expected letters, digits and ._-")
    return key
