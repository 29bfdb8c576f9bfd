"""Files in a folder of a local disk as a participant: a file is there, whole, or it is not.

========================================  =====================================================
``<folder>/<key>.parquet``                visible; the witness of its own commit
``<folder>/_eos/<name>/work/<key>``       prepared; readers pass over names that begin with ``_``
``<folder>/_eos/<name>/mark``             a random id, created if absent: which disk this is
``<folder>/_eos/<name>/owner.json``       whose name it is: created if absent
``<folder>/_eos/<name>/notes/<n>.json``   the newest decision of one driver
========================================  =====================================================

A commit is a ``link``, which refuses to replace what is there; so it changes nothing twice. A key
is never used again, and what was decided is whole before it is decided: so where neither the
prepared nor the visible file is there, no later commit can make it visible, and ABORTED is final.
Whoever moves a visible file away while its batch is in flight takes its witness away with it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.failpoints import failpoint
from airflow_eos.participants.beside import KeptBeside
from airflow_eos.participants.files.disk import (
    MARK,
    checked,
    is_there,
    kept_in,
    listed,
    make_durable,
    mark_of,
    remove,
    sync,
    work_folder,
)
from airflow_eos.protocol.participant import Member
from airflow_eos.protocol.work import OpenWork, Outcome, WorkIdentity, require_own

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.decision import Decision
    from airflow_eos.protocol.promise import Promise, Said
    from airflow_eos.protocol.work import PreparedWork

KIND = "files"


class FilesParticipant:
    """See :class:`airflow_eos.protocol.participant.Participant`.

    Args:
        folder: where readers look.
        name: the participant's name in decisions.
        mark: the random id of the name in this folder, which another disk does not have.
    """

    def __init__(self, folder: Path, *, name: str, mark: str) -> None:
        self._folder = folder
        self._name = name
        self._mark = mark
        self._work = work_folder(folder, name)
        self._kept = kept_in(folder, name)
        self._beside = KeptBeside(self._kept, f"name {name!r} in {folder}")

    @property
    def members(self) -> tuple[Member, ...]:
        """At the folder, on this disk."""
        address = {"folder": str(self._folder), "mark": self._mark}
        return (Member(self._name, KIND, address, f"files:{self._folder}"),)

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Each is a file of ours."""
        require_own(works, KIND, self._name)

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Give each file its name; durable before the prepared one goes."""
        require_own(works, KIND, self._name)
        became: dict[WorkIdentity, Outcome] = {}
        with self._disk("publishing files"):
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
            sync(self._folder)
            for identity, outcome in became.items():
                if outcome is Outcome.COMMITTED:
                    self._prepared(identity.key).unlink(missing_ok=True)
        return became

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Remove each prepared file; what is visible stays."""
        require_own(works, KIND, self._name)
        with self._disk("removing prepared files"):
            return {work: remove(self._prepared(work.key)) for work in works}

    abandon = abort  # a file is visible or it is removed

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Look for the files."""
        require_own(works, KIND, self._name)
        with self._disk("looking for files"):
            return {work.identity: self._outcome(work.key) for work in works}

    def open(self, *, besides: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """List what is prepared and not visible; never the folder that readers look at."""
        known = {work.key for work in besides}
        found = []
        with self._disk("listing prepared files"):
            self._require_disk()
            for key, prepared_at_ms in listed(self._work):
                if key in known or is_there(self._visible(key)):
                    continue
                place = str(self._visible(key))
                found.append(OpenWork(KIND, self._name, key, prepared_at_ms, None, (place,)))
        return tuple(sorted(found, key=lambda each: each.key))

    def claim(self, location: str) -> None:
        """Own the name in this folder."""
        self._beside.claim(location)

    def require_owner(
        self,
        location: str,
        *,
        newest_planned: int | None,
        decisions_of: Callable[[int], Sequence[Decision]],
    ) -> None:
        """Ask what is kept beside the work."""
        self._beside.require_owner(
            location, newest_planned=newest_planned, decisions_of=decisions_of
        )

    def require_settled(self, promise: Promise, said: Said) -> None:
        """Nothing is asked: whoever reads them may have moved old files away."""

    def note(self, decision: Decision) -> None:
        """Remember it beside the work."""
        self._beside.note(decision)

    def close(self) -> None:
        """Nothing is held."""

    def _outcome(self, key: str) -> Outcome:
        if is_there(self._visible(key)):
            return Outcome.COMMITTED
        if is_there(self._prepared(key)):
            return Outcome.OPEN
        # Asked again: a commit between the two looks is no abort, and neither is another disk.
        if is_there(self._visible(key)):
            return Outcome.COMMITTED
        self._require_disk()
        return Outcome.ABORTED

    def _require_disk(self) -> None:
        """Files that are not there say nothing where the disk is not there, or is another one."""
        found = mark_of(self._kept)
        if found != self._mark:
            raise StoreError(
                f"{self._folder} is not the folder of this pipeline: its mark is "
                f"{found or 'missing'}, expected {self._mark}. Is the disk mounted here? Nothing "
                "was concluded from files that are not there."
            )

    @contextlib.contextmanager
    def _disk(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"The disk refused while {doing} in {self._folder}: {error}. Driver, tasks and "
                "recovery must be one user that may write there. Nothing was guessed; try again."
            ) from error

    def _visible(self, key: str) -> Path:
        return self._folder / f"{checked(key)}.parquet"

    def _prepared(self, key: str) -> Path:
        return self._work / checked(key)


def made(folder: Path, name: str) -> FilesParticipant:
    """The participant of a sink that starts: its folder is made, and marked, if it is not yet.

    Raises:
        StoreError: the disk refuses.
    """
    kept = kept_in(folder, name)
    kept.create(MARK, uuid.uuid4().hex.encode())
    mark = mark_of(kept)
    if mark is None:
        raise StoreError(f"{kept.location}/{MARK} was written and is gone: who deletes it?")
    participant = FilesParticipant(folder, name=name, mark=mark)
    with participant._disk("making the folder of work"):  # noqa: SLF001
        work_folder(folder, name).mkdir(exist_ok=True)
        make_durable(work_folder(folder, name))
    return participant


def connect(
    member: Member,
    _how: object,
    *,
    store: CheckpointStore | None = None,
    timeout_s: float = 0.0,
) -> FilesParticipant:
    """Reach the folder of ``member``; nothing else is needed for it.

    Raises:
        ConfigurationError: the address has no folder.
        StoreError: the folder is not there, or not on this disk.
    """
    del store, timeout_s
    folder, mark = member.address.get("folder"), member.address.get("mark")
    if folder is None or mark is None:
        raise ConfigurationError(f"{member} has no folder: eos/pipeline.json is not of files.")
    participant = FilesParticipant(Path(folder), name=member.name, mark=mark)
    participant._require_disk()  # noqa: SLF001
    return participant
