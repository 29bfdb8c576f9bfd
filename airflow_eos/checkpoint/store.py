"""One checkpoint folder as an object store whose *create* has exactly one winner.

The whole protocol rests on ``create``: put-if-absent is a hard link on local files and a
conditional put on S3, GCS and Azure. Everything else here is reading.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import obstore.exceptions as failures

from airflow_eos.checkpoint.backend import Foldered, StoredObject, stored_object
from airflow_eos.checkpoint.exclusive import ROUNDS_AT_A_START, check_create_if_absent
from airflow_eos.checkpoint.hdfs import open_hdfs
from airflow_eos.checkpoint.local_files import LocalFiles
from airflow_eos.checkpoint.locations import HDFS, brief, located, open_remote, printable
from airflow_eos.checkpoint.paths import EOS, is_hidden, require_inside
from airflow_eos.errors import StoreError
from airflow_eos.protocol.codec import Stored, decode
from airflow_eos.tally import WAITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_eos.checkpoint.backend import Backend
    from airflow_eos.protocol.codec import Upgrades

T = TypeVar("T", bound=Stored)

_FAILURES = (failures.BaseError, OSError)
_REFUSALS = (
    failures.PermissionDeniedError,
    failures.UnauthenticatedError,
    failures.NotSupportedError,
    failures.InvalidPathError,
    PermissionError,
)
_PAUSES_S = (0.0, 0.2, 1.0, 3.0)
"""Before each try of a create. obstore retries by itself (3 minutes); these come on top of it."""


class CheckpointStore:
    """The objects of one checkpoint. Paths are relative to it: ``offsets/7``, ``eos/driver.json``.

    Use :meth:`open`; the constructor takes any obstore store, for tests a ``MemoryStore``.
    """

    def __init__(self, backend: Backend, location: str) -> None:
        self._backend = backend
        self.location = location

    @classmethod
    def open(
        cls, location: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None
    ) -> CheckpointStore:
        """Open a path or a URL: ``file``, ``s3``, ``s3a``, ``gs``, ``az``, ``abfss``, ``hdfs``.

        Nothing is created and nothing is contacted. ``storage_options`` are obstore's
        configuration keys, such as ``aws_endpoint``, and its client options, such as ``timeout``
        or ``allow_http``, or those of :mod:`.hdfs`; without them the environment decides.

        Raises:
            StoreError: a scheme that cannot create-if-absent from here, or a wrong option.
            ConfigurationError: the library of ``hdfs://`` is missing.
        """
        text = os.fspath(location)
        found = located(text)
        if found.local is not None:
            return cls(LocalFiles(found.local), str(found))
        opened = open_hdfs if found.scheme == HDFS else open_remote
        return cls(opened(text, storage_options), printable(str(found)))

    def get(self, path: str) -> bytes | None:
        """Bytes of the object, or None when it is absent.

        Raises:
            StoreError: the store did not answer, or refused. That is never read as "absent".
        """
        require_inside(path)
        try:
            return bytes(self._backend.get(path).bytes())
        except FileNotFoundError:
            return None
        except _FAILURES as error:
            raise self._failed("reading", path, error) from error

    def read(self, path: str, kind: type[T], *, upgrades: Upgrades | None = None) -> T | None:
        """One of our own objects as what it says, or None where there is none.

        Raises:
            CheckpointFormatError: it cannot be read as a ``kind``.
            StoreError: as :meth:`get`.
        """
        data = self.get(path)
        if data is None:
            return None
        return decode(data, kind, f"{self.location}/{path}", upgrades=upgrades)

    def head(self, path: str) -> StoredObject | None:
        """Size and time of the object, or None when it is absent. Errors as :meth:`get`."""
        require_inside(path)
        try:
            return stored_object(self._backend.head(path))
        except FileNotFoundError:
            return None
        except _FAILURES as error:
            raise self._failed("looking at", path, error) from error

    def list(self, prefix: str) -> list[StoredObject]:
        """Objects directly under the folder ``prefix``, hidden ones left out; none is no error."""
        found = (stored_object(meta) for meta in self._listing(prefix)["objects"])
        return [entry for entry in found if not is_hidden(entry.name)]

    def folders(self, prefix: str) -> Sequence[str]:
        """Names of the folders directly under the folder ``prefix``."""
        return [path.rpartition("/")[2] for path in self._listing(prefix)["common_prefixes"]]

    def create(self, path: str, data: bytes) -> bool:
        """Create the object if it is absent: True when ``data`` is what stands there afterwards.

        An error, and even "already exists", may be the answer to our own write: a reply can be
        lost and obstore retries by itself. So what stands there is read back and compared, which
        is why two writers must never write equal bytes (decisions carry a nonce). Where nothing
        stands there, the same bytes are sent again: should the first request still arrive late,
        it finds them. On local files the object survives a power cut once this returns.

        Raises:
            StoreError: the store could not be asked; *it is then unknown whether* the object was
                or still will be written. The caller must not act on either assumption.
        """
        require_inside(path)
        failure: Exception | None = None
        for pause_s in _PAUSES_S:
            WAITS["store"] += pause_s > 0
            time.sleep(pause_s)
            try:
                self._backend.put(path, data, mode="create")
            except _FAILURES as error:
                failure = error
            else:
                return True
            standing = self._read_back(path)
            if standing is not None:
                self.make_durable(path)
                return standing == data
            if isinstance(failure, _REFUSALS):
                break
        raise StoreError(
            f"{self.location}: creating {path} failed: {brief(failure)}. Expected the store to "
            "create the object or to say that it exists. It is not known whether it was written: "
            "restore access to the store and run the same step again, which finds out."
        ) from failure

    def put(self, path: str, data: bytes) -> None:
        """Write the object whether or not it exists: only for what is never used as proof."""
        require_inside(path)
        try:
            self._backend.put(path, data, mode="overwrite")
        except _FAILURES as error:
            raise self._failed("writing", path, error) from error

    def delete(self, paths: Iterable[str]) -> None:
        """Delete the objects; those already gone are no error."""
        for path in paths:
            require_inside(path)
            try:
                self._backend.delete(path)
            except FileNotFoundError:
                continue
            except _FAILURES as error:
                raise self._failed("deleting", path, error) from error

    def delete_folder(self, prefix: str) -> bool:
        """Delete what lies directly under ``prefix``, hidden files too; False if nothing did.

        The highest number first, so that whoever reads meanwhile sees no gap below it.
        """
        found = [str(meta["path"]) for meta in self._listing(prefix)["objects"]]
        self.delete(sorted(found, key=lambda path: (len(path), path), reverse=True))
        if isinstance(self._backend, Foldered):
            self._backend.remove_folder(prefix)
        return bool(found)

    def make_durable(self, path: str) -> None:
        """Before acting on what *another* process wrote: make sure it outlives a power cut.

        It may have written the object and not yet synced it. Object stores answer only what is
        durable, so this does something on local files alone.
        """
        require_inside(path)
        if isinstance(self._backend, Foldered):
            try:
                self._backend.sync(path)
            except OSError as error:
                raise self._failed("syncing", path, error) from error

    def check_create_if_absent(self) -> None:
        """Prove on the real store that one create wins; leaves nothing behind.

        Raises:
            StoreError: it lets several win, or does not work at all.
        """
        # A hard link has one winner by what the kernel promises; who has none fails at the first.
        rounds = 0 if isinstance(self._backend, LocalFiles) else ROUNDS_AT_A_START
        with self.left_as_it_was():
            check_create_if_absent(self, rounds=rounds)

    @contextmanager
    def left_as_it_was(self) -> Iterator[None]:
        """Remove the folders that probes inside make: looking at a mistyped path leaves nothing."""
        folders = self._backend if isinstance(self._backend, Foldered) else None
        is_new = folders is not None and not folders.exists()
        try:
            yield
        finally:
            if folders is not None:
                folders.remove_folder(EOS)
                if is_new:
                    folders.remove_folder("")

    def _read_back(self, path: str) -> bytes | None:
        try:
            return self.get(path)
        except StoreError:
            return None  # as good as no answer: the create is tried again

    def _listing(self, prefix: str) -> Any:
        try:
            found = self._backend.list_with_delimiter(require_inside(prefix))
        except FileNotFoundError:
            return {"objects": [], "common_prefixes": []}
        except _FAILURES as error:
            raise self._failed("listing", prefix, error) from error
        # Hadoop marks a folder of a bucket by an empty object of its name, which lists itself.
        objects = [meta for meta in found["objects"] if str(meta["path"]) != prefix]
        return {"objects": objects, "common_prefixes": found["common_prefixes"]}

    def _failed(self, doing: str, path: str, error: Exception) -> StoreError:
        return StoreError(
            f"{self.location}: {doing} {path} failed: {brief(error)}. Expected the store to "
            "answer: check that it is reachable and that the credentials allow it, then try again."
        )
