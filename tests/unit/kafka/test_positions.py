"""What is asked of partitions and topics, in the words of those who asked before."""

from __future__ import annotations

import uuid
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.errors import KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.consumer_groups import GroupCoordinator
from airflow_eos.kafka.client.fetch import only_partition
from airflow_eos.kafka.client.offsets import (
    LATEST,
    cleanup_policies,
    cluster_clock_ms,
    log_ends,
    positions,
    topic_ids,
)
from tests.model.wire import VirtualTime


def test_an_id_is_written_as_java_writes_it_or_a_checkpoint_of_sparks_source_would_be_refused() -> (
    None
):
    # org.apache.kafka.common.Uuid: URL-safe base 64 of its bytes, without padding.
    its = uuid.UUID("fbffbfff-ffff-4fff-bfff-fffffffffffe")
    told = SimpleNamespace(error_code=0, topic_id=its)
    wire: Any = SimpleNamespace(cluster=SimpleNamespace(describe_topic=lambda _topic: told))
    assert topic_ids(wire, ["t"]) == {"t": "-_-_____T_-_________" + "_g"}


@pytest.mark.parametrize("no_id", [None, uuid.UUID(int=0)], ids=["v8", "zero"])
def test_a_broker_without_topic_ids_is_not_watched_and_no_error(no_id: uuid.UUID | None) -> None:
    """Metadata version 8, as Redpanda speaks it; or later, and the cluster gives none."""
    told = SimpleNamespace(error_code=0, topic_id=no_id)
    wire: Any = SimpleNamespace(cluster=SimpleNamespace(describe_topic=lambda _topic: told))
    assert topic_ids(wire, ["t"]) == {}


def test_a_policy_that_the_broker_does_not_tell_is_not_known_and_no_error() -> None:
    told = {"events": {"cleanup.policy": "delete"}, "orders": {}}
    cluster = SimpleNamespace(topic_config=lambda topic, _names: told[topic])
    wire: Any = SimpleNamespace(cluster=cluster)
    assert cleanup_policies(wire, ["events", "orders"]) == {"events": "delete"}


class Leader:
    """Of partition 0 of topic "t": gives these answers, then the last for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.cluster = SimpleNamespace(leaders=lambda _topic, **_: {0: 1})

    def submit(self, _message: Any, **_options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
        return future

    def request(self, _message: Any) -> Any:
        return self.answers[0]


def ends(offset: int, topic: str = "t") -> Any:
    told = SimpleNamespace(partition_index=0, error_code=0, offset=offset)
    return SimpleNamespace(topics=[SimpleNamespace(name=topic, partitions=[told])])


@pytest.mark.parametrize("untold", [ends(-1), ends(9, "other")], ids=["-1", "another topic's"])
def test_an_end_that_is_not_told_is_asked_for_again_and_never_an_offset(
    monkeypatch: pytest.MonkeyPatch, untold: Any
) -> None:
    monkeypatch.setattr(faults, "time", VirtualTime())
    place = ("t", 0)
    wire: Any = Leader(untold, ends(7))
    assert positions(wire, [place], LATEST) == {place: 7}
    silent: Any = Leader(untold)
    with pytest.raises(KafkaUnavailableError, match="does not say where it begins and ends"):
        positions(silent, [place], LATEST)
    assert log_ends(silent, "t", 0, leader=1) is None
    moment: Any = Leader(ends(-1))
    assert positions(moment, [place], 1_700_000_000_000) == {place: -1}  # no row of then or later


def quorum(leader: int, told_ms: int = 5, code: int = 0) -> Any:
    voter = SimpleNamespace(replica_id=1, last_caught_up_timestamp=told_ms)
    found = SimpleNamespace(error_code=code, leader_id=leader, current_voters=[voter])
    topics = [SimpleNamespace(partitions=[found])]
    return SimpleNamespace(error_code=0, topics=topics)


@pytest.mark.parametrize(
    ("answer", "clock"),
    [
        (quorum(1), 5),
        (quorum(2), None),  # a leader that no voter is
        (quorum(1, -1), None),  # Kafka's "not known"
        (quorum(1, code=6), None),
        (SimpleNamespace(error_code=0, topics=[]), None),
    ],
)
def test_a_controller_that_does_not_tell_the_time_is_no_error_and_no_time(
    answer: Any, clock: int | None
) -> None:
    wire: Any = Leader(answer)
    assert cluster_clock_ms(wire) == clock


def fetched(topic: str, partition: int) -> Any:
    told = SimpleNamespace(partition_index=partition, preferred_read_replica=-1)
    return SimpleNamespace(topic=topic, partitions=[told])


def test_rows_of_another_partition_are_no_answer() -> None:
    both = SimpleNamespace(responses=[fetched("other", 0), fetched("t", 1), fetched("t", 0)])
    assert only_partition(both, ("t", 0)) is both.responses[2].partitions[0]
    assert only_partition(SimpleNamespace(responses=both.responses[:2]), ("t", 0)) is None


def test_an_offset_that_a_coordinator_could_not_read_is_not_one_that_nobody_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """UNSTABLE_OFFSET_COMMIT and the like come with the partition, and with an offset of -1."""
    monkeypatch.setattr(faults, "time", VirtualTime())

    def told(code: int, offset: int) -> Any:
        each = SimpleNamespace(
            partition_index=0, error_code=code, committed_offset=offset, metadata=None
        )
        return SimpleNamespace(error_code=0, topics=[SimpleNamespace(name="t", partitions=[each])])

    unstable, refused = told(88, -1), told(faults.TOPIC_AUTHORIZATION_FAILED, -1)
    found = SimpleNamespace(error_code=0, node_id=1)
    for answers, expected in (([unstable, told(0, 7)], 7), ([unstable], None), ([refused], None)):
        wire: Any = Leader(*answers)
        wire.request = lambda _message, **_options: found
        group = GroupCoordinator(wire, "readers")
        if expected is not None:
            assert group.read()["t", 0].offset == expected
        else:
            with pytest.raises(KafkaError):
                group.read()
