"""Where data files are: what files as a participant ask of a disk, or of a bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from airflow_eos.checkpoint.locations import as_local_path
from airflow_eos.kinds.files.bucket import Bucket
from airflow_eos.kinds.files.disk import Disk

if TYPE_CHECKING:
    from airflow_eos.checkpoint.backend import StoredObject
    from airflow_eos.checkpoint.store import CheckpointStore


class DataFolder(Protocol):
    """A folder of data; paths are relative to it, or begin with :data:`~.layout.KEPT`.

    An error is never an answer (StoreError).
    """

    address: str
    """What never changes of it."""
    url: str
    """How Spark names it."""
    store: CheckpointStore
    """Small objects in it, whole: those of a log that readers know."""
    beside: CheckpointStore
    """Those beside it, where no reader looks."""

    def names(self) -> list[str]:
        """What lies in it."""
        ...

    def kept(self, name: str) -> CheckpointStore:
        """What a participant keeps beside the data; see :func:`.layout.kept_at`."""
        ...

    def check(self, name: str) -> None:
        """Refuse a place that takes no work, or lets two publish one name."""

    def require(self) -> None:
        """Refuse a place that is not there, or whose two halves are not of one disk."""

    def create(self, path: str) -> BinaryIO:
        """A file that a task writes, to be kept as ``path``; nobody finds it where it is killed."""
        ...

    def keep(self, path: str, file: BinaryIO) -> None:
        """What was written is durable on return, as ``path``; the file is closed."""

    def discard(self, path: str, file: BinaryIO) -> None:
        """Nobody keeps what was written."""

    def read(self, path: str) -> bytes:
        """The file ``path``."""
        ...

    def publish(self, moves: Sequence[tuple[str, str]]) -> list[bool]:
        """For each (prepared, visible): whether it is visible; False where it is not prepared."""
        ...

    def settle(self, paths: Iterable[str]) -> None:
        """What is visible survives a power cut."""

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Bytes of each; None where it is not there."""
        ...

    def remove(self, paths: Sequence[str]) -> bool:
        """Whether any was there."""
        ...

    def listed(self, folder: str) -> dict[str, list[StoredObject]]:
        """By the name of what lies in ``folder``, hidden ones left out: itself, or all below it.

        Those are what a process that was killed has not renamed or removed any more.
        """
        ...

    def below(self, path: str) -> list[StoredObject]:
        """The file ``path``, or all files below it."""
        ...

    def refusing(self, doing: str) -> AbstractContextManager[None]:
        """An error of the place inside is raised as StoreError, which says so."""
        ...


def opened(folder: str | Path, storage_options: Mapping[str, str] | None = None) -> DataFolder:
    """The place of a path or URL; nothing is contacted yet.

    Raises:
        StoreError: a scheme that has no create-if-absent, or options that are none.
    """
    local = as_local_path(str(folder))
    return Bucket(str(folder), storage_options) if local is None else Disk(local)


def visible_data(place: DataFolder) -> str | None:
    """Something that readers of the folder see; None where there is nothing."""
    return next((name for name in sorted(place.names()) if name[0] not in "._"), None)
