"""A consumer group as a participant: it shows lag tools up to which offsets rows are settled.

Its work has no rows. The work holds the source's offsets up to which a batch was read, and is
committed once readers have the rows, so the group is never ahead of what is settled. Nothing is
prepared before the decision, since the decision itself holds the offsets: committing sets them
in a Kafka transaction of its own, under an id that is always the same, see
:mod:`airflow_eos.kafka.transactions.group_offsets`. So no timeout can end the work, the offsets can
always be set again, and a driver that prepares late fences nobody's promise.

Each offset has its :class:`OffsetMetadata`: which pipeline, which batch. By it a late driver sees
that the group is further already, and another pipeline sees that the group is not its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from airflow_eos.core.closing import closed_on_error
from airflow_eos.core.protocol.decision import Outcome, PreparedWork, require_own
from airflow_eos.core.protocol.participant import Member
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

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.checkpoint.topics import TopicPartition
    from airflow_eos.core.protocol.decision import Decision, OpenWork, WorkIdentity
    from airflow_eos.core.protocol.participant import Owner, Ownership
    from airflow_eos.core.protocol.promise import OperatorRuling, Promise

KIND = "consumer_group"
BEGAN = -1
"""The batch number in the mark of a pipeline that took the group over and has delivered nothing."""
Offsets = dict[str, dict[int, int]]
"""Topic → partition → offset of the next row."""


class OffsetMetadata(msgspec.Struct, frozen=True):
    """The mark of a pipeline and batch, stored as the metadata of each committed offset.

    Attributes:
        pipeline: the random id of ``eos/pipeline.json``.
        batch: the offsets are where this batch ends; :data:`BEGAN`: where the pipeline began.
        drained: the nonce of the decision after which the pipeline ended in order with nothing
            open, None while it goes on.
        attempt: the attempt of that decision.
    """

    pipeline: str
    batch: int
    drained: str | None = None
    attempt: int = 0

    def beside(self, offsets: Offsets) -> dict[TopicPartition, CommittedOffset]:
        """Return the offsets, each with this mark as its metadata."""
        text = msgspec.json.encode(_MetadataText(self)).decode()
        return {
            (topic, partition): CommittedOffset(offset, text)
            for topic, partitions in offsets.items()
            for partition, offset in partitions.items()
        }


class _MetadataText(msgspec.Struct, frozen=True):
    """The JSON of the metadata: the mark under this package's name; both may get more fields."""

    metadata: OffsetMetadata = msgspec.field(name="airflow-eos")


class BatchOffsets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The offsets at which a batch ends: the detail of a decision's work."""

    pipeline: str
    batch: int
    offsets: Offsets

    @classmethod
    def of(cls, work: PreparedWork) -> BatchOffsets:
        """Read the offsets from the detail of work that :func:`work_of` made.

        Raises:
            CheckpointFormatError: the detail has no offsets.
        """
        try:
            return msgspec.convert(work.detail, cls, strict=False)
        except msgspec.ValidationError as error:
            raise CheckpointFormatError(
                f"The decision about {work.identity} is not that of a consumer group: {error}. "
                "Nothing was guessed. Restore the decision from a copy of the checkpoint."
            ) from error


def metadata_of(committed: CommittedOffset) -> OffsetMetadata | None:
    """Return the mark beside an offset; None where another program has committed the offset."""
    try:
        return msgspec.json.decode(committed.metadata, type=_MetadataText).metadata
    except (msgspec.MsgspecError, RecursionError):
        return None


def work_of(
    name: str, pipeline: str, batch: int, attempt: int, offsets: Offsets, at_ms: int
) -> PreparedWork:
    """Return the work by which a decision names the offsets where a batch ends."""
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


def foreign(group: str, metadata: OffsetMetadata) -> OwnershipError:
    """Return the error for a group that shows the offsets of another pipeline."""
    return OwnershipError(
        f"Consumer group {group!r} shows how far another pipeline is (its id is "
        f"{metadata.pipeline}, batch {metadata.batch}): two would overwrite each other. Name "
        "another group; or, where that pipeline is gone for good, delete this one: "
        f"kafka-consumer-groups --delete --group {group}. Then start again."
    )


GROUP = "group"


class ConsumerGroupParticipant:
    """See :class:`airflow_eos.core.protocol.participant.Participant`.

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
        """The participant: the group, and the id of the cluster that answers."""
        address = {"cluster_id": self._wire.cluster_id, GROUP: self.group}
        return (Member(self._name, KIND, address, f"consumer group {self.group}"),)

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Refuse work that is not a consumer group's, or whose detail has no offsets."""
        for work in works:
            self._detail(work)

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Set the offsets of the newest batch in ``works``; nothing where the group is further."""
        details = [self._detail(work) for work in works]
        newest = max(details, key=lambda each: each.batch, default=None)
        if newest is not None:
            self.offsets.replace(lambda committed: self._missing(newest, committed))
        return {work.identity: Outcome.COMMITTED for work in works}

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Return False for each work: nothing waits, since only a commit sets the offsets."""
        require_own(works, KIND, self._name)
        return dict.fromkeys(works, False)

    abandon = abort

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Return COMMITTED where the group is there or further; else OPEN, to be set later."""
        committed = self.offsets.read()
        return {
            work.identity: Outcome.OPEN
            if self._missing(self._detail(work), committed)
            else Outcome.COMMITTED
            for work in works
        }

    def open(self, *, except_known: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """Return no open work: its Kafka transaction is begun and ended within a commit."""
        del except_known
        return ()

    def claim(self, owner: Owner) -> None:
        """Do nothing: the marks beside the offsets tell which pipeline owns the group."""

    def inherit(self, owner: Owner) -> None:
        """See :class:`SupportsHandover`; does nothing: the new pipeline sets its own marks."""

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """Return nothing: the rows' systems tell an older copy; a commit checks the owner."""
        del asking
        return ()

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None:
        """Check nothing: where the offsets are gone, they are set again."""

    def note(self, decision: Decision, owner: Owner) -> None:
        """Do nothing: the systems of the rows keep the note."""

    def close(self) -> None:
        """Close the connections."""
        self._wire.close()

    def _missing(
        self, wanted: BatchOffsets, committed: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the offsets to set: all of ``wanted``; none where the group is there or further.

        Raises:
            OwnershipError: another pipeline goes on with this group.
        """
        all_metadata = [
            metadata for each in committed.values() if (metadata := metadata_of(each)) is not None
        ]
        for metadata in all_metadata:
            if metadata.pipeline != wanted.pipeline:
                raise foreign(self.group, metadata)
        if any(metadata.batch > wanted.batch for metadata in all_metadata):
            return {}
        goal = OffsetMetadata(wanted.pipeline, wanted.batch).beside(wanted.offsets)
        there = {tp for tp in goal if tp in committed and _is_of(committed[tp], wanted)}
        missing = sorted({topic for topic, _ in goal.keys() - there})
        # Refreshed: a deleted topic's offsets are gone, and a cached leader would make us wait.
        leaders = (self._wire.cluster.find_leaders(each, refresh=True) for each in missing)
        return {} if all(found is None for found in leaders) else goal

    def _detail(self, work: PreparedWork) -> BatchOffsets:
        require_own([work], KIND, self._name)
        return BatchOffsets.of(work)


def _is_of(committed: CommittedOffset, wanted: BatchOffsets) -> bool:
    metadata = metadata_of(committed)
    return metadata is not None and (metadata.pipeline, metadata.batch) == (
        wanted.pipeline,
        wanted.batch,
    )


def connect(
    member: Member,
    kafka: Mapping[str, object] | KafkaSettings | None,
    *,
    store: CheckpointStore | None = None,
    timeout_s: float,
) -> ConsumerGroupParticipant:
    """Connect to the group of ``member`` through the cluster that ``kafka`` names.

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
