"""A folder of data files, and the folder beside it where files wait until they are decided."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from obstore.exceptions import AlreadyExistsError

from airflow_eos.core.checkpoint.backend import StoredObject, is_hidden
from airflow_eos.core.checkpoint.data_folder import DataFolder
from airflow_eos.core.checkpoint.locations import Guarded, LocalFiles, located
from airflow_eos.core.checkpoint.store import SMALLER, CheckpointStore
from airflow_eos.core.failpoints import failpoint
from airflow_eos.errors import ConfigurationError, Remedy, StoreError
from airflow_eos.kinds.files.names import KEPT, beside, works_of

_NOTHING = ".there-is-no-such-file"
_RACERS = 8
_COPIED_AT_MOST = 5 << 30
"""The most bytes that S3's UploadPartCopy and CopyObject copy: obstore copies in one part."""
_IN_NO_XML = re.compile("[\ufffe\uffff]")  # control characters are escaped by Spark's own rule


class StagedFolder(DataFolder):
    """See :class:`DataFolder`; a path that begins with :data:`~.names.KEPT` is beside the folder.

    On a disk a file is published by a link, on HDFS by a rename, in a bucket by a copy on the
    server: each refuses to replace a file.
    """

    def __init__(
        self, location: str | Path, storage_options: Mapping[str, str] | None = None
    ) -> None:
        found = located(str(location))
        if found.local is not None:  # follow links: files are moved only on the disk they are on
            found = replace(found, path=str(found.local.resolve()))
        above, _, self._name = found.path.rpartition("/")
        if not self._name:
            raise ConfigurationError(
                f"{location} is a whole disk or bucket, and what is not decided is kept beside the "
                "folder.",
                Remedy(change=f"give a folder in it, as {str(found).rstrip('/')}/data"),
            )
        self._beside = beside(self._name)
        self._kept = str(replace(found, path=f"{above}/{self._beside}"))
        super().__init__(location, storage_options, root=replace(found, path=above or "/"))
        self._is_s3 = found.scheme.startswith("s3")

    @cached_property
    def store(self) -> CheckpointStore:
        """The store of small objects in the folder: those of a log that readers know."""
        return self.store_in("")

    @cached_property
    def beside(self) -> CheckpointStore:
        """The store of small objects beside the folder, where no reader looks."""
        return CheckpointStore.open(self._kept, storage_options=self._options)

    @property
    def moves(self) -> bool:
        """Whether a file that is published is not prepared any more."""
        return not isinstance(self._backend, Guarded | LocalFiles)

    def kept(self, name: str) -> CheckpointStore:
        """Return the store of a participant beside the data; see :func:`.names.kept_at`."""
        return CheckpointStore.open(f"{self._kept}/{name}", storage_options=self._options)

    def check(self, name: str) -> None:
        """Refuse a place that takes no work, or lets two processes publish one name.

        The kernel and the name node promise a link, and a rename, one winner.
        """
        if self.disk is not None:
            self._make(self.disk, name)
        elif isinstance(self._backend, Guarded):
            self._race(self._backend, name)

    def require(self) -> None:
        """Refuse a disk that is not there, or whose two folders are not on one disk.

        A URL names one store, and a folder in it is never missing: there, nothing is checked.
        """
        if self.disk is None:
            return
        data, kept = self.disk / self._name, self.disk / self._beside
        with self.refusing("looking for the folder"):
            try:
                is_one = data.stat().st_dev == kept.stat().st_dev
            except FileNotFoundError as error:
                raise StoreError(
                    f"{error.filename} is not there. Is the disk mounted here? Nothing was "
                    "concluded from files that are not there."
                ) from error
            try:
                (kept / _NOTHING).rename(data / _NOTHING)
            except FileNotFoundError:  # one disk: the missing file is only noticed after that
                pass
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                is_one = False
        if not is_one:
            raise ConfigurationError(
                f"{self.address} is a disk of its own, and what is not decided is kept beside it, "
                f"in {kept}: no file can be moved from there without a copy.",
                Remedy(change=f"give a folder in it, as {self.address}/data", start=True),
            )

    def begin(self, path: str) -> Any:
        """See :meth:`DataFolder.begin`.

        Raises:
            StoreError: ``path`` has a character that a bucket takes, but cannot list or remove.
        """
        if self.disk is None and _IN_NO_XML.search(path):
            raise StoreError(
                f"{self.address}/{path!r} has a character that no XML can hold, and stores are "
                "asked in XML: it could be made, and never removed. Take U+FFFE and U+FFFF out of "
                "the columns of partition_by. Nothing of it is visible, and nothing is promised."
            )
        return super().begin(path)

    def keep(self, path: str, file: Any) -> tuple[int, int]:
        """Close the file, durable as ``path``; return its bytes, and the sum of its end.

        Raises:
            StoreError: it is too large to be published.
        """
        if self._is_s3 and (size := os.fstat(file.fileno()).st_size) > _COPIED_AT_MOST:
            raise StoreError(
                f"A task has {size} bytes for one file of {self.address}, and S3 copies "
                f"{_COPIED_AT_MOST} at once: decided, it could not be published. Nothing is "
                "promised.",
                SMALLER,
            )
        return self._close(path, file)

    def publish(self, moves: Sequence[tuple[str, str]]) -> list[bool]:
        """Publish each (prepared, visible); False where the prepared file is missing."""

        def publish(move: tuple[str, str]) -> bool:
            with self.refusing("publishing files"):
                try:
                    self._backend.publish(*map(self._at, move))
                except FileNotFoundError:
                    return False
            failpoint("settled-some")
            return True

        return self._each(publish, moves)

    def settle(self, paths: Iterable[str]) -> None:
        """Make the names of visible files survive a power cut."""
        if isinstance(self._backend, LocalFiles):
            with self.refusing("syncing a folder"):
                self._backend.sync_folders(*map(self._at, paths))

    def ended(self, paths: Sequence[str]) -> bool:
        """Remove files; return whether any was there, looked for first since S3 does not tell."""
        there = any(size is not None for size in self.sizes(paths))
        self.remove(paths)
        return there

    def remove(self, paths: Collection[str]) -> None:
        """See :meth:`DataFolder.remove`; folders of work that are empty then go, too."""
        super().remove(paths)
        folders = {up for path in paths if path.startswith(f"{KEPT}/") for up in _of_work(path)}
        for folder in sorted(folders, key=len, reverse=True):
            self._backend.remove_folder(self._at(folder))

    def listed(self, folder: str) -> dict[str, list[StoredObject]]:
        """List files in and below ``folder``, by the name of its direct, not hidden, entries.

        Hidden files are remains of a process that was killed before it renamed or removed them.
        """
        found: dict[str, list[StoredObject]] = {}
        for entry in self.below(folder):
            name = entry.path.removeprefix(f"{folder}/").partition("/")[0]
            if not is_hidden(name):
                found.setdefault(name, []).append(entry)
        return found

    def _make(self, disk: Path, name: str) -> None:
        """Create the folder, and the folder of work beside it."""
        data, work = self._at(""), self._at(works_of(name))
        try:
            (disk / work).mkdir(parents=True, exist_ok=True)
        except PermissionError as error:
            raise ConfigurationError(
                f"{disk / self._beside} cannot be made: {error}. What is not decided is kept "
                f"beside the folder {self.address}, since some readers take whatever is in it for "
                "data.",
                Remedy(change=f"let the app's user write to {disk}", start=True),
                Remedy(change=f"give a folder in {self.address}", start=True),
            ) from error
        with self.refusing("making the folder of work"):
            (disk / data).mkdir(parents=True, exist_ok=True)
        self.settle([f"{works_of(name)}/{_NOTHING}", _NOTHING])
        self.require()

    def _race(self, bucket: Guarded, name: str) -> None:
        """Race copies to one name, and creates of another: each race must have one winner.

        Its objects are not among the work, which other processes list and end.

        Raises:
            StoreError: a race has several winners, or none; or the store refuses.
        """
        path = f"{name}/.probe-{uuid.uuid4().hex}"
        names = [path, f"{path}-copied", f"{path}-created"]
        source, target = (self._at(f"{KEPT}/{each}") for each in names[:2])
        try:
            self.beside.put(names[0], b"probe")
            with self.refusing("trying it out"):
                copied = _raced(lambda: _copied(bucket, source, target))
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
                    "multipart upload is completed (aws_copy_if_not_exists=multipart)."
                )

    def _at(self, path: str) -> str:
        first, _, rest = path.partition("/")
        return f"{self._beside}/{rest}" if first == KEPT else f"{self._name}/{path}".rstrip("/")

    def _stored(self, meta: Any) -> StoredObject:
        found = super()._stored(meta)
        first, _, rest = found.path.partition("/")
        return found._replace(path=f"{KEPT}/{rest}" if first == self._beside else rest)


def _of_work(path: str) -> list[str]:
    """Return the folders above prepared work, up to the one of all work: ``_eos/name/work``."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(4, len(parts))]


def _copied(bucket: Guarded, source: str, target: str) -> bool:
    try:
        bucket.copy_if_absent(source, target)
    except AlreadyExistsError:
        return False
    return True


def _raced(do: Callable[[], bool]) -> int:
    """Run ``do`` in several threads at one moment; return how many of them succeed."""
    start = threading.Barrier(_RACERS)

    def race(_: int) -> bool:
        start.wait()
        return do()

    with ThreadPoolExecutor(_RACERS) as pool:
        return sum(pool.map(race, range(_RACERS)))


def visible_data(storage: StagedFolder) -> str | None:
    """Return the name of a file or folder that readers see; None where there is none."""
    return next((name for name in sorted(storage.names("")) if name[0] not in "._"), None)
