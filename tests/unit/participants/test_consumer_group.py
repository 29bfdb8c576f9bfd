"""When a group is where it is wanted, by what it has and by the topics that there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.kafka.client import errors as deadline
from airflow_eos.kafka.client.consumer_groups import CommittedOffset, Place
from airflow_eos.kinds.consumer_group.participant import (
    ConsumerGroupParticipant,
    OffsetMetadata,
    work_of,
)
from airflow_eos.protocol.decision import Outcome
from tests.model.wire import VirtualTime
from tests.support.metadata import Metadata

OURS = "a" * 32
WORK = work_of("progress", OURS, 1, 1, {"in": {0: 5}, "old": {0: 7}}, 0)


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Metadata:
    monkeypatch.setattr(deadline, "time", VirtualTime())
    return Metadata({"in": {0: 1}, "old": {0: 1}})


def participant(metadata: Metadata, committed: dict[Place, CommittedOffset]) -> Any:
    wire: Any = metadata
    found: Any = ConsumerGroupParticipant(wire, "etl", name="progress")
    found.offsets = SimpleNamespace(read=lambda: committed)
    return found


def outcome(asked: Any) -> Outcome:
    [found] = asked.outcome([WORK]).values()
    return Outcome(found)


def test_a_topic_that_was_deleted_since_it_was_looked_up_holds_nobody_up(metadata: Metadata):
    """Its offsets are gone with it, and never come: each batch would wait for them in vain."""
    asked = participant(metadata, dict(OffsetMetadata(OURS, 1).beside({"in": {0: 5}})))
    assert metadata.cluster.leaders("old") == {0: 1}
    assert outcome(asked) is Outcome.OPEN
    del metadata.topics["old"]
    assert outcome(asked) is Outcome.COMMITTED


def test_one_topic_that_is_there_is_enough_to_set_all(metadata: Metadata):
    """One question to the cluster a batch, however many partitions."""
    asked = participant(metadata, {})
    assert outcome(asked) is Outcome.OPEN
    assert metadata.asked == ["in"]
