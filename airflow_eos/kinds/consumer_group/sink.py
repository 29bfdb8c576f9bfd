"""``ConsumerGroup``: the offsets of what is settled, where ordinary lag tools look for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.closing import closed_on_error
from airflow_eos.delivery.port import PROGRESS
from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.protocol.participant import Member

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.kinds.consumer_group.progress import GroupProgress

_OURS = "airflow-eos"
_LOOK_FOR_BROKER_S = 20.0
_EARLIEST = -2  # as Spark's startingOffsets has it


@dataclass(frozen=True)
class ConsumerGroup:
    """The consumer group that shows how far a pipeline is.

    With each batch it gets the offsets up to which the source's rows are settled, all partitions of
    all Kafka topics that the query reads, in a Kafka transaction that the batch's decision names.
    Nobody consumes as this group, and it is of one pipeline.

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
        check_group(self.group_id)

    @property
    def settings(self) -> KafkaSettings:
        """The connection."""
        return KafkaSettings.from_librdkafka(
            {**self.kafka_config, "bootstrap.servers": self.bootstrap_servers}
        )

    def starting_offsets(self, *topics: str) -> str:
        """What the group has, as Spark's option ``startingOffsets`` of a source of these topics.

        A partition that the group does not know yet is read from its beginning. A checkpoint, once
        there is one, decides instead: Spark then does not look at it.

        Raises:
            TopicError: a topic does not exist, or may not be described.
            KafkaError: the group may not be read, or no broker answers.
        """
        from airflow_eos.kafka.client.connection import ConnectionPool
        from airflow_eos.kafka.client.consumer_groups import GroupCoordinator

        with ConnectionPool(self.settings, timeout_s=_LOOK_FOR_BROKER_S) as wire:
            committed = GroupCoordinator(wire, self.group_id).read()
            places = [(topic, each) for topic in topics for each in wire.cluster.leaders(topic)]
        found: dict[str, dict[str, int]] = {}
        for topic, partition in sorted(places):
            known = committed.get((topic, partition))
            offset = _EARLIEST if known is None else known.offset
            found.setdefault(topic, {})[str(partition)] = offset
        return msgspec.json.encode(found).decode()

    def opened(self, store: CheckpointStore) -> GroupProgress:
        """Reach the group, for the pipeline of that checkpoint; close its participant when done.

        Raises:
            ConfigurationError: somebody consumes as this group.
            KafkaError: it may not be read, or no broker answers.
        """
        from airflow_eos.kinds.consumer_group.participant import GROUP, KIND, connect
        from airflow_eos.kinds.consumer_group.progress import GroupProgress

        member = Member(PROGRESS, KIND, {GROUP: self.group_id})
        reached = connect(member, self.settings, timeout_s=_LOOK_FOR_BROKER_S)
        with closed_on_error(reached) as participant:
            _require_nobody(self.group_id, participant.offsets.members())
        return GroupProgress(participant, store, resume=self.resume)


def _require_nobody(group: str, members: Sequence[str]) -> None:
    if members:
        raise ConfigurationError(
            f"Consumer group {group!r} has {len(members)} consumers now, as client {members[0]!r}: "
            "what they commit and what this pipeline commits would overwrite each other. Name a "
            "group that nobody consumes as."
        )


def check_group(group: str) -> str:
    """Return ``group`` if a user may name it.

    Raises:
        ConfigurationError: it is empty, too long, not printable, or one of ours.
    """
    if not group or len(group) > 200 or not group.isprintable():
        raise ConfigurationError(
            f"consumer group {group!r}: expected 1 to 200 printable characters."
        )
    if group == _OURS or group.startswith(f"{_OURS}."):
        raise ConfigurationError(
            f"consumer group {group!r}: {_OURS} and {_OURS}.… are names of this package itself. "
            "Name another group."
        )
    return group
