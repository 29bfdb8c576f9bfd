"""The owner of a checkpoint, by ``eos/pipeline.json``, and of a name beside data; written once."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import msgspec

from airflow_eos.core.checkpoint.backend import PIPELINE
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.protocol.decision import Decision, Stored, encode
from airflow_eos.core.protocol.participant import Member, Note, Owner, Ownership, superseded
from airflow_eos.errors import ConfigurationError, OwnershipError, Remedy, StoreError


class PipelineIdentity(Stored, frozen=True, kw_only=True):
    """The owner of a checkpoint, and the participants in its decisions; no secrets.

    ``id`` is a random ``uuid4().hex``. Times in ms since the epoch.
    """

    id: str
    participants: tuple[Member, ...]
    created_at_ms: int
    created_by: str

    def member(self, name: str) -> Member | None:
        """Return the participant of that name; None where the pipeline has none."""
        return next((each for each in self.participants if each.name == name), None)

    def require_same(self, other: PipelineIdentity, location: str) -> None:
        """Refuse a pipeline with other participants, or with the same ones at other addresses.

        Raises:
            OwnershipError: they differ; the message names both.
        """
        ours = {each.name: each for each in other.participants}
        theirs = {each.name: each for each in self.participants}
        if ours.keys() != theirs.keys() or not all(ours[name].is_at(theirs[name]) for name in ours):
            raise OwnershipError(
                f"Checkpoint {location} belongs to {_named(self)} (written by {self.created_by}), "
                f"but this query uses {_named(other)}. Use the former ones, or start a "
                "new pipeline: a new checkpoint location, and new prefixes for all its outputs."
            )

    def require_own(self, asked: Member, location: str) -> None:
        """Refuse another address than the pipeline's; and its own address under another name.

        Whoever asks by an address, and not by the checkpoint, may only mean a name that the
        pipeline does not use, in a system that it does: else promised work would be taken for
        nobody's, or another system's for an orphan of this one.

        Args:
            asked: the participant that is going to be asked for its open work.

        Raises:
            OwnershipError: the two differ; the message names both.
        """
        theirs = self.member(asked.name)
        if theirs is not None and theirs.is_at(asked):
            return
        alike = [each for each in self.participants if each.kind == asked.kind]
        if theirs is None and any(each.address == asked.address for each in alike):
            raise OwnershipError(
                f"{asked} takes part in the pipeline of {location} by now, under its own name. "
                "Nothing was done: make a plan of the checkpoint, without --prefix."
            )
        elsewhere = not any(each.address.items() & asked.address.items() for each in alike)
        if theirs is not None or elsewhere:
            raise OwnershipError(
                f"The pipeline of {location} writes to {theirs or _named(self)}, but the one that "
                f"was asked is {asked}. Nothing was done: give the bootstrap servers or the "
                "connection of the pipeline's own."
            )


def read_pipeline(store: CheckpointStore) -> PipelineIdentity | None:
    """Return the checkpoint's owner, or None where no driver of ours has ever run on it.

    Raises:
        CheckpointFormatError: the object cannot be read as a pipeline.
    """
    return store.read(PIPELINE, PipelineIdentity)


def owner_of(store: CheckpointStore) -> Owner:
    """Return the checkpoint's owner as others know it; no id where no driver of ours has run.

    Raises:
        CheckpointFormatError: the object cannot be read as a pipeline.
    """
    pipeline = read_pipeline(store)
    return Owner.at(pipeline.id if pipeline is not None else "", store.location)


def claim(store: CheckpointStore, pipeline: PipelineIdentity) -> PipelineIdentity:
    """Make ``pipeline`` the owner if there is none; return the owner that stands there.

    A participant's target may change, its address may not: under another transactional id prefix
    the transactions of the former one would be stranded, another cluster has none of what was
    promised.

    Raises:
        OwnershipError: other participants, or at other addresses, take part in this checkpoint.
        CheckpointFormatError: the object cannot be read as a pipeline.
    """
    owner = read_pipeline(store)
    if owner is None:
        store.create(PIPELINE, encode(pipeline))
        owner = read_pipeline(store)
    if owner is None:
        raise StoreError(f"{store.location}/{PIPELINE} was written and is gone: who deletes it?")
    owner.require_same(pipeline, store.location)
    return owner


def _named(pipeline: PipelineIdentity) -> str:
    return " and ".join(map(str, pipeline.participants))


# --- name owner -----------------------------------------------------------------------------------
# Who owns a name beside data, and how far that pipeline delivered: objects that never change.
#
# ``<kept>/owner``: whose name it is, created if absent;
# ``<kept>/notes/<batch>-<attempt>-<decision>-<pipeline>``: a decision that was relied on.
#
# ``<kept>`` is ``_eos/<application>`` in the folder of a table (Delta's VACUUM and Iceberg's
# ``remove_orphan_files`` pass over names that begin with ``_``), beside a folder of files, and
# beside the rows of a callable. No name has an ending of data. A start reads all that is remembered
# by one listing, and a note goes when a later one stands: see
# :func:`~airflow_eos.core.protocol.participant.superseded`.


_OWNER = "owner"
_NOTES = "notes"
_NAME = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)-([^-/]+)-([^/]+)", re.ASCII)


class OwnershipFile:
    """The owner and the notes of one name, kept outside the checkpoint.

    Args:
        kept: the store that holds the folder of the name.
        called: the name, for people.
        folder: the folder of the name, where it is not all of ``kept``.
    """

    def __init__(self, kept: CheckpointStore, called: str, folder: str = "") -> None:
        self._kept = kept
        self._called = called
        self._below = f"{folder}/" if folder else ""
        self._at = f"{kept.location}/{folder}" if folder else kept.location
        self._known: set[Note] = set()

    def reach(self, kept: CheckpointStore) -> None:
        """Use this store of the same folder from now on: its keys are newer."""
        self._kept = kept

    def claim(self, owner: Owner) -> None:
        """Claim the name for ``owner``: the first pipeline to write the claim owns it."""
        self._kept.create(self._below + _OWNER, msgspec.json.encode(owner))

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """Return the owner and notes of the name; see :class:`Ownership`."""
        del asking
        notes = self._kept.list(self._below + _NOTES)
        found = {entry.name: _note_of(entry.name) for entry in notes}
        self._known = {note for note in found.values() if note is not None}
        return (
            Ownership(
                called=self._called,
                owner=self._read(_OWNER, Owner),
                notes=tuple(self._known),
                unreadable=tuple(f"{_NOTES}/{n}" for n, note in found.items() if note is None),
                give_up=Remedy(change=self._give_up, start=True),
                move=Remedy(
                    change=f"remove {self._at}/{_OWNER}, and nothing else there",
                    start=True,
                ),
            ),
        )

    def note(self, decision: Decision, owner: Owner) -> None:
        """Note the decision; remove the notes it supersedes, of all that this process has seen."""
        note = Note.of(decision, owner)
        self._kept.create(self._below + _path(note), msgspec.json.encode(note))
        old = superseded(self._known, note)
        with contextlib.suppress(StoreError):  # who may not remove them leaves them to the next
            self._kept.delete(self._below + _path(each) for each in old)
        self._known = {*self._known.difference(old), note}

    @property
    def _give_up(self) -> str:
        """The advice to give up the name; never the whole folder: promised work can lie there."""
        at = self._at
        return f"remove {at}/{_OWNER} and the folder {at}/{_NOTES}, and nothing else there"

    def _read(self, path: str, kind: type[Any]) -> Any:
        data = self._kept.get(self._below + path)
        try:
            return None if data is None else msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise StoreError(
                f"{self._at}/{path} cannot be read: {error}. It says who delivers as "
                f"{self._called}: restore it; or, if nobody does: {self._give_up}."
            ) from error


class OwnedBeside:
    """The methods of a participant whose ownership an :class:`OwnershipFile` keeps."""

    _beside: OwnershipFile

    def claim(self, owner: Owner) -> None:
        """Claim the name for ``owner``: the first pipeline to write the claim owns it."""
        self._beside.claim(owner)

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """Return the ownership that is kept beside the data."""
        return self._beside.ownership(asking)

    def note(self, decision: Decision, owner: Owner) -> None:
        """Note the decision beside the data."""
        self._beside.note(decision, owner)

    def close(self) -> None:
        """Do nothing: no connection is held."""


def _path(note: Note) -> str:
    return f"{_NOTES}/{note.batch}-{note.attempt}-{note.decision}-{note.pipeline}"


def _note_of(name: str) -> Note | None:
    found = _NAME.fullmatch(name)
    return None if found is None else Note(int(found[1]), int(found[2]), found[3], found[4])


def pipeline_of(store: CheckpointStore) -> PipelineIdentity:
    """Return the pipeline of a checkpoint whose work is to be settled.

    Raises:
        StoreError: the checkpoint does not know a pipeline.
    """
    pipeline = read_pipeline(store)
    if pipeline is None:
        raise StoreError(
            f"{store.location} holds no eos/pipeline.json, and work that it names "
            "cannot be settled without. Restore it from a copy of the checkpoint."
        )
    return pipeline


def checkpoint_of(member: Member, store: CheckpointStore | None) -> CheckpointStore:
    """Return ``store``, without which a participant that keeps something there is not reached.

    Raises:
        ConfigurationError: ``store`` is None.
    """
    if store is None:
        raise ConfigurationError(
            f"{member} keeps rows, or notes of its files, in the checkpoint of its pipeline: give "
            "the checkpoint whose eos/pipeline.json names it."
        )
    return store
