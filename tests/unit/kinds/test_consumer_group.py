"""When a group is where it is wanted, and whether an empty checkpoint may go on from it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import obstore.store
import pytest
import structlog

from airflow_eos.core.checkpoint import CheckpointStore, PipelineIdentity, claim, take_term
from airflow_eos.core.checkpoint.topics import TopicPartition
from airflow_eos.core.delivery.port import Former
from airflow_eos.core.delivery.takeover import record_drained
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import ConfigurationError, KafkaUnavailableError, OwnershipError
from airflow_eos.kafka.client import errors as deadline
from airflow_eos.kafka.client.consumer_groups import CommittedOffset
from airflow_eos.kinds.consumer_group import sink as group_progress
from airflow_eos.kinds.consumer_group.participant import (
    BEGAN,
    ConsumerGroupParticipant,
    OffsetMetadata,
    Offsets,
    metadata_of,
    work_of,
)
from airflow_eos.kinds.consumer_group.sink import ConsumerGroup, GroupProgress, GroupState, lowest
from tests.model.wire import VirtualTime
from tests.support.metadata import Metadata
from tests.support.pipelines import commit_of

OURS = "a" * 32
WORK = work_of("progress", OURS, 1, 1, {"in": {0: 5}, "old": {0: 7}}, 0)


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Metadata:
    monkeypatch.setattr(deadline, "time", VirtualTime())
    return Metadata({"in": {0: 1}, "old": {0: 1}})


def participant(metadata: Metadata, committed: dict[TopicPartition, CommittedOffset]) -> Any:
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


# --- group start ----------------------------------------------------------------------------------
# May an empty checkpoint go on from a group? Only where one pipeline was drained, or none was.


OFFSETS: Offsets = {"in": {0: 5, 1: 7}}
OUR_GROUP, THEIRS, NONCE = "a" * 32, "b" * 32, "c" * 32
DRAINED = OffsetMetadata(THEIRS, 4, NONCE, 1)


def standing(*committed: dict[tuple[str, int], CommittedOffset]) -> GroupState:
    return GroupState.of("etl", {place: each for part in committed for place, each in part.items()})


def test_a_group_is_refreshed_again_whatever_went_wrong_the_last_time(monkeypatch):
    """Its offsets expire after a week in which no batch comes."""
    tried: list[str] = []

    def replace(_wanted):
        tried.append("once")
        if len(tried) == 1:
            raise KeyError("etl-offsets")
        progress.close()

    monkeypatch.setattr(group_progress, "_REFRESH_S", 0.0)
    group: Any = SimpleNamespace(offsets=SimpleNamespace(replace=replace))
    store = CheckpointStore(obstore.store.MemoryStore(), "memory")
    progress = group_progress.GroupProgress(group, store, resume=False)
    progress._refresh()
    assert tried == ["once", "once"]


def test_a_mark_survives_the_way_through_the_group_and_other_texts_are_none():
    committed = DRAINED.beside(OFFSETS)
    assert {metadata_of(each) for each in committed.values()} == {DRAINED}
    for text in ("", "{}", "host-1", '{"pipeline": "x", "batch": 1}', "{"):
        assert metadata_of(CommittedOffset(5, text)) is None


def test_a_drained_pipeline_is_gone_on_from():
    assert standing(DRAINED.beside(OFFSETS)).require_drained() == DRAINED


def test_who_took_it_over_and_delivered_nothing_is_gone_on_from():
    began = OffsetMetadata(THEIRS, BEGAN)
    assert standing(began.beside(OFFSETS)).require_drained() == began
    assert standing(began.beside(OFFSETS)).began(THEIRS)
    assert not standing(began.beside(OFFSETS)).began(OUR_GROUP)


def test_offsets_of_somebody_else_are_taken_as_they_are():
    assert standing({("in", 0): CommittedOffset(5)}).require_drained() is None


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (standing(), "no offsets to go on from"),
        (standing(OffsetMetadata(THEIRS, 4).beside(OFFSETS)), "batch 4.*not drained"),
        (
            standing(DRAINED.beside({"in": {0: 5}}), {("in", 1): CommittedOffset(9)}),
            "several hands",
        ),
        (
            standing(
                DRAINED.beside({"in": {0: 5}}),
                OffsetMetadata(OUR_GROUP, 4, NONCE, 1).beside({"b": {0: 1}}),
            ),
            "several hands",
        ),
    ],
)
def test_everything_else_is_refused(found: GroupState, why: str):
    with pytest.raises(OwnershipError, match=why):
        found.require_drained()


def test_without_being_told_only_an_empty_group_or_the_own_one_is_used():
    standing().require_own(OUR_GROUP)
    standing(OffsetMetadata(OUR_GROUP, 4).beside(OFFSETS)).require_own(OUR_GROUP)
    with pytest.raises(OwnershipError, match="another pipeline"):
        standing(DRAINED.beside(OFFSETS)).require_own(OUR_GROUP)
    with pytest.raises(OwnershipError, match="would be overwritten"):
        standing({("in", 0): CommittedOffset(5)}).require_own(OUR_GROUP)


class GroupOfOffsets:
    """The group, set by whoever has the id."""

    def __init__(self) -> None:
        self.committed: dict[tuple[str, int], CommittedOffset] = {}

    def read(self) -> dict[tuple[str, int], CommittedOffset]:
        return self.committed

    def replace(self, wanted: Any) -> None:
        self.committed |= wanted(self.committed)


class TestOneThatGoesOnAfterItWasDrained:
    """It lives and waits for input: no batch has told the outputs so yet."""

    DECISION = commit_of(4, offsets="{}", decided_by="a driver", nonce=NONCE)

    @pytest.fixture
    def group(self) -> Any:
        group = SimpleNamespace(group="etl", offsets=GroupOfOffsets())
        group.offsets.committed = OffsetMetadata(OUR_GROUP, 4).beside(OFFSETS)
        return group

    @pytest.fixture
    def started(self, group) -> Callable[..., GroupProgress]:
        def started(pipeline: str, *planned: str, resume: bool = False) -> GroupProgress:
            store = CheckpointStore(obstore.store.MemoryStore(), "memory")
            for path in planned:
                store.put(path, b"v1")
            own = PipelineIdentity(
                id=pipeline, participants=(), created_at_ms=1, created_by="a driver"
            )
            claim(store, own)
            return GroupProgress(group, store, resume=resume)

        return started

    def test_it_is_not_gone_on_from(self, started):
        started(OUR_GROUP, "offsets/4").drained(self.DECISION, lambda: True)
        heir = started(THEIRS, resume=True)
        assert heir.former(THEIRS) is not None, "drained, and nobody has gone on"
        again = started(OUR_GROUP, "offsets/4")
        again.begin()
        again.close()
        with pytest.raises(OwnershipError, match=r"batch 4.*not drained"):
            heir.former(THEIRS)
        again.drained(self.DECISION, lambda: True)
        assert heir.former(THEIRS) is not None

    def test_who_only_began_is_gone_on_from_since_it_claimed_the_outputs_all_the_same(
        self, group, started
    ):
        """The advice of a source that began elsewhere: delete the checkpoint, and start again."""
        group.offsets.committed = OffsetMetadata(OUR_GROUP, BEGAN).beside(OFFSETS)
        assert started(OUR_GROUP, resume=True).former(OUR_GROUP) is None
        assert started(THEIRS, resume=True).former(THEIRS) == Former(OUR_GROUP, None)

    def test_a_sleeper_that_ends_in_order_does_not_say_so_of_the_newest(self, started):
        sleeper, newest = started(OUR_GROUP, "offsets/4"), started(OUR_GROUP, "offsets/4")
        newest.begin()
        newest.close()
        sleeper.drained(self.DECISION, lambda: False)
        with pytest.raises(OwnershipError, match=r"batch 4.*not drained"):
            started(THEIRS, resume=True).former(THEIRS)


@pytest.mark.parametrize("error", [KafkaUnavailableError("away"), KeyError("etl-offsets")])
def test_a_run_that_cannot_say_that_it_is_drained_has_ended_well_all_the_same(error):
    def drained(*_told: Any) -> None:
        raise error

    store = CheckpointStore(obstore.store.MemoryStore(), "memory")
    tenure = take_term(store, taken_by="a driver")
    store.put("offsets/4", b"v1")
    decision = TestOneThatGoesOnAfterItWasDrained.DECISION
    decisions: Any = SimpleNamespace(of_batch=lambda batch: (decision,) if batch == 4 else ())
    participant: Any = SimpleNamespace(open=lambda: ())
    progress: Any = SimpleNamespace(drained=drained)
    with structlog.testing.capture_logs() as logs:
        record_drained(tenure, decisions, participant, progress)
    assert [each["event"] for each in logs] == ["not_known_to_be_drained"]


def test_a_partition_that_two_sources_read_is_as_far_as_the_slower_one():
    both = lowest([{"a": {0: 9, 1: 2}}, None, {"a": {0: 4}, "b": {0: 1}}], "etl")
    assert both == {"a": {0: 4, 1: 2}, "b": {0: 1}}
    with pytest.raises(ConfigurationError, match="reads no Kafka topic"):
        lowest([None], "etl")


@pytest.mark.parametrize("group", ["", "x" * 201, "a\nb", "airflow-eos", "airflow-eos.orders"])
def test_a_group_that_cannot_be_or_is_ours_is_refused(group: str):
    with pytest.raises(ConfigurationError, match="consumer group"):
        ConsumerGroup(group, "localhost:9092")


def test_a_mark_that_no_parser_reads_is_somebody_elses():
    """Whoever may commit to the group writes beside its offsets what he likes."""
    assert metadata_of(CommittedOffset(7, "[" * 100_000)) is None
