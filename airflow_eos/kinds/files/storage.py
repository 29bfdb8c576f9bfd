"""The storage of data files: the operations of a folder, on a disk or in a bucket."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar
from urllib.parse import quote

import obstore.exceptions as failures

from airflow_eos.core.checkpoint.backend import StoredObject, is_hidden, stored_object
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
from airflow_eos.core.checkpoint.store import SMALLER, CheckpointStore
from airflow_eos.core.failpoints import failpoint
from airflow_eos.errors import ConfigurationError, Remedy, StoreError
from airflow_eos.kinds.files.names import KEPT, beside, works_of

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.locations import Guarded

_EXPECTED = {
    errno.ENOSPC: "Make room there: what is promised stays promised.",
    errno.EDQUOT: "Raise the quota, or make room: what is promised stays promised.",
    errno.EMFILE: "A task opens a file for each partition: raise 'ulimit -n', or repartition.",
    errno.ENAMETOOLONG: "A value of partition_by is longer than a name may be there: shorten it.",
    errno.EEXIST: "What is in the way is no file of this pipeline: move it elsewhere.",
    errno.ENOTDIR: "What is in the way is no folder of this pipeline: move it elsewhere.",
}
_NOTHING = ".there-is-no-such-file"
_OTHERWISE = "Driver, tasks and recovery must be one user that may write there."


class Disk:
    """See :class:`~airflow_eos.kinds.files.storage.DataFolder`.

    Args:
        root: the folder of data.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        there = root.resolve()  # follow links: files can be moved only on the disk that they are on
        if not there.name:
            raise ConfigurationError(
                f"{root} is the root of a disk, and what is not decided is kept beside the folder.",
                Remedy(change=f"give a folder in it, as {there / 'data'}"),
            )
        self._beside = there.parent / beside(there.name)
        self.address = str(root)
        self.url = f"file://{quote(self.address)}"
        self.store = CheckpointStore.open(root)
        self.beside = CheckpointStore.open(self._beside)

    def names(self) -> list[str]:
        """See :meth:`DataFolder.names`."""
        with self.refusing("listing the folder"):
            return _names(self._root)

    def kept(self, name: str) -> CheckpointStore:
        """See :meth:`DataFolder.kept`: a folder of the participant's own."""
        return CheckpointStore.open(self._beside / name)

    def check(self, name: str) -> None:
        """Create the folder, and the folder of work beside it; a link is always created once."""
        folder = self._at(works_of(name))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except PermissionError as error:
            raise ConfigurationError(
                f"{self._beside} cannot be made: {error}. What is not decided is kept beside the "
                f"folder {self._root}, since some readers take whatever is in it for data.",
                Remedy(change=f"let the app's user write to {self._beside.parent}", start=True),
                Remedy(change=f"give a folder in {self._root}", start=True),
            ) from error
        with self.refusing("making the folder of work"):
            self._root.mkdir(parents=True, exist_ok=True)
            for each in (folder, *self._above(folder), self._root, self._beside.parent):
                sync(each)
        self.require()

    def require(self) -> None:
        """Refuse where one of the two folders is missing, or they are on two disks."""
        with self.refusing("looking for the folder"):
            try:
                is_one = self._root.stat().st_dev == self._beside.stat().st_dev
            except FileNotFoundError as error:
                raise StoreError(
                    f"{error.filename} is not there. Is the disk mounted here? Nothing was "
                    "concluded from files that are not there."
                ) from error
            try:
                (self._beside / _NOTHING).rename(self._root / _NOTHING)
            except FileNotFoundError:  # one disk: the missing file is only noticed after that
                pass
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                is_one = False
        if not is_one:
            raise ConfigurationError(
                f"{self._root} is a disk of its own, and what is not decided is kept beside it, in "
                f"{self._beside}: no file can be moved from there without a copy.",
                Remedy(change=f"give a folder in it, as {self._root / 'data'}", start=True),
            )

    def create(self, path: str) -> BinaryIO:
        """Create and open the prepared file itself."""
        file = self._at(path)
        with self.refusing("making a file"):
            file.parent.mkdir(parents=True, exist_ok=True)
            return file.open("x+b")  # readable, too: its end is read again for its sum

    def keep(self, path: str, file: BinaryIO) -> None:
        """Sync the file and the folders of its path, and close it."""
        with self.refusing("syncing a file"):
            with file:
                os.fsync(file.fileno())
            for folder in self._above(self._at(path)):
                sync(folder)

    def read(self, path: str) -> bytes:
        """Read the file ``path``."""
        with self.refusing("reading a file"):
            return (self._at(path)).read_bytes()

    def publish(self, moves: Sequence[tuple[str, str]]) -> list[bool]:
        """Give each prepared file its visible name by a link, which never replaces a file."""
        published = []
        with self.refusing("publishing files"):
            for prepared, visible in moves:
                published.append(self._link(self._at(prepared), self._at(visible)))
                if published[-1]:
                    failpoint("settled-some")
        return published

    def settle(self, paths: Iterable[str]) -> None:
        """Sync the folders of visible files."""
        with self.refusing("syncing a folder"):
            for folder in {each for path in paths for each in self._above(self._at(path))}:
                sync(folder)

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the size in bytes of each file; raise where the disk does not answer."""
        with self.refusing("looking for files"):
            return [size_of(self._at(path)) for path in paths]

    def tails(self, files: Sequence[tuple[str, int]]) -> list[int | None]:
        """Return the sum of each file's end; raise where the disk does not answer."""
        with self.refusing("reading the end of files"):
            return [_tail_of(self._at(path), size) for path, size in files]

    def remove(self, paths: Sequence[str]) -> bool:
        """Remove files, and folders that are empty then; return whether any file was there."""
        with self.refusing("removing files"):
            removed = [remove(self._at(path)) for path in paths]
            for path in paths:
                self._remove_empty((self._at(path)).parent)
        return any(removed)

    def listed(self, folder: str) -> dict[str, list[StoredObject]]:
        """See :meth:`DataFolder.listed`."""
        with self.refusing("listing prepared files"):
            found: dict[str, list[StoredObject]] = {}
            for name in _names(self._at(folder)):
                if not is_hidden(name):
                    found[name] = self.below(f"{folder}/{name}")
            return found

    def below(self, path: str) -> list[StoredObject]:
        """List the file, or all files below the folder; a symbolic link is never our work."""
        at = self._at(path)
        with self.refusing("listing prepared files"):
            if at.is_symlink():
                return []
            below = os.walk(at, onerror=_raise_unless_gone)
            files = [Path(top) / name for top, _, names in below for name in names]
            return [
                entry
                for file in files or [at]
                for entry in _entry(file, f"{path}/{file.relative_to(at).as_posix()}")
            ]

    @contextlib.contextmanager
    def refusing(self, doing: str) -> Iterator[None]:
        """Translate an error of the disk into StoreError, so that it is never read as an answer."""
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"The disk refused while {doing} in {self._root}: {error}. "
                f"{_EXPECTED.get(error.errno or 0, _OTHERWISE)} Nothing was guessed; try again."
            ) from error

    def _link(self, prepared: Path, visible: Path) -> bool:
        with contextlib.suppress(FileNotFoundError):  # the prepared file is gone, or a folder
            self._make(visible.parent)
            try:
                visible.hardlink_to(prepared)
            except FileExistsError:  # linked before, by us or another process
                if not visible.samefile(prepared):
                    raise
            return True
        return False

    def _make(self, folder: Path) -> None:
        """Create a folder and its parents, but never the root: without it, the disk is missing."""
        if folder != self._root:
            self._make(folder.parent)
            folder.mkdir(exist_ok=True)

    def _at(self, path: str) -> Path:
        first, _, rest = path.partition("/")
        return self._beside / rest if first == KEPT else self._root / path

    def _above(self, path: Path) -> list[Path]:
        """Return the folders above a path, up to the root, or up to the folder beside it."""
        base = self._beside if path.is_relative_to(self._beside) else self._root
        return [base / each for each in path.relative_to(base).parents]

    def _remove_empty(self, folder: Path) -> None:
        while self._beside in folder.parents and folder.name != "work":
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone
                return
            folder = folder.parent


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _entry(file: Path, path: str) -> list[StoredObject]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # removed meanwhile
        found = file.stat()
        if not file.is_dir():
            at_ms = found.st_mtime_ns // 1_000_000
            return [StoredObject(path.removesuffix("/."), file.name, found.st_size, at_ms)]
    return []


def size_of(file: Path) -> int | None:
    """Return the size in bytes of a file; None where it is missing, or no file."""
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _tail_of(file: Path, size: int) -> int | None:
    """Return the sum of a file's end; None where it is missing, or no file."""
    if size_of(file) is None:
        return None
    with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
        return tail_in(opened, size)
    return None


def remove(file: Path) -> bool:
    """Remove a file; return whether it was there."""
    try:
        file.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        return [entry.name for entry in entries]
    return []


# --- bucket ---------------------------------------------------------------------------------------
# A prefix of a bucket: staged objects, copied by the server to their names if these are free.
#
# Why not a multipart upload that the commit completes: it could be completed once only, but no
# public function of obstore completes an upload of another process, and a store may drop an upload
# after some days. A copy costs three requests a file (begin, copy, complete) and sends no bytes
# through here; its last request carries ``If-None-Match: *``, so the second copy is refused.
# A copy that has begun can complete after the staged object is gone. Copies that were cut short
# leave parts behind, as any upload does: a rule of the bucket (AbortIncompleteMultipartUpload)
# removes them.


A = TypeVar("A")
B = TypeVar("B")

_AT_ONCE = 16
_RACERS = 8
_COPY = "aws_copy_if_not_exists"
_COPIED_AT_MOST = 5 << 30
"""The most bytes that S3's UploadPartCopy and CopyObject copy: obstore copies in one part."""
_IN_NO_XML = re.compile("[\ufffe\uffff]")  # control characters are escaped by Spark's own rule


class Bucket:
    """See :class:`~airflow_eos.kinds.files.storage.DataFolder`.

    Args:
        url: the URL of a prefix in the bucket.
        storage_options: see :meth:`CheckpointStore.open`.
    """

    def __init__(self, url: str, storage_options: Mapping[str, str] | None) -> None:
        found = located(url)
        self.url = found.uri
        self.address = printable(str(found))
        if found.path == "/":
            raise ConfigurationError(
                f"{self.address} is a whole bucket, and what is not decided is kept beside the "
                "folder.",
                Remedy(change=f"give a folder in it, as {self.address}/data"),
            )
        self._options = dict(storage_options or {})
        self._is_s3 = found.scheme.startswith("s3")
        if self._is_s3 and not any(map(_COPY.endswith, self._options)):
            self._options[_COPY] = "multipart"
        above, _, self._name = found.path.rpartition("/")
        self._beside = beside(self._name)
        self._kept = str(replace(found, path=f"{above}/{self._beside}"))
        self._backend: Guarded = open_remote(str(replace(found, path=above)), self._options)
        self.store = CheckpointStore.open(str(found), storage_options=self._options)
        self.beside = CheckpointStore.open(self._kept, storage_options=self._options)

    def names(self) -> list[str]:
        """See :meth:`DataFolder.names`."""
        with self.refusing("listing the folder"):
            found = self._backend.list_with_delimiter(self._name)
        paths = [*(meta["path"] for meta in found["objects"]), *found["common_prefixes"]]
        return [str(path).rpartition("/")[2] for path in paths]

    def kept(self, name: str) -> CheckpointStore:
        """See :meth:`DataFolder.kept`: a prefix of the participant's own."""
        return CheckpointStore.open(f"{self._kept}/{name}", storage_options=self._options)

    def check(self, name: str) -> None:
        """Race copies to one name, and creates of another: each race must have one winner.

        Its objects are not among the work, which other processes list and end.

        Raises:
            StoreError: a race has several winners, or none; or the store refuses.
        """
        path = f"{name}/.probe-{uuid.uuid4().hex}"
        names = [path, f"{path}-copied", f"{path}-created"]
        try:
            self.beside.put(names[0], b"probe")
            with self.refusing("trying it out"):
                copied = _raced(lambda: self._copy(f"{KEPT}/{names[0]}", f"{KEPT}/{names[1]}"))
            made = _raced(lambda: self.beside.create(names[2], uuid.uuid4().bytes))
        except BaseException:
            with contextlib.suppress(StoreError):  # the first error says more
                self.beside.delete(names)
            raise
        self.beside.delete(names)  # so that deletes are tried, too: each commit needs them
        for what, won in (("copies", copied), ("creates", made)):
            if won != 1:
                raise StoreError(
                    f"{self.address} let {won} of {_RACERS} {what} to one name win, expected one: "
                    "two processes could both publish a batch. Use Amazon S3, Google Cloud "
                    "Storage or Azure, or a store that honours 'If-None-Match: *' also where a "
                    f"multipart upload is completed ({_COPY}=multipart)."
                )

    def require(self) -> None:
        """Check nothing: a URL names one bucket, and a folder in it is only a part of names."""

    def create(self, path: str) -> BinaryIO:
        """Create a temporary file of this machine without a name, which is sent when it is whole.

        Raises:
            StoreError: ``path`` has a character that a store takes, but cannot list or remove.
        """
        if _IN_NO_XML.search(path):
            raise StoreError(
                f"{self.address}/{path!r} has a character that no XML can hold, and stores are "
                "asked in XML: it could be made, and never removed. Take U+FFFE and U+FFFF out of "
                "the columns of partition_by. Nothing of it is visible, and nothing is promised."
            )
        with self.refusing("making a file"):
            return tempfile.TemporaryFile()

    def keep(self, path: str, file: BinaryIO) -> None:
        """Send the file, durable when the store answers; refuse one too large to be published."""
        if self._is_s3 and (size := os.fstat(file.fileno()).st_size) > _COPIED_AT_MOST:
            raise StoreError(
                f"A task has {size} bytes for one file of {self.address}, and S3 copies "
                f"{_COPIED_AT_MOST} at once: decided, it could not be published. Nothing is "
                "promised.",
                SMALLER,
            )
        with self.refusing("sending a file"), file:
            file.seek(0)
            self._backend.upload(self._at(path), file)

    def read(self, path: str) -> bytes:
        """Read the object ``path``."""
        with self.refusing("reading a file"):
            return self._backend.get(self._at(path)).bytes()

    def publish(self, moves: Sequence[tuple[str, str]]) -> list[bool]:
        """Copy each object to its visible name on the server, which never replaces an object."""

        def publish(move: tuple[str, str]) -> bool:
            prepared, visible = move
            try:
                is_ours = self._copy(prepared, visible)
            except FileNotFoundError:
                return False
            if not is_ours and self._head(visible) is None:
                raise StoreError(
                    f"{self.address}/{visible} is taken, and nothing is there: another process may "
                    "be about to publish it. Nothing was guessed or removed; try again."
                )
            failpoint("settled-some")
            return True

        return _together(publish, moves)

    def settle(self, paths: Iterable[str]) -> None:
        """Do nothing: what a store answers is durable."""

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the size in bytes of each object; raise where the store does not answer."""

        def size(path: str) -> int | None:
            found = self._head(path)
            return None if found is None else found.size

        return _together(size, paths)

    def tails(self, files: Sequence[tuple[str, int]]) -> list[int | None]:
        """Return the sum of each object's end; raise where the store does not answer."""

        def tail(file: tuple[str, int]) -> int | None:
            path, size = file
            with self.refusing("reading the end of files"), contextlib.suppress(FileNotFoundError):
                first = max(0, size - TAIL_BYTES)
                return tail_of(
                    self._backend.get_range(self._at(path), first, size) if size else b""
                )
            return None

        return _together(tail, files)

    def remove(self, paths: Sequence[str]) -> bool:
        """Remove objects; return whether any was there, looked for first since S3 does not tell."""
        there = [
            path for path, size in zip(paths, self.sizes(paths), strict=True) if size is not None
        ]
        _together(self._delete, there)
        return bool(there)

    def listed(self, folder: str) -> dict[str, list[StoredObject]]:
        """See :meth:`DataFolder.listed`."""
        found: dict[str, list[StoredObject]] = {}
        for entry in self._all(folder):
            name = entry.path.removeprefix(f"{folder}/").partition("/")[0]
            if not is_hidden(name):
                found.setdefault(name, []).append(entry)
        return found

    def below(self, path: str) -> list[StoredObject]:
        """List the object ``path``, and all objects below it."""
        at = self._head(path)
        return [*([] if at is None else [at]), *self._all(path)]

    @contextlib.contextmanager
    def refusing(self, doing: str) -> Iterator[None]:
        """Translate an error of the store, or of the temporary disk, into StoreError."""
        try:
            yield
        except (failures.BaseError, OSError) as error:
            raise StoreError(
                f"Refused while {doing} in {self.address}: {brief(error)}. Expected the store to "
                "be reachable, credentials that allow it, and room for a task's files in this "
                "machine's temporary folder. Nothing was guessed; try again."
            ) from error

    def _copy(self, source: str, target: str) -> bool:
        """Copy an object; return whether this copy made it (FileNotFoundError: no ``source``)."""
        try:
            self._backend.copy_if_absent(self._at(source), self._at(target))
        except failures.AlreadyExistsError:
            return False  # copied before, by us or another process
        except FileNotFoundError:
            raise
        except (failures.BaseError, OSError) as error:
            with self.refusing(f"publishing {target}"):
                raise error from None
        return True

    def _head(self, path: str) -> StoredObject | None:
        """Ask the bucket, not ``store``: a path may have any character of a data value."""
        with self.refusing("looking for files"):
            try:
                return self._stored(self._backend.head(self._at(path)))
            except FileNotFoundError:
                return None

    def _delete(self, path: str) -> None:
        with self.refusing("removing files"), contextlib.suppress(FileNotFoundError):
            self._backend.delete(self._at(path))

    def _all(self, folder: str) -> list[StoredObject]:
        with self.refusing("listing prepared files"):
            return [self._stored(meta) for meta in self._backend.list_below(self._at(folder))]

    def _at(self, path: str) -> str:
        first, _, rest = path.partition("/")
        return f"{self._beside}/{rest}" if first == KEPT else f"{self._name}/{path}"

    def _stored(self, meta: Any) -> StoredObject:
        """Return an object's metadata, with its path relative as in :class:`DataFolder`."""
        found = stored_object(meta)
        first, _, rest = found.path.partition("/")
        return found._replace(path=f"{KEPT}/{rest}" if first == self._beside else rest)


def _together(do: Callable[[A], B], each: Iterable[A]) -> list[B]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(do, each))


def _raced(do: Callable[[], Any]) -> int:
    """Run ``do`` in several threads at one moment; return how many of them succeed."""
    start = threading.Barrier(_RACERS)

    def race(_: int) -> bool:
        start.wait()
        return bool(do())

    with ThreadPoolExecutor(_RACERS) as pool:
        return sum(pool.map(race, range(_RACERS)))


# --- place ----------------------------------------------------------------------------------------


class DataFolder(Protocol):
    """The storage of a folder of data; paths are relative, or begin with :data:`~.names.KEPT`.

    An error is never an answer (StoreError).
    """

    address: str
    """The folder's address, which never changes."""
    url: str
    """The folder's URL, as Spark names it."""
    store: CheckpointStore
    """The store of small objects in the folder: those of a log that readers know."""
    beside: CheckpointStore
    """The store of small objects beside the folder, where no reader looks."""

    def names(self) -> list[str]:
        """List the names of files and folders in the folder."""
        ...

    def kept(self, name: str) -> CheckpointStore:
        """Return the store of a participant beside the data; see :func:`.folder.kept_at`."""
        ...

    def check(self, name: str) -> None:
        """Refuse a place that takes no work, or lets two processes publish one name."""

    def require(self) -> None:
        """Refuse a place that is not there, or whose two folders are not on one disk."""

    def create(self, path: str) -> BinaryIO:
        """Open a new file, to be kept as ``path``; no reader finds it if its task is killed."""
        ...

    def keep(self, path: str, file: BinaryIO) -> None:
        """Close the file and make it durable as ``path``."""

    def read(self, path: str) -> bytes:
        """Read the file ``path``."""
        ...

    def publish(self, moves: Sequence[tuple[str, str]]) -> list[bool]:
        """Publish each (prepared, visible); False where the prepared file is missing."""
        ...

    def settle(self, paths: Iterable[str]) -> None:
        """Make visible files survive a power cut."""

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the size in bytes of each file; None where it is missing."""
        ...

    def tails(self, files: Sequence[tuple[str, int]]) -> list[int | None]:
        """Return the sum of each file's end, given (path, size); None where it is missing."""
        ...

    def remove(self, paths: Sequence[str]) -> bool:
        """Remove files; return whether any was there."""
        ...

    def listed(self, folder: str) -> dict[str, list[StoredObject]]:
        """List files in and below ``folder``, by the name of its direct, not hidden, entries.

        Hidden files are remains of a process that was killed before it renamed or removed them.
        """
        ...

    def below(self, path: str) -> list[StoredObject]:
        """List the file ``path``, or all files below it."""
        ...

    def refusing(self, doing: str) -> AbstractContextManager[None]:
        """Translate an error of the place into StoreError, which names what failed."""
        ...


def folder_at(folder: str | Path, storage_options: Mapping[str, str] | None = None) -> DataFolder:
    """Return the storage of a path or URL; nothing is contacted yet.

    Raises:
        StoreError: the scheme has no create-if-absent, or an option is not known.
    """
    local = as_local_path(str(folder))
    return Bucket(str(folder), storage_options) if local is None else Disk(local)


def visible_data(storage: DataFolder) -> str | None:
    """Return the name of a file or folder that readers see; None where there is none."""
    return next((name for name in sorted(storage.names()) if name[0] not in "._"), None)
