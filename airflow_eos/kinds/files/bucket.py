"""A prefix of a bucket: staged objects, copied by the server to their names if these are free.

Why not a multipart upload that the commit completes: it could be completed once only, but nothing
that is public in obstore completes an upload of another process, and a store may drop one that
nobody completes for some days. A copy costs three requests a file (begin, copy, complete) and no
bytes through here; its last one carries ``If-None-Match: *``, so whoever comes second is refused.
A copy that has begun can complete after the staged object is gone.
Copies that were cut short leave parts behind, as any upload does: a rule of the bucket
(AbortIncompleteMultipartUpload) removes them.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import obstore.exceptions as failures

from airflow_eos.checkpoint.backend import StoredObject, is_hidden, stored_object
from airflow_eos.checkpoint.locations import brief, located, open_remote, printable
from airflow_eos.checkpoint.store import CheckpointStore
from airflow_eos.errors import ConfigurationError, Remedy, StoreError
from airflow_eos.failpoints import failpoint
from airflow_eos.kinds.files.layout import KEPT, beside

if TYPE_CHECKING:
    from airflow_eos.checkpoint.locations import Guarded

A = TypeVar("A")
B = TypeVar("B")

_AT_ONCE = 16
_RACERS = 8
_COPY = "aws_copy_if_not_exists"
_IN_NO_XML = re.compile("[\ufffe\uffff]")  # control characters are escaped by Spark's own rule


class Bucket:
    """See :class:`~airflow_eos.kinds.files.place.DataFolder`.

    Args:
        url: of the bucket and a prefix in it.
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
        if found.scheme.startswith("s3") and not any(map(_COPY.endswith, self._options)):
            self._options[_COPY] = "multipart"
        above, _, self._name = found.path.rpartition("/")
        self._beside = beside(self._name)
        self._kept = str(replace(found, path=f"{above}/{self._beside}"))
        self._backend: Guarded = open_remote(str(replace(found, path=above)), self._options)
        self.store = CheckpointStore.open(str(found), storage_options=self._options)
        self.beside = CheckpointStore.open(self._kept, storage_options=self._options)

    def names(self) -> list[str]:
        """What lies in it."""
        with self.refusing("listing the folder"):
            found = self._backend.list_with_delimiter(self._name)
        paths = [*(meta["path"] for meta in found["objects"]), *found["common_prefixes"]]
        return [str(path).rpartition("/")[2] for path in paths]

    def kept(self, name: str) -> CheckpointStore:
        """A prefix of its own."""
        return CheckpointStore.open(f"{self._kept}/{name}", storage_options=self._options)

    def check(self, name: str) -> None:
        """Race copies to one name, and creates of another: each must have one winner.

        Not among the work, which other processes list and end.

        Raises:
            StoreError: it has several, or none; or the store refuses.
        """
        path = f"{name}/.probe-{uuid.uuid4().hex}"
        names = [path, f"{path}-copied", f"{path}-created"]
        try:
            self.beside.put(names[0], b"probe")
            with self.refusing("trying it out"):
                copied = _raced(lambda: self._copy(f"{KEPT}/{names[0]}", f"{KEPT}/{names[1]}"))
            made = _raced(lambda: self.beside.create(names[2], uuid.uuid4().bytes))
        finally:
            with contextlib.suppress(StoreError):  # what came before it says more
                self.beside.delete(names)
        for what, won in (("copies", copied), ("creates", made)):
            if won != 1:
                raise StoreError(
                    f"{self.address} let {won} of {_RACERS} {what} to one name win, expected one: "
                    "two processes could both publish a batch. Use Amazon S3, Google Cloud "
                    "Storage or Azure, or a store that honours 'If-None-Match: *' also where a "
                    f"multipart upload is completed ({_COPY}=multipart)."
                )

    def require(self) -> None:
        """A bucket is named by its URL, and a folder in it is nothing but a part of names."""

    def create(self, path: str) -> BinaryIO:
        """A file of this machine that has no name: it is sent when it is whole.

        Raises:
            StoreError: a store takes such a name, and is not asked to list or remove it.
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
        """Send it; the store answers when it has it."""
        with self.refusing("sending a file"), file:
            file.seek(0)
            self._backend.upload(self._at(path), file)

    def discard(self, path: str, file: BinaryIO) -> None:
        """It has no name, and what was sent before is not there."""
        file.close()
        self.remove([path])

    def read(self, path: str) -> bytes:
        """The object ``path``."""
        with self.refusing("reading a file"):
            return self._backend.get(self._at(path)).bytes()

    def publish(self, moves: Sequence[tuple[str, str]]) -> list[bool]:
        """Copy each to its name, on the server: it refuses to replace what is there."""

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
        """A store answers only what is durable."""

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """An error is no answer."""

        def size(path: str) -> int | None:
            found = self._head(path)
            return None if found is None else found.size

        return _together(size, paths)

    def remove(self, paths: Sequence[str]) -> bool:
        """S3 does not tell whether an object was there: it is looked for first."""
        there = [
            path for path, size in zip(paths, self.sizes(paths), strict=True) if size is not None
        ]
        _together(self._delete, there)
        return bool(there)

    def listed(self, folder: str) -> dict[str, list[StoredObject]]:
        """By the name of what lies in ``folder``, hidden ones left out: itself, or all below it."""
        found: dict[str, list[StoredObject]] = {}
        for entry in self._all(folder):
            name = entry.path.removeprefix(f"{folder}/").partition("/")[0]
            if not is_hidden(name):
                found.setdefault(name, []).append(entry)
        return found

    def below(self, path: str) -> list[StoredObject]:
        """The object, or all objects below it."""
        at = self._head(path)
        return [*([] if at is None else [at]), *self._all(path)]

    @contextlib.contextmanager
    def refusing(self, doing: str) -> Iterator[None]:
        """An error of the store, or of the scratch disk, is no answer (StoreError)."""
        try:
            yield
        except (failures.BaseError, OSError) as error:
            raise StoreError(
                f"Refused while {doing} in {self.address}: {brief(error)}. Expected the store to "
                "be reachable, credentials that allow it, and room for a task's files in this "
                "machine's temporary folder. Nothing was guessed; try again."
            ) from error

    def _copy(self, source: str, target: str) -> bool:
        """Whether it was ours that won.

        Raises:
            FileNotFoundError: there is no ``source``.
        """
        try:
            self._backend.copy_if_absent(self._at(source), self._at(target))
        except failures.AlreadyExistsError:
            return False  # by us before, or by another process
        except FileNotFoundError:
            raise
        except (failures.BaseError, OSError) as error:
            with self.refusing(f"publishing {target}"):
                raise error from None
        return True

    def _head(self, path: str) -> StoredObject | None:
        """Not by the store: a value of the data may be in the path, whatever its characters."""
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
        """With its path as others give it."""
        found = stored_object(meta)
        first, _, rest = found.path.partition("/")
        return found._replace(path=f"{KEPT}/{rest}" if first == self._beside else rest)


def _together(do: Callable[[A], B], each: Iterable[A]) -> list[B]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(do, each))


def _raced(do: Callable[[], Any]) -> int:
    """How many of those that begin at one moment win."""
    start = threading.Barrier(_RACERS)

    def race(_: int) -> bool:
        start.wait()
        return bool(do())

    with ThreadPoolExecutor(_RACERS) as pool:
        return sum(pool.map(race, range(_RACERS)))
