"""Data files as a participant: files become visible one by one (``publish="listing"``).

================================================  =============================================
``<folder>/…/<key>.<end>``                        visible files; the witnesses of their own commit
``_eos.<folder>/<name>/work/<key>/…``             prepared files, beside the data (:mod:`.folder`)
``_eos.<folder>/<name>/mark``                     a random id of the disk, created if absent
``_eos.<folder>/form``                            the publish mode of the folder, for all names
``_eos.<folder>/<name>/owner``, ``notes/``        claim and notes: ``core/checkpoint/pipeline.py``
================================================  =============================================

A commit is a ``link`` (in a bucket a copy), which refuses to replace a file; so it changes nothing
twice. The prepared files are removed when all of the work is visible. This package never removes
promised files: so where a file is neither prepared nor visible, or has another size than was
promised, somebody has removed it or cut it off, before or after readers had it, and the outcome is
UNKNOWN. A visible file is a witness until a file of a later batch is there: leave it there so long.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.core.checkpoint.pipeline import checkpoint_of
from airflow_eos.core.protocol.decision import Outcome, WorkIdentity, require_own
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.kinds.files.folder import (
    KIND,
    FolderInstance,
    OwnedFolder,
    files_of,
    require_form,
    visible_of,
)
from airflow_eos.kinds.files.manifest import LOG, ManifestLog, ManifestParticipant
from airflow_eos.kinds.files.storage import folder_at

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.protocol.decision import PreparedWork
    from airflow_eos.core.protocol.participant import Member
    from airflow_eos.kinds.files.folder import WorkFile
    from airflow_eos.kinds.files.storage import DataFolder


class FilesParticipant(OwnedFolder):
    """See :class:`airflow_eos.core.protocol.participant.Participant`."""

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Make each file visible, and durable, before its prepared file is removed."""
        self.check(works)
        files = {work.identity: files_of(work) for work in works}
        lost = self._lost(files)
        moves = [
            (file.prepared, file.visible)
            for identity, each in files.items()
            for file in each
            if identity not in lost
        ]
        published = dict(zip(moves, self._storage.publish(moves), strict=True))
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
        self._storage.settle(file.visible for file in done)
        self._storage.remove([file.prepared for file in done])
        return became

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Remove prepared files; visible files stay."""
        require_own(works, KIND, self._name)
        return {work: self._storage.remove(self._prepared(work.key)) for work in works}

    def abandon(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Remove prepared files; False for work of which a part is visible, and stays so."""
        require_own(works, KIND, self._name)
        visible = {
            work: [visible_of(path, self._name, work.key) for path in self._prepared(work.key)]
            for work in works
        }
        ended = self.abort(works)
        return {
            work: ended[work] and not any(size is not None for size in self._storage.sizes(paths))
            for work, paths in visible.items()
        }

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Return outcomes by looking for the works' files."""
        self.check(works)
        return {work.identity: self._outcome(files_of(work)) for work in works}

    def _lost(self, files: Mapping[WorkIdentity, Sequence[WorkFile]]) -> set[WorkIdentity]:
        """Return work with a missing or damaged file, of which nothing is made visible.

        A bucket has no half objects: there, work of one file is only asked for when published.
        """
        on_a_disk = self._storage.store.is_on_a_disk
        asked = [
            (work, file)
            for work, each in files.items()
            if len(each) > 1 or on_a_disk
            for file in each
        ]
        sizes = self._storage.sizes([file.prepared for _, file in asked])
        altered = self._altered([file for _, file in asked]) if on_a_disk else set()
        missing = [
            each
            for each, size in zip(asked, sizes, strict=True)
            if size != each[1].size or each[1].prepared in altered
        ]
        visible = self._storage.sizes([file.visible for _, file in missing])
        found = zip(missing, visible, strict=True)
        return {work for (work, file), size in found if size != file.size}

    def _ended(self, files: Sequence[WorkFile]) -> Outcome:
        """Return the outcome of work with a file that was missed; OPEN work is published again."""
        self._instance.require()
        outcome = self._outcome(files)
        if outcome is Outcome.OPEN:
            self._storage.publish([(file.prepared, file.visible) for file in files])
            outcome = self._outcome(files)
        if outcome is Outcome.OPEN:  # rule 5 forbids its end
            raise StoreError(
                f"The files of {files[0].prepared} in {self._storage.address} are all there, and "
                "could not be published twice: something was missing each time. Does a job remove "
                "empty folders there, or unfinished uploads at once? Nothing of them was removed: "
                "they stay promised. Try again."
            )
        return outcome

    def _outcome(self, files: Sequence[WorkFile]) -> Outcome:
        # Prepared files first: then a commit between the two looks is no loss. A file of another
        # size than was promised is cut off, or another program's.
        prepared = self._storage.sizes([file.prepared for file in files])
        visible = self._storage.sizes([file.visible for file in files])
        if visible == [file.size for file in files]:
            return Outcome.COMMITTED
        seen = list(zip(files, prepared, visible, strict=True))
        hidden = [file for file, _, size in seen if size != file.size]
        if all(file.size in sizes for file, *sizes in seen) and not self._altered(hidden):
            return Outcome.OPEN
        self._instance.require()  # files may be missing since this is another disk
        return Outcome.UNKNOWN


_STAMPED = re.compile(r"([0-9]{13,19})-[0-9]+-[0-9]+-[0-9a-f]{32}\.", re.ASCII)


def names_within(
    position: Mapping[str, Any], later: range, storage_options: Mapping[str, str] | None = None
) -> list[str]:
    """Return the visible files, relative to the folder of a position, but those of later stamps."""
    folder = folder_at(position["folder"], storage_options)
    if position["publish"] == "manifest":
        names = ManifestLog(folder, "", "").files()
    else:
        names = [entry.path.lstrip("/") for entry in folder.below("")]
    return [
        name
        for name in sorted(names)
        if not any(part.startswith(("_", ".")) for part in name.split("/"))
        and not ((found := _STAMPED.match(name.rpartition("/")[2])) and int(found[1]) in later)
    ]


def made(
    folder: str | Path, name: str, storage_options: Mapping[str, str] | None = None
) -> FilesParticipant:
    """Make the participant of a sink that starts; create and mark its folder if needed.

    Raises:
        ConfigurationError: Spark would not see files that appear one by one.
        StoreError: the disk or the bucket refuses, or lets two processes publish one name.
    """
    storage = folder_at(folder, storage_options)
    storage.check(name)
    return joined(storage, name)


def joined(storage: DataFolder, name: str) -> FilesParticipant:
    """Make the participant of a sink that starts, in a place that was checked before."""
    if storage.store.list(LOG):
        raise ConfigurationError(
            f"{storage.address} has a log of its own ({LOG}), by which Spark reads it: it would "
            "never see other files. Give another folder, or publish='manifest'."
        )
    require_form(storage, "listing")
    return FilesParticipant(
        storage, name=name, instance_id=FolderInstance.made(storage, name).instance_id
    )


def connect(
    member: Member,
    how: object,
    *,
    store: CheckpointStore | None = None,
    timeout_s: float = 0.0,
) -> FilesParticipant | ManifestParticipant:
    """Connect to the folder of ``member``, and refuse another folder or disk.

    Args:
        member: as ``eos/pipeline.json`` has it.
        how: ``{"storage_options": {…}}`` of a bucket; where it is None the environment decides.
        store: the checkpoint, needed where whole batches become visible at once.
        timeout_s: not needed.

    Raises:
        ConfigurationError: the address has no folder, or ``how`` is something else.
        StoreError: the folder is not there, or not on this disk.
    """
    del timeout_s
    folder, instance_id = member.address.get("folder"), member.address.get("mark")
    form = member.address.get("publish", "listing")
    if folder is None or instance_id is None or form not in ("listing", "manifest"):
        raise ConfigurationError(f"{member} has no folder: eos/pipeline.json is not of files.")
    storage = folder_at(folder, _options(member, how))
    FolderInstance(storage, member.name, instance_id).require()
    if form == "listing":
        return FilesParticipant(storage, name=member.name, instance_id=instance_id)
    checkpoint = checkpoint_of(member, store)
    return ManifestParticipant(storage, name=member.name, instance_id=instance_id, store=checkpoint)


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
