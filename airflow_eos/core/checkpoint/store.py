"""One checkpoint folder as an object store whose *create* has exactly one winner.

The whole protocol rests on ``create``: put-if-absent is a hard link on local files and a
conditional put on S3, GCS and Azure. Everything else here is reading.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Barrier
from typing import Any, NamedTuple, TypeVar, cast

import obstore.exceptions as failures

from airflow_eos.core.checkpoint.backend import (
    EOS,
    Backend,
    Foldered,
    StoredObject,
    is_hidden,
    require_inside,
    require_readable,
    stored_object,
)
from airflow_eos.core.checkpoint.hdfs import open_hdfs
from airflow_eos.core.checkpoint.locations import (
    HDFS,
    LocalFiles,
    brief,
    lacking_keys,
    located,
    open_remote,
    printable,
    said_code,
    text_of,
)
from airflow_eos.core.protocol.decision import Stored, Upgrades, decode
from airflow_eos.core.tally import RETRY_COUNTS
from airflow_eos.errors import Remedy, StoreError

RACERS = 8
ROUNDS_AT_A_START = 8
"""In all 64 small writes, below a second on S3. Adobe's s3mock, which looks and then writes, lets
several win in a third of the rounds: 8 let it pass once in thirty starts, the doctor's 40 never."""


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The result of a race of creates.

    Attributes:
        rounds: how often ``racers`` wanted the same new name at once.
        several: rounds in which more than one racer was told that he won.
        nobody: rounds in which no racer was told so.
        torn: rounds after which something else stood there than what the only winner wrote.
    """

    racers: int
    rounds: int
    several: int
    nobody: int
    torn: int

    @property
    def is_exclusive(self) -> bool:
        """Whether each round had one winner, and his content stood there."""
        return not (self.several or self.nobody or self.torn)


def race_create(store: CheckpointStore, *, rounds: int) -> RaceResult:
    """Let several threads create the same new object at once, ``rounds`` times.

    Raises:
        StoreError: the store did not answer.
    """
    several = nobody = torn = 0
    run = uuid.uuid4().hex
    with ThreadPoolExecutor(RACERS) as pool:
        for number in range(rounds):
            path = f"{EOS}/.probe-{run}-{number}"
            gate = Barrier(RACERS)

            def create(racer: int, path: str = path, gate: Barrier = gate) -> bool:
                gate.wait()
                return store.create(path, content_of(racer))

            try:
                won = list(pool.map(create, range(RACERS)))
                stands = store.get(path)
            finally:
                store.delete([path])
            several += won.count(True) > 1
            nobody += won.count(True) == 0
            torn += won.count(True) == 1 and stands != content_of(won.index(True))
    return RaceResult(RACERS, rounds, several, nobody, torn)


def check_create_if_absent(store: CheckpointStore, *, rounds: int) -> None:
    """Prove on the real store that a second create is refused; leaves nothing behind.

    Args:
        store: the one to prove it on.
        rounds: those of a race after it; 0 where the operating system itself guarantees it.

    Raises:
        StoreError: a second create replaced the first, or the store does not work at all.
    """
    path = f"{EOS}/.probe-{uuid.uuid4().hex}"
    first, second = b"first", b"second"
    try:
        if not store.create(path, first):
            raise StoreError(
                f"{store.location}: a new object {path} was written but does not read back. "
                "Use a store that reads its own writes."
            )
        if store.create(path, second) or store.get(path) != first:
            raise _refused(store, "let a second create replace the first one")
    finally:
        with contextlib.suppress(StoreError):  # what went wrong is already on its way
            store.delete([path])
    found = race_create(store, rounds=rounds)
    if not found.is_exclusive:
        raise _refused(
            store, f"failed a race of {found.racers} creates at once: {sentence_of(found)}"
        )


class ClockReading(NamedTuple):
    """The store's time, and this machine's before and after it was told; ms since the epoch."""

    before_ms: int
    told_ms: int | None
    """None where what was just written is not there."""
    after_ms: int


def read_clock(store: CheckpointStore) -> ClockReading:
    """Ask the store for its time, by a probe that is removed."""
    path = f"{EOS}/.probe-{uuid.uuid4().hex}"
    before_ms = time.time_ns() // 1_000_000
    store.put(path, b"what time is it")
    after_ms = time.time_ns() // 1_000_000
    try:
        written = store.head(path)
    finally:
        store.delete([path])
    return ClockReading(before_ms, None if written is None else written.modified_at_ms, after_ms)


def sentence_of(found: RaceResult) -> str:
    """Say how a race ended, for people."""
    counts = {"several won": found.several, "nobody won": found.nobody, "torn": found.torn}
    wrong = ", ".join(f"{name} in {count}" for name, count in counts.items() if count)
    return f"{wrong or 'one winner in each'} of {found.rounds} rounds"


def _refused(store: CheckpointStore, found: str) -> StoreError:
    return StoreError(
        f"{store.location} {found}, so two drivers could both decide a batch. Expected 'already "
        "exists' for all but one. Put the checkpoint on a local disk, HDFS, S3, GCS or Azure, or "
        "on an S3-compatible store that honours 'If-None-Match: *' for those who come at once."
    )


def content_of(racer: int) -> bytes:
    """Return what this racer writes: some kilobytes, of which a part would show."""
    return f"{racer} ".encode() * 2048


T = TypeVar("T", bound=Stored)

_FAILURES = (failures.BaseError, OSError)
_REFUSALS = (
    failures.PermissionDeniedError,
    failures.UnauthenticatedError,
    failures.NotSupportedError,
    failures.InvalidPathError,
    PermissionError,
)
_IN_THE_WAY = (IsADirectoryError, NotADirectoryError, FileExistsError)
_OF_A_FILE = re.compile(
    r"(^|/)((offsets|commits|_spark_metadata)/[0-9]+(\.compact)?|[^/]+\.json)$", re.ASCII
)
"""Paths of files, where a folder must not stand."""
_OF_A_DISK = {
    errno.ENOSPC: Remedy(change="make room on the disk of CHECKPOINT", start=True),
    errno.EDQUOT: Remedy(change="raise the quota there, or make room", start=True),
    errno.EROFS: Remedy(change="mount the disk of CHECKPOINT so that it can be written to"),
}
"""CHECKPOINT is the store's folder: of data, too, which may be on another disk."""
SMALLER = Remedy(
    change="let more tasks write (repartition), or make batches smaller (maxOffsetsPerTrigger)",
    start=True,
)
"""For a task that has more for one object than could be read or copied once it is promised."""
_PAUSES_S = (0.0, 0.2, 1.0, 3.0)
"""Pauses before each try of a create, on top of obstore's own retries (3 minutes)."""


_OF_A_CLOCK = {
    "RequestTimeTooSkewed": Remedy(
        change="set this machine's clock: the store refuses whoever is 15 minutes off", start=True
    )
}


def _neither_reach_nor_keys(error: Exception | None, location: str) -> Remedy | None:
    """Return the remedy where a disk lacks something, or a clock is wrong; else None."""
    told = _OF_A_DISK.get(getattr(error, "errno", None) or 0)
    if told is not None:
        return replace(told, change=told.change.replace("CHECKPOINT", location))
    return _OF_A_CLOCK.get(said_code(error))


def open_backend(location: str, storage_options: Mapping[str, str] | None) -> Backend:
    """Return the backend of a path or URL; see :meth:`CheckpointStore.open`."""
    found = located(location)
    if found.local is not None:
        return LocalFiles(found.local)
    opened = open_hdfs if found.scheme == HDFS else open_remote
    return cast("Backend", opened(location, storage_options))


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
        text = text_of(location)
        found = located(text)
        if found.scheme == HDFS and found.path == "/":
            raise StoreError(
                f"{printable(text)} names no folder: expected hdfs://namenode:8020/path, "
                "hdfs://nameservice/path, or hdfs:///path where fs.defaultFS says the rest."
            )
        return cls(open_backend(text, storage_options), printable(str(found)))

    def get(self, path: str) -> bytes | None:
        """Return the object's bytes, or None when it is absent.

        Raises:
            StoreError: the store did not answer, or refused. Neither is ever read as "absent".
        """
        require_inside(path)
        try:
            return bytes(self._backend.get(path).bytes())
        except FileNotFoundError:
            return None
        except _FAILURES as error:
            raise self._failed("reading", path, error) from error

    def read(self, path: str, kind: type[T], *, upgrades: Upgrades | None = None) -> T | None:
        """Read one of our own objects as a ``kind``, or None where there is none.

        Raises:
            CheckpointFormatError: the object cannot be read as a ``kind``.
            StoreError: as :meth:`get`.
        """
        data = self.get(path)
        if data is None:
            return None
        return decode(data, kind, f"{self.location}/{path}", upgrades=upgrades)

    def head(self, path: str) -> StoredObject | None:
        """Return size and time of the object, or None when it is absent. Errors as :meth:`get`."""
        require_inside(path)
        try:
            return stored_object(self._backend.head(path))
        except FileNotFoundError:
            return None
        except _FAILURES as error:
            raise self._failed("looking at", path, error) from error

    def list(self, prefix: str) -> list[StoredObject]:
        """List objects directly under the folder ``prefix`` but hidden ones; no folder, no objects.

        Raises:
            StoreError: as :meth:`get`, and where a folder stands in the place of a file.
        """
        listed = self._listing(prefix)
        if folders := [each for each in listed["common_prefixes"] if _OF_A_FILE.search(str(each))]:
            raise self._in_the_way(str(folders[0]))
        found = (stored_object(meta) for meta in listed["objects"])
        return [entry for entry in found if not is_hidden(entry.name)]

    def folders(self, prefix: str) -> Sequence[str]:
        """List the names of the folders directly under the folder ``prefix``."""
        return [path.rpartition("/")[2] for path in self._listing(prefix)["common_prefixes"]]

    def below(self, prefix: str) -> Iterator[str]:
        """List the paths of all objects, but hidden ones, in the folder ``prefix`` and below."""
        for entry in self.list(prefix):
            yield entry.path
        for name in self.folders(prefix):
            yield from self.below(f"{prefix}/{name}")

    def create(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        """Create the object if it is absent; True when ``data`` is what stands there afterwards.

        An error, and even "already exists", may be the answer to our own write: a reply can be
        lost and obstore retries by itself. So what stands there is read back and compared, which
        is why two writers must never write equal bytes (decisions carry a nonce). Where nothing
        stands there, the same bytes are sent again: should the first request still arrive late,
        it finds them. On local files the object survives a power cut once this returns, if it is
        to be ``durable``: a sync takes milliseconds.

        Raises:
            StoreError: the store could not be asked; *it is then unknown whether* the object was
                or still will be written. The caller must not act on either assumption.
        """
        require_inside(path)
        try:
            require_readable(path, len(data))
        except OSError as error:  # promised, it would be stuck: each start would fail to read it
            raise StoreError(f"{self.location}: {error}. Nothing was written.", SMALLER) from error
        kept = {"durable": False} if not durable and isinstance(self._backend, Foldered) else {}
        failure: Exception | None = None
        for pause_s in _PAUSES_S:
            RETRY_COUNTS["store"] += pause_s > 0
            time.sleep(pause_s)
            try:
                self._backend.put(path, data, mode="create", **kept)
            except _FAILURES as error:
                failure = error
            else:
                return True
            there = self._read_back(path)
            if there is not None:
                self.make_durable(path)
                return there == data
            if isinstance(failure, _REFUSALS):
                break
        if (way := _neither_reach_nor_keys(failure, self.location)) is not None:
            raise StoreError(
                f"{self.location}: creating {path} failed: {brief(failure)}. It is not known "
                "whether it was written: run the same step again, which finds out.",
                way,
            ) from failure
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
        """Delete the objects directly under ``prefix``, hidden ones too; False if there were none.

        The highest number goes first, so that whoever reads meanwhile sees no gap below it. A link
        in the folder's place leads to another's objects: none of those is deleted (StoreError).
        """
        if isinstance(self._backend, LocalFiles) and (self._backend.root / prefix).is_symlink():
            raise self._in_the_way(prefix)
        found = [str(meta["path"]) for meta in self._listing(prefix)["objects"]]
        self.delete(sorted(found, key=lambda path: (len(path), path), reverse=True))
        if isinstance(self._backend, Foldered):
            self._backend.remove_folder(prefix)
        return bool(found)

    @property
    def is_on_a_disk(self) -> bool:
        """Whether the store is a disk, where an object that is read may not be durable yet."""
        return isinstance(self._backend, LocalFiles)

    def make_durable(self, *paths: str) -> None:
        """Sync what *another* process wrote before acting on it: a power cut must not lose it.

        That process may not have synced its write yet. Object stores answer only what is durable,
        so this call does something on local files alone. Absent objects are left out.
        """
        for path in paths:
            require_inside(path)
        if isinstance(self._backend, Foldered):
            try:
                self._backend.sync(*paths)
            except OSError as error:
                raise self._failed("syncing", ", ".join(paths), error) from error

    def check_create_if_absent(self) -> None:
        """Prove on the real store that one create wins; leaves nothing behind.

        Raises:
            StoreError: the store lets several win, or does not work at all.
        """
        # The kernel promises a hard link one winner; a disk without them fails at the first create.
        rounds = 0 if isinstance(self._backend, LocalFiles) else ROUNDS_AT_A_START
        with self.left_as_it_was():
            check_create_if_absent(self, rounds=rounds)

    @contextmanager
    def left_as_it_was(self) -> Iterator[None]:
        """Remove the folders that probes inside make: a look at a mistyped path leaves nothing."""
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
        except StoreError as error:
            if isinstance(error.__cause__, _IN_THE_WAY):
                raise
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

    def _in_the_way(self, path: str) -> StoreError:
        return StoreError(
            f"{self.location}/{path}, or a part of it, is a folder where a file belongs, or a file "
            "where a folder belongs: a copy, or another program, has made it so. What it would say "
            "is not known, and nothing was concluded.",
            Remedy(
                change=f"move what is in its place out of {self.location}, and put back what was "
                "there, as this checkpoint had it",
                start=True,
            ),
        )

    def _failed(self, doing: str, path: str, error: Exception) -> StoreError:
        if isinstance(error, _IN_THE_WAY):
            return self._in_the_way(path)
        if (keys := lacking_keys(self.location, error)) is not None:
            return StoreError(
                f"{self.location}: {doing} {path} failed, as no keys were found for it: neither in "
                "the storage options nor in the environment, and this machine has none of its own "
                "(files of the cloud's command line are not read).",
                keys,
            )
        if (way := _neither_reach_nor_keys(error, self.location)) is not None:
            return StoreError(f"{self.location}: {doing} {path} failed: {brief(error)}.", way)
        return StoreError(
            f"{self.location}: {doing} {path} failed: {brief(error)}. Expected the store to "
            "answer: check that it is reachable and that the credentials allow it, then try again."
        )
