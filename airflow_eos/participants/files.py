"""Files in a folder of a local disk as a participant: a file is there, whole, or it is not.

========================================  =====================================================
``<folder>/<key>.parquet``                visible; the witness of its own commit
``<folder>/_eos/<name>/work/<key>``       prepared; readers pass over names that begin with ``_``
``<folder>/_eos/<name>/owner.json``       whose name it is: created if absent
``<folder>/_eos/<name>/notes/<n>.json``   the newest decision of one driver
========================================  =====================================================

A commit is a ``link``, which refuses to replace what is there; so it changes nothing twice. A key
is never used again, and what was decided is whole before it is decided: so where neither the
prepared nor the visible file is there, no later commit can make it visible, and ABORTED is final.
Whoever moves a visible file away while its batch is in flight takes its witness away with it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.checkpoint.store import CheckpointStore
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.failpoints import failpoint
from airflow_eos.protocol.ownership import Note, Ownership, same_place
from airflow_eos.protocol.participant import Member
from airflow_eos.protocol.work import OpenWork, Outcome, WorkIdentity, is_key

if TYPE_CHECKING:
    from airflow_eos.protocol.decision import Decision
    from airflow_eos.protocol.work import PreparedWork

KIND = "files"
_OWNER = "owner.json"
_NOTES = "notes"


class _Owner(msgspec.Struct, frozen=True):
    location: str


class FilesParticipant:
    """See :class:`airflow_eos.protocol.participant.Participant`.

    Args:
        folder: where readers look; it may not exist yet.
        name: the participant's name in decisions.
    """

    def __init__(self, folder: Path, *, name: str) -> None:
        self._folder = folder
        self._name = name
        self._work = work_folder(folder, name)
        self._kept = CheckpointStore.open(self._work.parent)
        self._nonce = uuid.uuid4().hex

    @property
    def member(self) -> Member:
        """At the folder."""
        return Member(self._name, KIND, {"folder": str(self._folder)}, f"files:{self._folder}")

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Give each file its name; durable before the prepared one goes."""
        became: dict[WorkIdentity, Outcome] = {}
        for work in works:
            try:
                self._visible(work.key).hardlink_to(self._prepared(work.key))
            except FileExistsError:
                pass  # by us before, or by another process
            except FileNotFoundError:
                became[work.identity] = self._outcome(work.key)
                continue
            became[work.identity] = Outcome.COMMITTED
            failpoint("settled-some")
        _sync(self._folder)
        for identity, outcome in became.items():
            if outcome is Outcome.COMMITTED:
                self._prepared(identity.key).unlink(missing_ok=True)
        return became

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Remove each prepared file; what is visible stays."""
        return {work: self._remove(self._prepared(work.key)) for work in works}

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Look for the files."""
        return {work.identity: self._outcome(work.key) for work in works}

    def open(self, *, besides: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """List what is prepared and not visible; never the folder that readers look at."""
        known = {work.key for work in besides}
        found = []
        for file in sorted(self._work.glob("*")):
            if file.name in known or self._visible(file.name).exists():
                continue
            try:
                prepared_at_ms = file.stat().st_mtime_ns // 1_000_000
            except FileNotFoundError:
                continue  # ended meanwhile
            place = str(self._visible(file.name))
            found.append(
                OpenWork(KIND, self._name, file.name, prepared_at_ms, None, places=(place,))
            )
        return tuple(found)

    def claim(self, location: str) -> None:
        """Own the name in this folder: the first one to write it does."""
        self._kept.create(_OWNER, msgspec.json.encode(_Owner(same_place(location))))

    def require_owner(
        self,
        location: str,
        *,
        newest_planned: int | None,
        decisions_of: Callable[[int], Sequence[Decision]],
    ) -> None:
        """Ask what is kept beside the work."""
        notes = (self._read(entry.path, Note) for entry in self._kept.list(_NOTES))
        owner = self._read(_OWNER, _Owner)
        Ownership(
            owner=owner.location if owner is not None else None,
            newest=max((note for note in notes if note is not None), default=None),
        ).require(
            location,
            called=f"name {self._name!r} in {self._folder}",
            give_up=f"remove {self._work.parent}",
            newest_planned=newest_planned,
            decisions_of=decisions_of,
        )

    def note(self, decision: Decision) -> None:
        """Replace this process's note; a reader takes the highest of all."""
        note = Note(decision.batch_id, decision.attempt, decision.nonce)
        self._kept.put(f"{_NOTES}/{self._nonce}.json", msgspec.json.encode(note))

    def close(self) -> None:
        """Nothing is held."""

    def _outcome(self, key: str) -> Outcome:
        if self._visible(key).exists():
            return Outcome.COMMITTED
        if self._prepared(key).exists():
            return Outcome.OPEN
        # Asked again: a commit between the two looks is no abort.
        return Outcome.COMMITTED if self._visible(key).exists() else Outcome.ABORTED

    def _visible(self, key: str) -> Path:
        return self._folder / f"{_checked(key)}.parquet"

    def _prepared(self, key: str) -> Path:
        return self._work / _checked(key)

    def _remove(self, file: Path) -> bool:
        try:
            file.unlink()
        except FileNotFoundError:
            return False
        return True

    def _read(self, path: str, kind: type[Any]) -> Any:
        data = self._kept.get(path)
        try:
            return None if data is None else msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise StoreError(
                f"{self._kept.location}/{path} cannot be read: {error}. It says who delivers into "
                f"{self._folder}: restore it, or remove {self._work.parent} if no pipeline does."
            ) from error


def connect(member: Member, _reach: object, *, timeout_s: float) -> FilesParticipant:
    """Reach the folder of ``member``; nothing else is needed for it.

    Raises:
        ConfigurationError: the address has no folder.
    """
    del timeout_s
    folder = member.address.get("folder")
    if folder is None:
        raise ConfigurationError(f"{member} has no folder: eos/pipeline.json is not of files.")
    return FilesParticipant(Path(folder), name=member.name)


def work_folder(folder: Path, name: str) -> Path:
    """Where tasks prepare."""
    return folder / "_eos" / name / "work"


def make_durable(file: Path) -> None:
    """The file and its name survive a power cut."""
    _sync(file)
    _sync(file.parent)


def _checked(key: str) -> str:
    if not is_key(key):
        raise ConfigurationError(f"{key!r} is no key of a file: expected letters, digits and ._-")
    return key


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
