"""A consumer group as a participant: how far the pipeline is, where ordinary lag tools look.

Its work has no rows. It says up to which offsets of the source the rows of a batch were read, and
follows them: it is committed once readers have them, so the group is never ahead of what is
settled. Nothing is prepared before the decision, since the decision itself holds all there is to
know: committing sets the offsets in a Kafka transaction of its own, under an id that is always
the same, see :mod:`airflow_eos.kafka.transactions.group_offsets`. So no timeout can take it away,
it can always be set again, and a driver that prepares late fences nobody's promise.

Each offset has its :class:`OffsetMetadata`: which pipeline, which batch. By it a late
driver sees that the group is further already, and another pipeline that the group is not its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from airflow_eos.closing import closed_on_error
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    OwnershipError,
    UnknownClusterError,
)
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.consumer_groups import CommittedOffset
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.group_offsets import GroupOffsets
from airflow_eos.protocol.decision import Outcome, PreparedWork, require_own
from airflow_eos.protocol.participant import Member

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.kafka.client.consumer_groups import Place
    from airflow_eos.protocol.decision import Decision, OpenWork, WorkIdentity
    from airflow_eos.protocol.participant import Owner, Ownership
    from airflow_eos.protocol.promise import OperatorRuling, Promise

KIND = "consumer_group"
BEGAN = -1
"""In the place of a batch: where the pipeline began, which has delivered nothing yet."""
Offsets = dict[str, dict[int, int]]
"""topic → partition → offset of the next row"""


class OffsetMetadata(msgspec.Struct, frozen=True):
    """What stands beside each offset, as its metadata.

    Attributes:
        pipeline: the random id of ``eos/pipeline.json``.
        batch: the offsets are where this batch ends; :data:`BEGAN`: where the pipeline began.
        drained: the nonce of the decision after which the pipeline ended in order with nothing
            open, None while it goes on.
        attempt: of that decision.
    """

    pipeline: str
    batch: int
    drained: str | None = None
    attempt: int = 0

    def beside(self, offsets: Offsets) -> dict[Place, CommittedOffset]:
        """The offsets, each with this mark."""
        text = msgspec.json.encode(_MetadataText(self)).decode()
        return {
            (topic, partition): CommittedOffset(offset, text)
            for topic, partitions in offsets.items()
            for partition, offset in partitions.items()
        }


class _MetadataText(msgspec.Struct, frozen=True):
    """The text itself: a name that nobody else gives, around the mark; either may grow."""

    mark: OffsetMetadata = msgspec.field(name="airflow-eos")


class BatchOffsets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a batch reaches: what a decision keeps of it."""

    pipeline: str
    batch: int
    offsets: Offsets

    @classmethod
    def of(cls, work: PreparedWork) -> BatchOffsets:
        """What :func:`work_of` was made of.

        Raises:
            CheckpointFormatError: the detail says nothing of offsets.
        """
        try:
            return msgspec.convert(work.detail, cls, strict=False)
        except msgspec.ValidationError as error:
            raise CheckpointFormatError(
                f"The decision about {work.identity} is not that of a consumer group: {error}. "
                "Nothing was guessed. Restore the decision from a copy of the checkpoint."
            ) from error


def mark_of(committed: CommittedOffset) -> OffsetMetadata | None:
    """The mark beside an offset; None where somebody else has committed it."""
    try:
        return msgspec.json.decode(committed.metadata, type=_MetadataText).mark
    except (msgspec.MsgspecError, RecursionError):
        return None


def work_of(
    name: str, pipeline: str, batch: int, attempt: int, offsets: Offsets, at_ms: int
) -> PreparedWork:
    """What a decision keeps of it."""
    return PreparedWork(
        kind=KIND,
        participant=name,
        key=f"{pipeline}-{batch}-{attempt}",
        rows=0,
        fingerprint="0" * 32,
        opened_at_ms=at_ms,
        timeout_ms=None,
        detail=msgspec.to_builtins(BatchOffsets(pipeline, batch, offsets), str_keys=True),
    )


def foreign(group: str, mark: OffsetMetadata) -> OwnershipError:
    """The error for a group that shows how far another pipeline is."""
    return OwnershipError(
        f"Consumer group {group!r} shows how far another pipeline is (its id is {mark.pipeline}, "
        f"batch {mark.batch}): two would overwrite each other. Name another group; or, where that "
        "pipeline is gone for good, delete this one: kafka-consumer-groups --delete --group "
        f"{group}. Then start again."
    )


GROUP = "group"


class ConsumerGroupParticipant:
    """See :class:`airflow_eos.protocol.participant.Participant`.

    Args:
        wire: connections to the cluster of the source's topics; closed with this.
        group: the group's id.
        name: the participant's name in decisions.
    """

    def __init__(self, wire: ConnectionPool, group: str, *, name: str) -> None:
        self.group = group
        self.offsets = GroupOffsets(wire, group)
        self._wire = wire
        self._name = name

    @property
    def members(self) -> tuple[Member, ...]:
        """With the id of the cluster that answers."""
        address = {"cluster_id": self._wire.cluster_id, GROUP: self.group}
        return (Member(self._name, KIND, address, f"consumer group {self.group}"),)

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Each says which offsets."""
        for work in works:
            self._detail(work)

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Set the offsets of the newest, unless the group is there or further."""
        details = [self._detail(work) for work in works]
        newest = max(details, key=lambda each: each.batch, default=None)
        if newest is not None:
            self.offsets.replace(lambda committed: self._missing(newest, committed))
        return {work.identity: Outcome.COMMITTED for work in works}

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Nothing waits: the offsets are set when they are committed, and not before."""
        require_own(works, KIND, self._name)
        return dict.fromkeys(works, False)

    abandon = abort

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Ask the group: it is there or further, or it is still to be set, which harms nothing."""
        committed = self.offsets.read()
        return {
            work.identity: Outcome.OPEN
            if self._missing(self._detail(work), committed)
            else Outcome.COMMITTED
            for work in works
        }

    def open(self, *, besides: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """None: no transaction of it outlives the moment in which it is committed."""
        del besides
        return ()

    def claim(self, owner: Owner) -> None:
        """The marks beside the offsets say whose the group is."""

    def inherit(self, owner: Owner) -> None:
        """See :class:`SupportsHandover`: whoever goes on takes the marks over one by one."""

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """The rows' own systems tell an older copy; whose the group is, committing finds out."""
        del asking
        return ()

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None:
        """Nothing is asked: where the offsets are gone, they are set again."""

    def note(self, decision: Decision, owner: Owner) -> None:
        """Nothing: the systems of the rows remember it."""

    def close(self) -> None:
        """Close the connections."""
        self._wire.close()

    def _missing(
        self, wanted: BatchOffsets, committed: Mapping[Place, CommittedOffset]
    ) -> Mapping[Place, CommittedOffset]:
        """What is to be set: all of it, or nothing where the group is there or further.

        Raises:
            OwnershipError: another pipeline goes on with this group.
        """
        marks = [mark for each in committed.values() if (mark := mark_of(each)) is not None]
        for mark in marks:
            if mark.pipeline != wanted.pipeline:
                raise foreign(self.group, mark)
        if any(mark.batch > wanted.batch for mark in marks):
            return {}
        goal = OffsetMetadata(wanted.pipeline, wanted.batch).beside(wanted.offsets)
        there = {place for place in goal if place in committed and _is_of(committed[place], wanted)}
        missing = sorted({topic for topic, _ in goal.keys() - there})
        # Asked anew: a topic's offsets go with it, and what is remembered would wait for them.
        leaders = (self._wire.cluster.find_leaders(each, refresh=True) for each in missing)
        return {} if all(found is None for found in leaders) else goal

    def _detail(self, work: PreparedWork) -> BatchOffsets:
        require_own([work], KIND, self._name)
        return BatchOffsets.of(work)


def _is_of(committed: CommittedOffset, wanted: BatchOffsets) -> bool:
    mark = mark_of(committed)
    return mark is not None and (mark.pipeline, mark.batch) == (wanted.pipeline, wanted.batch)


def connect(
    member: Member,
    kafka: Mapping[str, object] | KafkaSettings | None,
    *,
    store: CheckpointStore | None = None,
    timeout_s: float,
) -> ConsumerGroupParticipant:
    """Reach the group of ``member`` through the cluster that ``kafka`` names.

    Args:
        member: its name, and the group of its address.
        kafka: a librdkafka-style configuration; None is refused.
        store: not needed.
        timeout_s: seconds to look for a first broker.

    Raises:
        UnknownClusterError: no cluster is named.
        ConfigurationError: a setting cannot work, or the address has no group.
        KafkaError: no broker answers, it does not accept these credentials, or the brokers lack
            a message that is needed.
    """
    del store
    group = member.address.get(GROUP)
    if group is None:
        raise ConfigurationError(f"{member} has no {GROUP}: eos/pipeline.json is not a group's.")
    if kafka is None:
        raise UnknownClusterError(
            f"Which Kafka cluster? {member} takes part in this pipeline: give --bootstrap-servers "
            f"host:port, or {member.name!r} its own librdkafka configuration where the source is "
            "in another cluster than the output."
        )
    settings = kafka if isinstance(kafka, KafkaSettings) else KafkaSettings.from_librdkafka(kafka)
    with closed_on_error(
        ConnectionPool(settings, client_id="airflow-eos", timeout_s=timeout_s)
    ) as wire:
        wire.cluster.capabilities().require(groups=True)
    return ConsumerGroupParticipant(wire, group, name=member.name)
