"""The files of a table's folder, on a disk, on HDFS or in a bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from airflow_eos.core.checkpoint.data_folder import DataFolder
from airflow_eos.core.checkpoint.locations import LocalFiles
from airflow_eos.errors import StoreError


class FileState(NamedTuple):
    """A file as it was found: bytes, the sum of its end (see ``tail_of``), ms since the epoch."""

    size: int
    tail: int
    modified_at_ms: int


class TableFiles(DataFolder):
    """See :class:`DataFolder`: the files of one table."""

    def require(self, known: str) -> None:
        """Refuse a disk that is not mounted: made there, a file would be promised, and never found.

        Args:
            known: a folder that is there wherever the table is. A URL names one store.
        """
        if self.disk is not None and not (self.disk / known).is_dir():
            raise StoreError(
                f"{self.disk / known} is not there. Is the disk mounted here, as on the driver "
                "and every executor? Nothing was concluded from what is not there, and nothing "
                "is promised."
            )

    def keep(self, path: str, file: Any) -> FileState:
        """Close the file, durable as ``path``; FileNotFoundError: it was removed meanwhile."""
        size, tail = self._close(path, file)
        found = self.head(path)
        if found is None:
            raise FileNotFoundError(path)
        return FileState(size, tail, found.modified_at_ms)

    def find(self, paths: Sequence[str]) -> list[FileState | None]:
        """Return the state of each file; None where it is missing."""

        def state(path: str) -> FileState | None:
            found = self.head(path)
            (tail,) = [None] if found is None else self.tails([(path, found.size)])
            if found is None or tail is None:
                return None
            return FileState(found.size, tail, found.modified_at_ms)

        return self._each(state, paths)

    def sync(self, paths: Sequence[str]) -> None:
        """Make files durable that another process wrote; missing ones are left out."""
        if isinstance(self._backend, LocalFiles):
            with self.refusing("syncing"):
                self._backend.sync(*paths)


def table_files(location: str, storage_options: Mapping[str, str] | None = None) -> TableFiles:
    """Return the files of a table at a path or URL; nothing is contacted yet.

    Args:
        location: of the table's folder.
        storage_options: of a bucket or of HDFS, as a checkpoint's store takes them.

    Raises:
        StoreError: the scheme or an option is not known.
    """
    return _kept(location, tuple(sorted((storage_options or {}).items())))


@lru_cache(maxsize=32)
def _kept(location: str, options: tuple[tuple[str, str], ...]) -> TableFiles:
    """Keep a store's connections, which take longer to make than a small file to write."""
    return TableFiles(location, dict(options))
