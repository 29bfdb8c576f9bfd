"""The group as a participant, without Spark: set, set again, never lower, never another's."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

import pytest

from airflow_eos.core.checkpoint.topics import TopicPartition
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import ConfigurationError, OwnershipError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.consumer_groups import CommittedOffset
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator
from airflow_eos.kafka.transactions.group_offsets import GroupOffsets, transactional_id
from airflow_eos.kinds.consumer_group.participant import (
    ConsumerGroupParticipant,
    Offsets,
    connect,
    work_of,
)
from airflow_eos.kinds.consumer_group.sink import refresh_once
from airflow_eos.local import EmbeddedKafka
from tests.support.groups import GroupSeen

OURS, THEIRS = uuid.uuid4().hex, uuid.uuid4().hex


class Stage:
    def __init__(self, broker: EmbeddedKafka) -> None:
        self.topic = f"in-{uuid.uuid4().hex[:8]}"
        broker.create_topic(self.topic, 3)
        self.settings = KafkaSettings.from_librdkafka(
            {"bootstrap.servers": broker.bootstrap_servers}
        )
        self.group = f"g-{uuid.uuid4().hex[:8]}"
        self.seen = GroupSeen(broker.bootstrap_servers, self.group)

    def participant(self) -> ConsumerGroupParticipant:
        member = Member("consumer_group", "consumer_group", {"group": self.group})
        return connect(member, self.settings, timeout_s=100)

    def work(self, batch: int, *offsets: int, pipeline: str = OURS) -> PreparedWork:
        ends: Offsets = {self.topic: dict(enumerate(offsets))}
        return work_of("consumer_group", pipeline, batch, 1, ends, 0)

    def offsets(self) -> list[int]:
        return [offset for _, offset in sorted(self.seen.offsets().items())]


@pytest.fixture
def stage(kafka_broker: EmbeddedKafka) -> Stage:
    return Stage(kafka_broker)


@pytest.fixture
def participant(stage: Stage) -> Iterator[ConsumerGroupParticipant]:
    participant = stage.participant()
    yield participant
    participant.close()


def test_offsets_are_seen_once_committed_and_again_changes_nothing(
    stage: Stage, participant: ConsumerGroupParticipant
) -> None:
    work = stage.work(4, 10, 20, 0)
    assert participant.outcome([work]) == {work.identity: Outcome.OPEN}
    assert stage.offsets() == []
    for _ in range(2):
        assert participant.commit([work]) == {work.identity: Outcome.COMMITTED}
        assert stage.offsets() == [10, 20, 0]
        assert participant.outcome([work]) == {work.identity: Outcome.COMMITTED}


def test_a_sleeper_that_wakes_lowers_nothing(
    stage: Stage, participant: ConsumerGroupParticipant
) -> None:
    participant.commit([stage.work(4, 10, 20, 0)])
    participant.commit([stage.work(5, 15, 20, 3)])
    sleeper = stage.participant()
    assert list(sleeper.commit([stage.work(4, 10, 20, 0)]).values()) == [Outcome.COMMITTED]
    assert stage.offsets() == [15, 20, 3]
    sleeper.close()


def test_what_a_person_set_or_deleted_is_set_again(
    stage: Stage, participant: ConsumerGroupParticipant
) -> None:
    work = stage.work(4, 10, 20, 0)
    participant.commit([work])
    stage.seen.reset({(stage.topic, 0): 99})  # ahead of what is settled
    assert participant.outcome([work]) == {work.identity: Outcome.OPEN}
    participant.commit([work])
    assert stage.offsets() == [10, 20, 0]
    stage.seen.delete()
    participant.commit([work])
    assert stage.offsets() == [10, 20, 0]


def test_who_prepared_and_was_overtaken_is_not_committed(stage: Stage) -> None:
    """Between a driver's look and its commit another one goes by."""
    with ConnectionPool(stage.settings) as wire, ConnectionPool(stage.settings) as other:
        newer = {(stage.topic, 0): CommittedOffset(50)}
        older = {(stage.topic, 0): CommittedOffset(40)}
        looks = []

        def overtaken(there: object) -> dict[tuple[str, int], CommittedOffset]:
            looks.append(there)
            if len(looks) == 1:
                GroupOffsets(other, stage.group).replace(
                    lambda there: {} if there == newer else newer
                )
                return older
            return {}  # it looks again, and sees

        GroupOffsets(wire, stage.group).replace(overtaken)
    assert looks == [{}, newer]
    assert stage.offsets() == [50]


def test_what_a_dead_driver_left_open_is_not_seen_and_holds_nobody_up(
    stage: Stage, participant: ConsumerGroupParticipant
) -> None:
    participant.commit([stage.work(4, 10, 20, 0)])
    with ConnectionPool(stage.settings) as wire:
        offsets = GroupOffsets(wire, stage.group)
        dead = TransactionCoordinator(wire).init(transactional_id(stage.group), 60_000)
        from airflow_eos.kafka.client.errors import Deadline

        ahead = {(stage.topic, p): CommittedOffset(70) for p in range(3)}
        assert offsets._prepared(dead, ahead, Deadline(10)) == 3
    assert stage.offsets() == [10, 20, 0]
    participant.commit([stage.work(5, 15, 20, 3)])
    assert stage.offsets() == [15, 20, 3]


def test_a_group_of_another_pipeline_is_refused_and_left_alone(
    stage: Stage, participant: ConsumerGroupParticipant
) -> None:
    participant.commit([stage.work(9, 10, 20, 0, pipeline=THEIRS)])
    for act in (participant.commit, participant.outcome):
        with pytest.raises(OwnershipError, match=f"{stage.group}.*another pipeline.*--delete"):
            act([stage.work(0, 1, 1, 1)])
    assert stage.offsets() == [10, 20, 0]


def test_offsets_are_committed_again_as_they_are_before_they_expire(
    stage: Stage, participant: ConsumerGroupParticipant
) -> None:
    participant.commit([stage.work(4, 10, 20, 0)])
    before = participant.offsets.read()
    again = refresh_once()
    asked = []

    def counted(
        there: Mapping[TopicPartition, CommittedOffset],
    ) -> Mapping[TopicPartition, CommittedOffset]:
        asked.append(again(there))
        return asked[-1]

    participant.offsets.replace(counted)
    assert asked == [before, {}], "set once, and found there"
    assert participant.offsets.read() == before


@pytest.mark.long
def test_a_topic_that_is_gone_holds_nobody_up(
    stage: Stage, participant: ConsumerGroupParticipant
) -> None:
    ends: Offsets = {stage.topic: {0: 5}, f"{stage.topic}-gone": {0: 7}}
    work = work_of("consumer_group", OURS, 1, 1, ends, 0)
    assert participant.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert stage.offsets() == [5]
    assert participant.outcome([work]) == {work.identity: Outcome.COMMITTED}
    only_gone = work_of("consumer_group", OURS, 2, 1, {f"{stage.topic}-gone": {0: 9}}, 0)
    assert participant.commit([only_gone]) == {only_gone.identity: Outcome.COMMITTED}


def test_recovery_without_an_address_says_what_to_give(stage: Stage) -> None:
    member = Member("consumer_group", "consumer_group", {"group": stage.group})
    with pytest.raises(ConfigurationError, match="--bootstrap-servers"):
        connect(member, None, timeout_s=1)
