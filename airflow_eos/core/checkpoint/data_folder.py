"""A folder of files on a disk, on HDFS or in a bucket: written by tasks, published, found, removed.

What :class:`~.store.CheckpointStore` is for small objects, this is for files of any size, on the
same backends and reached by the same options. Paths are relative to the folder.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar, cast

import obstore.exceptions as failures

from airflow_eos.core.checkpoint.backend import FileBackend, StoredObject, stored_object
from airflow_eos.core.checkpoint.locations import (
    TAIL_BYTES,
    LocalFiles,
    Location,
    brief,
    located,
    printable,
    tail_of,
)
from airflow_eos.core.checkpoint.store import CheckpointStore, open_backend
from airflow_eos.errors import StoreError

A = TypeVar("A")
B = TypeVar("B")

_AT_ONCE = 16
_EXPECTED = {
    errno.ENOSPC: "Make room there: what is promised stays promised.",
    errno.EDQUOT: "Raise the quota, or make room: what is promised stays promised.",
    errno.EMFILE: "A task opens a file for each partition: raise 'ulimit -n', or repartition.",
    errno.ENAMETOOLONG: "A value of partition_by is longer than a name may be there: shorten it.",
    errno.EEXIST: "What is in the way is no file of this pipeline: move it elsewhere.",
    errno.ENOTDIR: "What is in the way is no folder of this pipeline: move it elsewhere.",
}
_OTHERWISE = "Driver, tasks and recovery must be one user that may write there."
_OF_A_STORE = (
    "Expected the store to be reachable, credentials that allow it, and room for a task's files in "
    "this machine's temporary folder."
)
_GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors of a path at which no file is: of a disk, a folder may be there, or a file above it."""


class DataFolder:
    """A folder of files. An error is never an answer (StoreError).

    Nothing is contacted yet.

    Args:
        root: a folder above it, that paths of the backend are relative to; see :meth:`_at`.

    Raises:
        StoreError: the scheme has no create-if-absent, or an option is not known.
    """

    def __init__(
        self,
        location: str | Path,
        storage_options: Mapping[str, str] | None = None,
        *,
        root: Location | None = None,
    ) -> None:
        found = located(str(location))
        self.address = printable(str(found))
        """The folder, as the pipeline's address and messages name it; without secrets."""
        self.uri = found.uri.rstrip("/")
        """The folder, as readers of URIs name it."""
        self._location = str(found)
        self._options = dict(storage_options or {})
        opened = open_backend(str(root or found), self._options)
        self._backend = cast("FileBackend", opened)

    @property
    def disk(self) -> Path | None:
        """The folder that paths are relative to, where it is on a disk."""
        return self._backend.root if isinstance(self._backend, LocalFiles) else None

    def store_in(self, folder: str) -> CheckpointStore:
        """Return the store of small objects in a folder of this one."""
        at = f"{self._location}/{folder}".rstrip("/")
        return CheckpointStore.open(at, storage_options=self._options)

    def begin(self, path: str) -> Any:
        """Open a new file, to be kept as ``path``: there at once on a disk, else when it is kept.

        Elsewhere it is a file of this machine without a name, so that a task that is killed leaves
        no rows behind, and no reader or cleaner ever sees a piece of one.
        """
        with self.refusing("making a file"):
            if self.disk is None:
                return tempfile.TemporaryFile()
            import pyarrow as pa

            file = self.disk / self._at(path)
            file.parent.mkdir(parents=True, exist_ok=True)
            return pa.OSFile(str(file), "wb")  # written without a way through Python

    def _close(self, path: str, file: Any) -> tuple[int, int]:
        """Close the file, durable as ``path``; return its bytes, and the sum of its end.

        Raises:
            FileNotFoundError: of a disk, the file was removed meanwhile.
        """
        at = self._at(path)
        if isinstance(self._backend, LocalFiles):
            file.close()
            self._backend.settle(at)
            size = self._backend.head(at)["size"]
            return size, self._sum(at, size)
        with self.refusing("sending a file"), file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            tail = tail_of(file.read())
            file.seek(0)
            self._backend.upload(at, file)
        return size, tail

    def drop(self, path: str, file: Any) -> None:
        """Close what was begun and remove it, whether it was kept or not."""
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        self.remove([path])

    def open(self, path: str) -> AbstractContextManager[Any]:
        """Open a file for Arrow to read pieces of it; FileNotFoundError: it is missing."""
        if self.disk is not None:
            return (self.disk / self._at(path)).open("rb")
        return io.BufferedReader(_Pieces(self._backend, self._at(path)), buffer_size=TAIL_BYTES)

    def read(self, path: str) -> bytes:
        """Read a small file whole; FileNotFoundError: it is missing."""
        return bytes(self._backend.get(self._at(path)).bytes())

    def head(self, path: str) -> StoredObject | None:
        """Return size and time of a file; None where it is missing."""
        with self.refusing("looking for files"), contextlib.suppress(*_GONE):
            return self._stored(self._backend.head(self._at(path)))
        return None

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the size in bytes of each file; None where it is missing."""
        return [None if found is None else found.size for found in self._each(self.head, paths)]

    def tails(self, files: Sequence[tuple[str, int]]) -> list[int | None]:
        """Return the sum of each file's end, given (path, size); None where it is missing."""

        def tail(file: tuple[str, int]) -> int | None:
            with self.refusing("reading the end of files"), contextlib.suppress(*_GONE):
                return self._sum(self._at(file[0]), file[1])
            return None

        return self._each(tail, files)

    def names(self, folder: str) -> list[str]:
        """List the names of files and folders directly in a folder."""
        at = self._at(folder)
        with self.refusing("listing the folder"), contextlib.suppress(FileNotFoundError):
            found = self._backend.list_with_delimiter(at)
            paths = [*(meta["path"] for meta in found["objects"]), *found["common_prefixes"]]
            return [str(path).rpartition("/")[2] for path in paths if path != at]
        return []

    def below(self, path: str) -> list[StoredObject]:
        """List the file ``path``, or all files below the folder; what links lead to is not ours."""
        with self.refusing("listing prepared files"):
            return [self._stored(meta) for meta in self._backend.list_below(self._at(path))]

    def remove(self, paths: Collection[str]) -> None:
        """Remove files; one that is gone already is no error."""

        def delete(path: str) -> None:
            with self.refusing("removing files"), contextlib.suppress(*_GONE[:2]):
                self._backend.delete(self._at(path))

        self._each(delete, list(paths))

    @contextlib.contextmanager
    def refusing(self, doing: str) -> Iterator[None]:
        """Translate an error of disk or store into StoreError, so that it is never an answer."""
        try:
            yield
        except (failures.BaseError, OSError) as error:
            on_a_disk, number = self.disk is not None, getattr(error, "errno", None) or 0
            if isinstance(error, FileExistsError):  # of HDFS it has no number
                number = errno.EEXIST
            expected = _EXPECTED.get(number, _OTHERWISE)
            if not on_a_disk and number != errno.EEXIST:
                expected = _OF_A_STORE
            raise StoreError(
                f"{'The disk refused' if on_a_disk else 'Refused'} while {doing} in {self.address}"
                f": {error if on_a_disk else brief(error)}. {expected} Nothing was guessed; try "
                "again."
            ) from error

    def _at(self, path: str) -> str:
        """Return the path of a file as the backend has it."""
        return path

    def _stored(self, meta: Any) -> StoredObject:
        return stored_object(meta)

    def _sum(self, at: str, size: int) -> int:
        first = max(0, size - TAIL_BYTES)
        return tail_of(self._backend.get_range(at, first, size) if size else b"")

    def _each(self, do: Callable[[A], B], each: Sequence[A]) -> list[B]:
        """Do it for each, many at once where each is a request."""
        return list(map(do, each)) if self.disk is not None else at_once(do, each)


def at_once(do: Callable[[A], B], each: Sequence[A]) -> list[B]:
    """Do it for each, in threads where there are several: a thread costs more than a small file."""
    if len(each) < 2:
        return list(map(do, each))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(do, each))


class _Pieces(io.RawIOBase):
    """A file elsewhere, of which pieces are read."""

    def __init__(self, backend: FileBackend, path: str) -> None:
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
