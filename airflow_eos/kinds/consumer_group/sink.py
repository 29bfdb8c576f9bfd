"""``ConsumerGroup``: commits the offsets of settled rows, for ordinary lag tools to see."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.core.arguments import take_fields
from airflow_eos.core.checkpoint import read_state
from airflow_eos.core.checkpoint.layout import newest_planned
from airflow_eos.core.checkpoint.pipeline import pipeline_of
from airflow_eos.core.checkpoint.spark_log import KafkaOffsets, kafka_offsets, parse_offsets
from airflow_eos.core.closing import closed_on_error
from airflow_eos.core.delivery.port import PROGRESS, Former
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.decision import Decision, Verdict
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import ConfigurationError, OwnershipError
from airflow_eos.kafka.client.settings import KafkaSettings, check_servers
from airflow_eos.kinds.consumer_group.participant import (
    BEGAN,
    OffsetMetadata,
    Offsets,
    foreign,
    metadata_of,
    work_of,
)

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.checkpoint.topics import TopicPartition
    from airflow_eos.core.protocol.decision import PreparedWork
    from airflow_eos.kafka.client.consumer_groups import CommittedOffset
    from airflow_eos.kinds.consumer_group.participant import ConsumerGroupParticipant

_OURS = "airflow-eos"
_LOOK_FOR_BROKER_S = 20.0
_EARLIEST = -2  # as Spark's startingOffsets has it


@dataclass(frozen=True)
class ConsumerGroup:
    """The consumer group that shows up to which offsets a pipeline's rows are settled.

    With each batch it gets the offsets up to which the source's rows are settled, all partitions of
    all Kafka topics that the query reads, in a Kafka transaction that the batch's decision names.
    No consumer may use this group, and it belongs to one pipeline.

    Attributes:
        group_id: the group.
        bootstrap_servers: of the cluster that the query *reads* from; lag tools look there.
        kafka_config: further librdkafka properties: security.protocol, sasl.*, ssl.* ...
        resume: where the checkpoint is empty, go on from the group: the source must begin at
            :meth:`starting_offsets`. Refused unless the pipeline that the group shows was drained.
    """

    group_id: str
    bootstrap_servers: str
    kafka_config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    resume: bool = False

    def __post_init__(self) -> None:
        check_servers(self.bootstrap_servers)
        check_group(self.group_id)
        take_fields(self)

    @property
    def settings(self) -> KafkaSettings:
        """The settings of the connection to the source's cluster."""
        return KafkaSettings.from_librdkafka(
            {**self.kafka_config, "bootstrap.servers": self.bootstrap_servers}
        )

    def starting_offsets(self, *topics: str) -> str:
        """Return the group's offsets of these topics, as Spark's source option ``startingOffsets``.

        A partition that the group does not know yet is read from its beginning. Once there is a
        checkpoint, Spark ignores the option.

        Raises:
            TopicError: a topic does not exist, or may not be described.
            KafkaError: the group may not be read, or no broker answers.
        """
        from airflow_eos.kafka.client.connection import ConnectionPool
        from airflow_eos.kafka.client.consumer_groups import GroupCoordinator

        with ConnectionPool(self.settings, timeout_s=_LOOK_FOR_BROKER_S) as wire:
            committed = GroupCoordinator(wire, self.group_id).read()
            partitions = [(topic, each) for topic in topics for each in wire.cluster.leaders(topic)]
        found: dict[str, dict[str, int]] = {}
        for topic, partition in sorted(partitions):
            known = committed.get((topic, partition))
            offset = _EARLIEST if known is None else known.offset
            found.setdefault(topic, {})[str(partition)] = offset
        return msgspec.json.encode(found).decode()

    def connected(self, store: CheckpointStore) -> GroupProgress:
        """Connect to the group, for the pipeline of ``store``; close its participant when done.

        Raises:
            ConfigurationError: a consumer uses this group.
            KafkaError: the group may not be read, or no broker answers.
        """
        from airflow_eos.kinds.consumer_group.participant import GROUP, KIND, connect

        member = Member(PROGRESS, KIND, {GROUP: self.group_id})
        reached = connect(member, self.settings, timeout_s=_LOOK_FOR_BROKER_S)
        with closed_on_error(reached) as participant:
            if used_by := participant.offsets.used_by():
                raise ConfigurationError(
                    f"Consumer group {self.group_id!r} has {used_by}: what they commit and what "
                    "this pipeline commits would overwrite each other. Name a group that nobody "
                    "consumes as."
                )
        return GroupProgress(participant, store, resume=self.resume)


def check_group(group: object) -> str:
    """Return ``group`` if a user may give this name.

    Raises:
        ConfigurationError: it is empty, too long, not printable, or a name of this package.
    """
    if not isinstance(group, str) or not group or len(group) > 200 or not group.isprintable():
        raise ConfigurationError(
            f"consumer group {group!r}: expected 1 to 200 printable characters."
        )
    if group == _OURS or group.startswith(f"{_OURS}."):
        raise ConfigurationError(
            f"consumer group {group!r}: {_OURS} and {_OURS}.… are names of this package itself. "
            "Name another group."
        )
    return group


# --- group state ----------------------------------------------------------------------------------
# The committed offsets of a group, and the pipelines that they belong to.


@dataclass(frozen=True, slots=True)
class GroupState:
    """The committed offsets of a group, and the marks beside them.

    Attributes:
        group: its id.
        offsets: the committed offsets.
        metadata: the distinct marks beside the offsets; None for offsets of another program.
    """

    group: str
    offsets: Offsets
    metadata: frozenset[OffsetMetadata | None]

    @classmethod
    def of(cls, group: str, committed: Mapping[TopicPartition, CommittedOffset]) -> GroupState:
        """Make the state from the group's committed offsets."""
        offsets: Offsets = {}
        for (topic, partition), each in committed.items():
            offsets.setdefault(topic, {})[partition] = each.offset
        return cls(group, offsets, frozenset(metadata_of(each) for each in committed.values()))

    def began(self, pipeline: str) -> bool:
        """Whether that pipeline has taken the group over, and committed nothing since."""
        return self.metadata == {OffsetMetadata(pipeline, BEGAN)}

    def require_own(self, pipeline: str) -> None:
        """Refuse offsets that another pipeline, or another program, has committed.

        Raises:
            OwnershipError: with the owner and how to go on.
        """
        for metadata in self.metadata:
            if metadata is None:
                raise OwnershipError(
                    f"Consumer group {self.group!r} has offsets that no pipeline of this package "
                    "has committed; they would be overwritten. Name another group, or delete this "
                    f"one: kafka-consumer-groups --delete --group {self.group}. To go on from "
                    "there: ConsumerGroup(resume=True) or --resume-from-group (docs/sinks.md)."
                )
            if metadata.pipeline != pipeline:
                raise foreign(self.group, metadata)

    def require_drained(self) -> OffsetMetadata | None:
        """Refuse a group whose pipeline was not drained; return the mark of where it ended.

        None where only other programs have committed: such offsets are as good as their owner.

        Raises:
            OwnershipError: with what was found and how to go on.
        """
        if not self.offsets:
            raise OwnershipError(
                f"Consumer group {self.group!r} has no offsets to go on from. Give another start "
                "position; the group gets its offsets with the first batch."
            )
        if self.metadata == {None}:
            return None
        metadata = next(iter(self.metadata)) if len(self.metadata) == 1 else None
        if metadata is None:
            raise OwnershipError(
                f"Consumer group {self.group!r} has offsets of several hands: somebody has reset "
                f"some of them, or pipelines have shared it. {_BY_HAND}"
            )
        if metadata.drained is None and metadata.batch != BEGAN:
            raise OwnershipError(
                f"Consumer group {self.group!r} is where batch {metadata.batch} of pipeline "
                f"{metadata.pipeline} ended, and that pipeline was not drained after it: more may "
                "be promised or delivered. Restore its checkpoint, start it, and drain it "
                f"(airflow-eos drain). {_BY_HAND}"
            )
        return metadata


_BY_HAND = (
    "Nothing was started. If that cannot be: find out by the output how far it is, and give the "
    "start offsets yourself, under another group and another prefix."
)


# --- group progress -------------------------------------------------------------------------------
# How one driver begins with a consumer group, goes on with it, and leaves it.


log = Log(__name__)

_REFRESH_S = 6 * 3600.0
"""The pause between refreshes: without consumers, a group's offsets expire
``offsets.retention.minutes`` after the last commit: 7 days by default."""


class GroupProgress:
    """See :class:`~airflow_eos.core.delivery.port.OffsetCommit`.

    Args:
        participant: the participant of the group.
        store: the checkpoint, whose ``eos/pipeline.json`` says which pipeline it is.
        resume: whether an empty checkpoint goes on from the group.
    """

    def __init__(
        self, participant: ConsumerGroupParticipant, store: CheckpointStore, *, resume: bool
    ) -> None:
        self.participant = participant
        self._store = store
        self._resume = resume
        self._began_at: KafkaOffsets | None = None
        self._closed = threading.Event()

    def former(self, pipeline: str) -> Former | None:
        """See :meth:`OffsetCommit.former`."""
        state = self._state()
        if newest_planned(self._store) is not None or state.began(pipeline):
            return None
        if not self._resume:
            state.require_own(pipeline)
            return None
        metadata = state.require_drained()
        if metadata is None:
            return None
        # A pipeline that only began has claimed the outputs all the same.
        return Former(metadata.pipeline, None if metadata.drained is None else _decision(metadata))

    def begin(self) -> None:
        """See :meth:`OffsetCommit.begin`: an empty checkpoint that goes on takes the group over."""
        threading.Thread(target=self._refresh, name="airflow-eos-group", daemon=True).start()
        if newest_planned(self._store) is not None:
            self.participant.offsets.replace(self._going_on)
        state, ours = self._state(), OffsetMetadata(self._pipeline, BEGAN)
        if not state.began(ours.pipeline):
            if newest_planned(self._store) is not None or not self._resume:
                return
            state.require_drained()
            self.participant.offsets.replace(lambda committed: _taken(committed, state, ours))
            taken = self._state()
            if not taken.began(ours.pipeline):
                taken.require_own(ours.pipeline)
        # Also where an earlier run has taken the group over: its source may have begun elsewhere.
        self._began_at = state.offsets

    def close(self) -> None:
        """Stop refreshing the group's offsets."""
        self._closed.set()

    def _refresh(self) -> None:
        """Commit the standing offsets again and again: without batches, they would expire."""
        while not self._closed.wait(_REFRESH_S):
            try:
                self.participant.offsets.replace(refresh_once())
            except Exception:  # whatever it is: without this thread the offsets expire unseen
                log.exception("group_not_refreshed")

    def drained(self, decision: Decision, is_newest: Callable[[], bool]) -> None:
        """See :meth:`OffsetCommit.drained`; marks nothing where the group is at another batch."""
        pipeline = self._pipeline
        metadata = OffsetMetadata(pipeline, decision.batch_id, decision.nonce, decision.attempt)

        def with_drain(
            committed: Mapping[TopicPartition, CommittedOffset],
        ) -> Mapping[TopicPartition, CommittedOffset]:
            # Asked while the transactional id is ours: a newer driver takes its term, then the id.
            state = GroupState.of(self.participant.group, committed)
            if state.metadata != {OffsetMetadata(pipeline, decision.batch_id)} or not is_newest():
                return {}
            return metadata.beside(state.offsets)

        self.participant.offsets.replace(with_drain)

    def _going_on(
        self, committed: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the offsets without a drain's mark, which is void once the pipeline goes on."""
        state = GroupState.of(self.participant.group, committed)
        metadata = next(iter(state.metadata)) if len(state.metadata) == 1 else None
        if metadata is None or metadata.pipeline != self._pipeline or metadata.drained is None:
            return {}
        return OffsetMetadata(metadata.pipeline, metadata.batch).beside(state.offsets)

    def works(self, batch_id: int, attempt: int, offsets: str) -> Sequence[PreparedWork]:
        """Return one piece of work: the offsets at which the batch's Kafka sources end."""
        group = self.participant.group
        ends = parse_offsets(offsets.encode(), f"{self._store.location}, batch {batch_id}").ends
        reached = lowest([kafka_offsets(raw) for raw in ends.values() if raw is not None], group)
        if batch_id == 0 and self._began_at is not None:
            began = [source.start for source in read_state(self._store).sources]
            _require_began(group, lowest(began, group), self._began_at)
        now_ms = time.time_ns() // 1_000_000
        return (work_of(PROGRESS, self._pipeline, batch_id, attempt, reached, now_ms),)

    def _state(self) -> GroupState:
        return GroupState.of(self.participant.group, self.participant.offsets.read())

    @cached_property
    def _pipeline(self) -> str:
        return pipeline_of(self._store).id


def lowest(sources: Sequence[KafkaOffsets | None], group: str) -> KafkaOffsets:
    """Return the offsets of all Kafka sources; the lower where two sources read a partition.

    Raises:
        ConfigurationError: there is no Kafka source.
    """
    found: KafkaOffsets = {}
    for source in sources:
        for topic, partitions in (source or {}).items():
            known = found.setdefault(topic, {})
            for partition, offset in partitions.items():
                known[partition] = min(offset, known.get(partition, offset))
    if not found:
        raise ConfigurationError(
            f"Consumer group {group!r} was named for a query that reads no Kafka topic: expected "
            'a source of format "kafka". Leave the group away.'
        )
    return found


def refresh_once() -> Callable[
    [Mapping[TopicPartition, CommittedOffset]], Mapping[TopicPartition, CommittedOffset]
]:
    """Return a change that commits the standing offsets once; nothing when retried after a race."""
    left = [True]
    return lambda committed: committed if left and left.pop() else {}


def _taken(
    committed: Mapping[TopicPartition, CommittedOffset], expected: GroupState, ours: OffsetMetadata
) -> Mapping[TopicPartition, CommittedOffset]:
    """Return the expected offsets under our mark; nothing where the group has changed since."""
    if GroupState.of(expected.group, committed) != expected:
        return {}
    goal = ours.beside(expected.offsets)
    return {} if goal == committed else goal


def _require_began(group: str, began: KafkaOffsets, expected: KafkaOffsets) -> None:
    elsewhere = [
        f"{topic}/{partition}: {began.get(topic, {}).get(partition)} instead of {offset}"
        for topic, partitions in sorted(expected.items())
        for partition, offset in sorted(partitions.items())
        if began.get(topic, {}).get(partition) != offset
    ]
    if elsewhere:
        raise ConfigurationError(
            f"The source did not begin where consumer group {group!r} stands ({elsewhere[0]}). "
            "Nothing was delivered. Delete the checkpoint, give the source "
            '.option("startingOffsets", group.starting_offsets(topic, …)) with all topics of the '
            "group, and start again."
        )


def _decision(metadata: OffsetMetadata) -> Decision:
    """Return the decision that a mark names, with placeholders for what the mark lacks."""
    return Decision(
        batch_id=metadata.batch,
        attempt=metadata.attempt,
        verdict=Verdict.COMMIT,
        offsets="in the consumer group",
        decided_by=f"pipeline {metadata.pipeline}",
        decided_at_ms=0,
        nonce=str(metadata.drained),
    )
