"""Data files as a participant: each is there, whole, or it is not (``publish="listing"``).

================================================  =============================================
``<folder>/…/<key>.<end>``                        visible; the witnesses of their own commit
``_eos.<folder>/<name>/work/<key>/…``             prepared: see :mod:`.folder` why it is beside
``_eos.<folder>/<name>/mark``                     a random id, created if absent: which disk this is
``_eos.<folder>/form``                            how files become visible here, of all names
``_eos.<folder>/<name>/owner``, ``notes/``        whose name it is: ``checkpoint/pipeline.py``
================================================  =============================================

A commit is a ``link`` (in a bucket a copy), which refuses to replace what is there; so it changes
nothing twice. The prepared files go when all of the work is visible. Nothing of ours removes what
is promised: so where a file is neither prepared nor visible, or has another size than was promised,
somebody has removed it or cut it off, before or after readers had it, and the outcome is UNKNOWN.
Whoever moves a visible file away before one of a later batch is there takes its witness away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.pipeline import checkpoint_of
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.kinds.files.folder import (
    KIND,
    Marked,
    OwnedFolder,
    files_of,
    require_form,
    visible_of,
)
from airflow_eos.kinds.files.manifest import LOG, ManifestParticipant
from airflow_eos.kinds.files.place import opened
from airflow_eos.protocol.decision import Outcome, WorkIdentity, require_own

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.kinds.files.folder import WorkFile
    from airflow_eos.kinds.files.place import DataFolder
    from airflow_eos.protocol.decision import PreparedWork
    from airflow_eos.protocol.participant import Member


class FilesParticipant(OwnedFolder):
    """See :class:`airflow_eos.protocol.participant.Participant`."""

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Give each file its name; durable before the prepared one goes."""
        self.check(works)
        files = {work.identity: files_of(work) for work in works}
        lost = self._lost(files)
        moves = [
            (file.prepared, file.visible)
            for identity, each in files.items()
            for file in each
            if identity not in lost
        ]
        published = dict(zip(moves, self._place.publish(moves), strict=True))
        became = {
            identity: Outcome.COMMITTED
            if all(published.get((file.prepared, file.visible)) for file in each)
            else self._ended(each)
            for identity, each in files.items()
        }
        done = [
            file
            for identity, each in files.items()
            for file in each
            if became[identity] is Outcome.COMMITTED
        ]
        self._place.settle(file.visible for file in done)
        self._place.remove([file.prepared for file in done])
        return became

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Remove what is prepared; what is visible stays."""
        require_own(works, KIND, self._name)
        return {work: self._place.remove(self._prepared(work.key)) for work in works}

    def abandon(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """The same; False where a part of it is visible, and stays so."""
        require_own(works, KIND, self._name)
        visible = {
            work: [visible_of(path, self._name, work.key) for path in self._prepared(work.key)]
            for work in works
        }
        ended = self.abort(works)
        return {
            work: ended[work] and not any(size is not None for size in self._place.sizes(paths))
            for work, paths in visible.items()
        }

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Look for the files."""
        self.check(works)
        return {work.identity: self._outcome(files_of(work)) for work in works}

    def _lost(self, files: Mapping[WorkIdentity, Sequence[WorkFile]]) -> set[WorkIdentity]:
        """Work that lacks a file, or has one that is not whole: none of it is made visible.

        A bucket has no half objects: there, a file that is alone is missed when it is published.
        """
        on_a_disk = self._place.store.is_on_a_disk
        asked = [
            (work, file)
            for work, each in files.items()
            if len(each) > 1 or on_a_disk
            for file in each
        ]
        sizes = self._place.sizes([file.prepared for _, file in asked])
        altered = self._altered([file for _, file in asked]) if on_a_disk else set()
        missing = [
            each
            for each, size in zip(asked, sizes, strict=True)
            if size != each[1].size or each[1].prepared in altered
        ]
        visible = self._place.sizes([file.visible for _, file in missing])
        found = zip(missing, visible, strict=True)
        return {work for (work, file), size in found if size != file.size}

    def _ended(self, files: Sequence[WorkFile]) -> Outcome:
        """What became of work of which publishing missed a file: it is published once more."""
        self._marked.require()
        outcome = self._outcome(files)
        if outcome is Outcome.OPEN:
            self._place.publish([(file.prepared, file.visible) for file in files])
            outcome = self._outcome(files)
        if outcome is Outcome.OPEN:  # rule 5 forbids its end
            raise StoreError(
                f"The files of {files[0].prepared} in {self._place.address} are all there, and "
                "could not be published twice: something was missing each time. Does a job remove "
                "empty folders there, or unfinished uploads at once? Nothing of them was removed: "
                "they stay promised. Try again."
            )
        return outcome

    def _outcome(self, files: Sequence[WorkFile]) -> Outcome:
        # In this order: a commit between the two looks is no loss. What has another size than was
        # promised is cut off, or another's: it is not the file.
        prepared = self._place.sizes([file.prepared for file in files])
        visible = self._place.sizes([file.visible for file in files])
        if visible == [file.size for file in files]:
            return Outcome.COMMITTED
        seen = list(zip(files, prepared, visible, strict=True))
        hidden = [file for file, _, size in seen if size != file.size]
        if all(file.size in sizes for file, *sizes in seen) and not self._altered(hidden):
            return Outcome.OPEN
        self._marked.require()  # neither is another disk
        return Outcome.UNKNOWN


def made(
    folder: str | Path, name: str, storage_options: Mapping[str, str] | None = None
) -> FilesParticipant:
    """The participant of a sink that starts: its folder is made, and marked, if it is not yet.

    Raises:
        ConfigurationError: Spark would not see files that appear one by one.
        StoreError: the disk or the bucket refuses, or lets two publish one name.
    """
    place = opened(folder, storage_options)
    place.check(name)
    return joined(place, name)


def joined(place: DataFolder, name: str) -> FilesParticipant:
    """The same, of a place that was looked at before."""
    if place.store.list(LOG):
        raise ConfigurationError(
            f"{place.address} has a log of its own ({LOG}), by which Spark reads it: it would "
            "never see other files. Give another folder, or publish='manifest'."
        )
    require_form(place, "listing")
    return FilesParticipant(place, name=name, mark=Marked.made(place, name).mark)


def connect(
    member: Member,
    how: object,
    *,
    store: CheckpointStore | None = None,
    timeout_s: float = 0.0,
) -> FilesParticipant | ManifestParticipant:
    """Reach the folder of ``member``.

    Args:
        member: as ``eos/pipeline.json`` has it.
        how: ``{"storage_options": {…}}`` of a bucket; where it is None the environment decides.
        store: the checkpoint, which settles whole batches.
        timeout_s: not needed.

    Raises:
        ConfigurationError: the address has no folder, or ``how`` is something else.
        StoreError: the folder is not there, or not on this disk.
    """
    del timeout_s
    folder, mark = member.address.get("folder"), member.address.get("mark")
    form = member.address.get("publish", "listing")
    if folder is None or mark is None or form not in ("listing", "manifest"):
        raise ConfigurationError(f"{member} has no folder: eos/pipeline.json is not of files.")
    place = opened(folder, _options(member, how))
    Marked(place, member.name, mark).require()
    if form == "listing":
        return FilesParticipant(place, name=member.name, mark=mark)
    checkpoint = checkpoint_of(member, store)
    return ManifestParticipant(place, name=member.name, mark=mark, store=checkpoint)


def _options(member: Member, how: object) -> Mapping[str, str] | None:
    if how is None:
        return None
    options = how.get("storage_options") if isinstance(how, Mapping) else None
    if not isinstance(options, Mapping):
        raise ConfigurationError(
            f"{member} is reached by {{'storage_options': {{…}}}}, the options of its bucket; "
            f"found {type(how).__name__} without them."
        )
    return options
