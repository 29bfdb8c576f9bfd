"""The files of a table's folder, on a disk or in a bucket: written by tasks, found and removed.

A path is relative to the table's folder. An error is never an answer (StoreError).
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import quote

import obstore.exceptions as failures

from airflow_eos.core.checkpoint.backend import stored_object
from airflow_eos.core.checkpoint.locations import (
    TAIL_BYTES,
    as_local_path,
    brief,
    located,
    open_remote,
    printable,
    sync,
    tail_in,
    tail_of,
)
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.errors import StoreError

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.locations import Guarded

_AT_ONCE = 16


class FileState(NamedTuple):
    """A file as it was found: bytes, the sum of its end (see ``tail_of``), ms since the epoch."""

    size: int
    tail: int
    modified_at_ms: int


class TableFiles(Protocol):
    """The files of one table; see :func:`table_files`."""

    address: str
    """The folder, as the pipeline's address and messages name it; without secrets."""
    uri: str
    """The folder, as readers of URIs name it."""

    def store(self, folder: str) -> CheckpointStore:
        """Return the store of small objects in a folder of the table."""
        ...

    def require(self, known: str) -> None:
        """Refuse a disk that is not mounted: ``known`` is there wherever the table is."""

    def begin(self, path: str) -> Any:
        """Open a new file, to be kept as ``path``."""
        ...

    def keep(self, path: str, file: Any) -> FileState:
        """Close the file, durable as ``path``; FileNotFoundError: it was removed meanwhile."""
        ...

    def drop(self, path: str, file: Any) -> None:
        """Close what was begun and remove it, whether it was kept or not."""

    def find(self, paths: Sequence[str]) -> list[FileState | None]:
        """Return the state of each file; None where it is missing."""
        ...

    def open(self, path: str) -> AbstractContextManager[Any]:
        """Open a file for Arrow to read pieces of it; FileNotFoundError: it is missing."""
        ...

    def read(self, path: str) -> bytes:
        """Read a small file whole; FileNotFoundError: it is missing."""
        ...

    def names(self, folder: str) -> list[str]:
        """List the names of the files directly in a folder."""
        ...

    def remove(self, paths: Collection[str]) -> None:
        """Remove files; one that is gone already is no error."""

    def sync(self, paths: Sequence[str]) -> None:
        """Make files and folders durable that another process wrote; missing ones are left out."""

    def refusing(self, doing: str) -> AbstractContextManager[None]:
        """Translate an error of the disk or the store into StoreError."""
        ...


def table_files(location: str, storage_options: Mapping[str, str] | None = None) -> TableFiles:
    """Return the files of a table at a path or URL; nothing is contacted yet.

    Args:
        location: of the table's folder.
        storage_options: of a bucket, as a checkpoint's store takes them.

    Raises:
        StoreError: the scheme or an option is not known.
    """
    local = as_local_path(location)
    return InBucket(location, storage_options) if local is None else OnDisk(local)


class OnDisk:
    """See :class:`TableFiles`: a folder of a disk that driver, tasks and recovery share."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.address = str(root)
        self.uri = f"file://{quote(self.address)}"

    def store(self, folder: str) -> CheckpointStore:
        """See :meth:`TableFiles.store`."""
        return CheckpointStore.open(self._root / folder)

    def require(self, known: str) -> None:
        """See :meth:`TableFiles.require`: made here, a file would be promised, and never found."""
        if not (self._root / known).is_dir():
            raise StoreError(
                f"{self._root / known} is not there. Is the disk mounted here, as on the driver "
                "and every executor? Nothing was concluded from what is not there, and nothing "
                "is promised."
            )

    def begin(self, path: str) -> Any:
        """See :meth:`TableFiles.begin`: the file itself."""
        import pyarrow as pa

        file = self._root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(str(file), "wb")  # written without a way through Python

    def keep(self, path: str, file: Any) -> FileState:
        """See :meth:`TableFiles.keep`."""
        file.close()
        whole = self._root / path
        for made in (whole, *whole.parents):  # a folder may be as new as the file
            if made == self._root.parent:
                break
            sync(made)
        return _state(whole)

    def drop(self, path: str, file: Any) -> None:
        """See :meth:`TableFiles.drop`; a file that cannot be closed is removed all the same."""
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        (self._root / path).unlink(missing_ok=True)

    def find(self, paths: Sequence[str]) -> list[FileState | None]:
        """See :meth:`TableFiles.find`."""
        found: list[FileState | None] = []
        with self.refusing("looking for files"):
            for path in paths:
                try:
                    found.append(_state(self._root / path))
                except FileNotFoundError:
                    found.append(None)
        return found

    def open(self, path: str) -> AbstractContextManager[Any]:
        """See :meth:`TableFiles.open`."""
        return (self._root / path).open("rb")

    def read(self, path: str) -> bytes:
        """See :meth:`TableFiles.read`."""
        return (self._root / path).read_bytes()

    def names(self, folder: str) -> list[str]:
        """See :meth:`TableFiles.names`."""
        with self.refusing("listing a folder"), contextlib.suppress(FileNotFoundError):
            return [each.name for each in (self._root / folder).iterdir()]
        return []

    def remove(self, paths: Collection[str]) -> None:
        """See :meth:`TableFiles.remove`."""
        with self.refusing("removing files"):
            for path in paths:
                (self._root / path).unlink(missing_ok=True)

    def sync(self, paths: Sequence[str]) -> None:
        """See :meth:`TableFiles.sync`."""
        with self.refusing("syncing"):
            for path in paths:
                with contextlib.suppress(FileNotFoundError):  # a newer one stands for it
                    sync(self._root / path)

    @contextlib.contextmanager
    def refusing(self, doing: str) -> Iterator[None]:
        """See :meth:`TableFiles.refusing`."""
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"The disk refused while {doing} of {self._root}: {error}. Make room there, or "
                "give driver, tasks and recovery one user that may write there. Nothing was "
                "guessed; try again."
            ) from error


def _state(file: Path) -> FileState:
    with file.open("rb") as opened:
        found = os.fstat(opened.fileno())
        tail = tail_in(opened, found.st_size)
    return FileState(found.st_size, tail, found.st_mtime_ns // 1_000_000)


class InBucket:
    """See :class:`TableFiles`: a prefix of a bucket, where what is answered is durable.

    A file is gathered on the task's own disk and sent when it is whole, in parts where it is large:
    so no reader and no cleaner ever sees a piece of one.
    """

    def __init__(self, location: str, storage_options: Mapping[str, str] | None) -> None:
        found = located(location)
        self.uri = found.uri.rstrip("/")
        self.address = printable(str(found)).rstrip("/")
        self._location = str(found).rstrip("/")
        self._options = dict(storage_options or {})
        self._backend: Guarded = open_remote(self._location, self._options)

    def store(self, folder: str) -> CheckpointStore:
        """See :meth:`TableFiles.store`."""
        return CheckpointStore.open(f"{self._location}/{folder}", storage_options=self._options)

    def require(self, known: str) -> None:
        """Check nothing: a URL names one bucket, and a folder in it is only a part of names."""

    def begin(self, path: str) -> Any:
        """See :meth:`TableFiles.begin`: a file of this machine without a name."""
        del path
        return tempfile.TemporaryFile()

    def keep(self, path: str, file: Any) -> FileState:
        """See :meth:`TableFiles.keep`: send the file; it is there whole or not at all."""
        with self.refusing("sending a file"), file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            tail = tail_of(file.read())
            file.seek(0)
            self._backend.upload(path, file)
            at_ms = stored_object(self._backend.head(path)).modified_at_ms
        return FileState(size, tail, at_ms)

    def drop(self, path: str, file: Any) -> None:
        """See :meth:`TableFiles.drop`."""
        if file is not None:
            file.close()
        self.remove([path])

    def find(self, paths: Sequence[str]) -> list[FileState | None]:
        """See :meth:`TableFiles.find`."""

        def state(path: str) -> FileState | None:
            with self.refusing("looking for files"), contextlib.suppress(FileNotFoundError):
                found = stored_object(self._backend.head(path))
                first = max(0, found.size - TAIL_BYTES)
                end = self._backend.get_range(path, first, found.size) if found.size else b""
                return FileState(found.size, tail_of(end), found.modified_at_ms)
            return None

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(state, paths))

    def open(self, path: str) -> AbstractContextManager[Any]:
        """See :meth:`TableFiles.open`."""
        return io.BufferedReader(_Object(self._backend, path), buffer_size=TAIL_BYTES)

    def read(self, path: str) -> bytes:
        """See :meth:`TableFiles.read`."""
        return self._backend.get(path).bytes()

    def names(self, folder: str) -> list[str]:
        """See :meth:`TableFiles.names`."""
        with self.refusing("listing a folder"):
            found = self._backend.list_with_delimiter(folder or None)
        return [stored_object(meta).name for meta in found["objects"]]

    def remove(self, paths: Collection[str]) -> None:
        """See :meth:`TableFiles.remove`."""

        def delete(path: str) -> None:
            with self.refusing("removing files"), contextlib.suppress(FileNotFoundError):
                self._backend.delete(path)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(delete, paths))

    def sync(self, paths: Sequence[str]) -> None:
        """Do nothing: what a store answers is durable."""

    @contextlib.contextmanager
    def refusing(self, doing: str) -> Iterator[None]:
        """See :meth:`TableFiles.refusing`."""
        try:
            yield
        except (failures.BaseError, OSError) as error:
            raise StoreError(
                f"Refused while {doing} of {self.address}: {brief(error)}. Expected the store to "
                "be reachable, credentials that allow it, and room for a task's files in this "
                "machine's temporary folder. Nothing was guessed; try again."
            ) from error


class _Object(io.RawIOBase):
    """An object of a bucket, of which pieces are read."""

    def __init__(self, backend: Guarded, path: str) -> None:
        self._backend, self._path, self._at = backend, path, 0
        self._size = stored_object(backend.head(path)).size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, into: Any) -> int:
        until = min(self._size, self._at + len(into))
        if until <= self._at:
            return 0
        piece = self._backend.get_range(self._path, self._at, until)
        into[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
