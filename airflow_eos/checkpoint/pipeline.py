"""``eos/pipeline.json``: which pipeline a checkpoint belongs to, written once and for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from airflow_eos.checkpoint.backend import PIPELINE
from airflow_eos.errors import OwnershipError, StoreError
from airflow_eos.protocol.decision import (
    DEFAULT_PARTICIPANT,
    Fields,
    Int64,
    Stored,
    added,
    encode,
    replaced,
)
from airflow_eos.protocol.participant import Member, Owner

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore

Int16 = Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)]
Int32 = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Identity1(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16


class _Range1(msgspec.Struct, frozen=True):
    topic: str
    partition: Int32
    first: Int64
    last: Int64


class _Transaction1(_Identity1, frozen=True):
    written: Annotated[tuple[_Range1, ...], msgspec.Meta(min_length=1)]
    rows: Int64
    fingerprint: str
    opened_at_ms: Int64
    timeout_ms: Int32


class _Pipeline1(msgspec.Struct, frozen=True):
    transactional_id_prefix: str
    cluster_id: str
    sink: str


def decision(fields: Fields) -> Fields:
    """A decision, whose transactions are work now."""
    found = msgspec.convert(fields.get("transactions"), tuple[_Transaction1, ...])
    works = [
        {
            "kind": "kafka",
            "participant": DEFAULT_PARTICIPANT,
            "key": _key(each),
            "rows": each.rows,
            "fingerprint": each.fingerprint,
            "opened_at_ms": each.opened_at_ms,
            "timeout_ms": each.timeout_ms,
            "detail": {"written": [msgspec.to_builtins(place) for place in each.written]},
        }
        for each in found
    ]
    return replaced(fields, {"transactions": None}, {"works": works, "term": None, "offsets": None})


def ruling(fields: Fields) -> Fields:
    """A ruling about one transaction."""
    identity = msgspec.convert(fields.get("transaction"), _Identity1)
    work = {"kind": "kafka", "participant": DEFAULT_PARTICIPANT, "key": _key(identity)}
    return replaced(fields, {"transaction": None}, {"work": work})


def acceptance(fields: Fields) -> Fields:
    """An acceptance; what could still be committed was none of its business."""
    return added(fields, given_up=[])


def acceptance_undivided(fields: Fields) -> Fields:
    """An acceptance of format version 2, which counted the rows of all participants together."""
    return added(fields, missing=None)


ACCEPTANCE = {1: acceptance, 2: acceptance_undivided}


def pipeline(fields: Fields) -> Fields:
    """A pipeline, whose sink is its only participant."""
    found = msgspec.convert(fields, _Pipeline1)
    member = {
        "name": DEFAULT_PARTICIPANT,
        "kind": "kafka",
        "address": {
            "cluster_id": found.cluster_id,
            "transactional_id_prefix": found.transactional_id_prefix,
        },
        "target": found.sink,
    }
    former = dict.fromkeys(_Pipeline1.__struct_fields__)
    return replaced(fields, former, {"id": "", "participants": [member]})


def heartbeat(fields: Fields) -> Fields:
    """A heartbeat; there were no terms."""
    return added(fields, term=None)


def heartbeat_without_starter(fields: Fields) -> Fields:
    """A heartbeat of format version 2; it did not say who started the driver, or why it ended."""
    later = {"started_by": None, "master": "", "deploy_mode": "", "end": None, "reason": None}
    return added(fields, **later)


def heartbeat_without_requester(fields: Fields) -> Fields:
    """A heartbeat of format version 3; who asked it to drain stood before the reason alone."""
    reason = fields.get("reason")
    if fields.get("end") != "drained" or not isinstance(reason, str):
        return added(fields, drained_by=None)
    return added(fields, drained_by=reason.partition(": ")[0])


def heartbeat_without_namespace(fields: Fields) -> Fields:
    """A heartbeat of format version 4; where on Kubernetes its pod was had to be guessed."""
    return added(fields, namespace="")


def heartbeat_without_answer(fields: Fields) -> Fields:
    """A heartbeat of format version 5; whether a restart heals what it failed with is not known."""
    return added(fields, restart_heals=None)


def heartbeat_without_process(fields: Fields) -> Fields:
    """A heartbeat of format version 6; which process of its machine wrote it is not known."""
    return added(fields, process="")


def drain_request(fields: Fields) -> Fields:
    """A request of format version 1, which meant whoever ran then."""
    return added(fields, term=None, submission=None)


def _key(identity: _Identity1) -> str:
    """As :func:`airflow_eos.kafka.transactions.identity.key_of` says it."""
    return f"{identity.transactional_id}-{identity.producer_id}-{identity.producer_epoch}"


# --- pipeline -------------------------------------------------------------------------------------
# ``eos/pipeline.json``: which pipeline a checkpoint belongs to, written once and for ever.


class Pipeline(Stored, frozen=True, kw_only=True):
    """Owner of a checkpoint, and who takes part in its decisions; no secrets.

    ``id`` is a random ``uuid4().hex``, empty in format version 1. Times in ms since the epoch.
    """

    format_version: int = 2
    id: str
    participants: tuple[Member, ...]
    created_at_ms: int
    created_by: str

    def member(self, name: str) -> Member | None:
        """The participant of that name."""
        return next((each for each in self.participants if each.name == name), None)

    def require_same(self, other: Pipeline, location: str) -> None:
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


def read_pipeline(store: CheckpointStore) -> Pipeline | None:
    """The owner, or None where no driver of ours has ever run on this checkpoint.

    Raises:
        CheckpointFormatError: the object cannot be read as a pipeline.
    """
    return store.read(PIPELINE, Pipeline, upgrades={1: pipeline})


def owner_of(store: CheckpointStore) -> Owner:
    """Who the checkpoint is to others; without an id where no driver of ours has run on it.

    Raises:
        CheckpointFormatError: the object cannot be read as a pipeline.
    """
    pipeline = read_pipeline(store)
    return Owner.at(pipeline.id if pipeline is not None else "", store.location)


def claim(store: CheckpointStore, pipeline: Pipeline) -> Pipeline:
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


def _named(pipeline: Pipeline) -> str:
    return " and ".join(map(str, pipeline.participants))
