"""Rows of work that its system may end by itself, kept in the checkpoint until readers have them.

``eos/kept/<name>/perishable/<batch>/<key>`` is what one task wrote for that participant, an Arrow
stream. It is created, if absent, before the task reports: so it stands before any decision can name
the work. It is read where the work was lost, and removed once its batch is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint.paths import EOS, is_batch
from airflow_eos.errors import StoreError
from airflow_eos.protocol.work import check_name, is_key

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_eos.checkpoint.store import CheckpointStore

_KEPT = f"{EOS}/kept"


class PerishableRows:
    """Those of all participants in one checkpoint.

    Args:
        store: of the checkpoint.
        keeping: the participants whose rows are kept by the query that runs.
    """

    def __init__(self, store: CheckpointStore, keeping: Collection[str] = ()) -> None:
        self._store = store
        self._keeping = keeping
        self._is_first = True

    def keep(self, name: str, batch: int, key: str, stream: bytes) -> None:
        """Make the rows durable beside prepared work, whose key was never used before.

        Raises:
            StoreError: it was, or the store refuses.
        """
        path = f"{_folder(name)}/{batch}/{key}"
        if not self._store.create(path, stream):
            raise StoreError(f"{self._store.location}/{path} is there already: a key came twice.")

    def keys(self, name: str, batch: int) -> frozenset[str]:
        """The keys of a batch whose rows are there."""
        found = self._store.list(f"{_folder(name)}/{batch}")
        return frozenset(each.name for each in found if is_key(each.name))

    def read(self, name: str, batch: int, key: str) -> bytes:
        """The rows.

        Raises:
            StoreError: they are gone, or cannot be read.
        """
        path = f"{_folder(name)}/{batch}/{key}"
        stream = self._store.get(path)
        if stream is None:
            raise StoreError(
                f"{self._store.location}/{path} was listed and is gone: promised rows that are "
                "kept are removed only once readers have them. Find out what deletes files there."
            )
        return stream

    def listed(self, batch: int) -> Sequence[str]:
        """The paths of all that is kept of a batch; only who is the newest after it may judge."""
        return [
            each.path
            for name in self._store.folders(_KEPT)
            for each in self._store.list(f"{_KEPT}/{name}/perishable/{batch}")
        ]

    def remove(self, paths: Sequence[str]) -> None:
        """Remove what nothing can name any more."""
        self._store.delete(paths)

    def prune(self, batch: int) -> None:
        """Remove all that is kept of batches up to this one, which is over.

        The first time of every participant, also of those that keep nothing any more. What a task
        that nobody waits for keeps later goes with the next batch.
        """
        names = self._store.folders(_KEPT) if self._is_first else self._keeping
        for name in names:
            folder = f"{_KEPT}/{name}/perishable"
            for found in self._store.folders(folder):
                if is_batch(found) and int(found) <= batch:
                    self._store.delete_folder(f"{folder}/{found}")
        self._is_first = False


def _folder(name: str) -> str:
    return f"{_KEPT}/{check_name(name)}/perishable"
