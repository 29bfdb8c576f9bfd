"""``eos/pipeline.json``: which pipeline a checkpoint belongs to, written once and for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint.backend import PIPELINE
from airflow_eos.errors import OwnershipError, StoreError
from airflow_eos.protocol.decision import Stored, encode
from airflow_eos.protocol.participant import Member, Owner

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore


class PipelineIdentity(Stored, frozen=True, kw_only=True):
    """Owner of a checkpoint, and who takes part in its decisions; no secrets.

    ``id`` is a random ``uuid4().hex``. Times in ms since the epoch.
    """

    id: str
    participants: tuple[Member, ...]
    created_at_ms: int
    created_by: str

    def member(self, name: str) -> Member | None:
        """The participant of that name."""
        return next((each for each in self.participants if each.name == name), None)

    def require_same(self, other: PipelineIdentity, location: str) -> None:
        """Refuse other participants than the checkpoint's, and the same ones at other addresses.

        Raises:
            OwnershipError: with both.
        """
        ours = {each.name: each for each in other.participants}
        theirs = {each.name: each for each in self.participants}
        if ours.keys() != theirs.keys() or not all(ours[name].is_at(theirs[name]) for name in ours):
            raise OwnershipError(
                f"Checkpoint {location} belongs to {_named(self)} (written by {self.created_by}), "
                f"but this query uses {_named(other)}. Use the former, or a new checkpoint "
                "location for a new pipeline."
            )

    def require_own(self, asked: Member, location: str) -> None:
        """Refuse another address than the pipeline's; and its own one under another name.

        Who asks by an address, and not by the checkpoint, may only mean a name that the pipeline
        does not use, in a system that it does: else promised work would be taken for nobody's, or
        another system's for an orphan of this one.

        Args:
            asked: who is going to be asked what is open.
            location: of the checkpoint, for people.

        Raises:
            OwnershipError: with both.
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
    """The owner, or None where no driver of ours has ever run on this checkpoint.

    Raises:
        CheckpointFormatError: the object cannot be read as a pipeline.
    """
    return store.read(PIPELINE, PipelineIdentity)


def owner_of(store: CheckpointStore) -> Owner:
    """Who the checkpoint is to others; without an id where no driver of ours has run on it.

    Raises:
        CheckpointFormatError: the object cannot be read as a pipeline.
    """
    pipeline = read_pipeline(store)
    return Owner.at(pipeline.id if pipeline is not None else "", store.location)


def claim(store: CheckpointStore, pipeline: PipelineIdentity) -> PipelineIdentity:
    """Make ``pipeline`` the owner if there is none; returns the owner that stands there.

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
