"""What brokers can do: all of them, some not, nobody has told; and what each of these means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.errors import KafkaError, KafkaUnavailableError, TopicError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.cluster import NEEDS, ClusterView
from airflow_eos.kafka.client.messages import (
    ApiVersionsRequest,
    DescribeConfigsRequest,
    DescribeProducersRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    MetadataRequest,
    OffsetFetchRequest,
    WriteTxnMarkersRequest,
)
from airflow_eos.ops.doctor import protocol
from tests.model.wire import VirtualTime
from tests.support.metadata import EVERYTHING, capable

LEADER_NOT_AVAILABLE, NOT_CONTROLLER = 5, 41

TOLD = {"transaction.max.timeout.ms": "900000"}


def test_brokers_that_have_all_are_taken_without_a_word() -> None:
    found = capable((), (), settings=TOLD)
    found.require()
    found.require(groups=True)
    assert found.remarks() == ()
    assert protocol(found).verdict == "ok"


@pytest.mark.parametrize(
    "need",
    [need for need in NEEDS if not need.without and not need.of_groups],
    ids=lambda n: n.name,
)
def test_what_nothing_is_delivered_without_is_refused_by_name_purpose_and_broker(need: Any) -> None:
    with pytest.raises(KafkaError) as refused:
        capable((), [need.message], ()).require()
    message = str(refused.value)
    assert f"{need.name}, to {need.purpose}, is missing on broker 2 (1 and 3 have it)" in message


def test_a_message_that_no_broker_has_is_said_to_be_missing_on_all() -> None:
    lacks = [EndTxnRequest, ListTransactionsRequest]
    with pytest.raises(KafkaError) as refused:
        capable(lacks, lacks).require()
    message = str(refused.value)
    assert "EndTxn, to commit in one process what another has prepared, is missing" in message
    assert message.count("is missing on brokers 1 and 2 (no broker has it)") == 2


@pytest.mark.parametrize("need", [need for need in NEEDS if need.without], ids=lambda n: n.name)
def test_what_may_be_missing_is_said_with_what_is_then_unproven(need: Any) -> None:
    found = capable(settings=TOLD, most={need.message: need.least - 1})
    found.require()
    [remark] = found.remarks()
    assert remark.endswith(need.without)
    assert protocol(found).verdict == "warn"
    with pytest.raises(KafkaError, match=f"{need.name}, to {need.purpose}"):
        found.require(need.message)  # where it is needed after all


def test_a_message_whose_versions_have_all_gone_by_is_missing() -> None:
    """A later broker drops what is old: no version that both sides speak."""
    found = capable(most={EndTxnRequest: 9})
    object.__setattr__(found, "versions", {1: EVERYTHING | {EndTxnRequest.API_KEY: (7, 9)}})
    with pytest.raises(KafkaError, match="EndTxn"):
        found.require()


def test_the_lowest_of_all_brokers_counts() -> None:
    found = capable((), (), most={MetadataRequest: 12})
    object.__setattr__(
        found, "versions", {**found.versions, 3: EVERYTHING | {MetadataRequest.API_KEY: (0, 8)}}
    )
    [old] = [n for n in NEEDS if n.message is MetadataRequest and not n.without]
    [ids] = [n for n in NEEDS if n.message is MetadataRequest and n.without]
    assert found.of(old).version == 8
    assert (found.of(ids).version, found.of(ids).lacking) == (None, (3,))


def test_a_consumer_group_is_asked_for_only_where_there_is_one() -> None:
    found = capable([OffsetFetchRequest])
    found.require()
    with pytest.raises(KafkaError, match="OffsetFetch 1, to read the offsets of a consumer group"):
        found.require(groups=True)


class Cluster:
    """Brokers that answer, or do not; 1 to 3."""

    def __init__(self, *, silent: tuple[int, ...] = (), denied: bool = False) -> None:
        self.silent, self.denied = silent, denied
        known: Any = SimpleNamespace(refresh=lambda: True, ids=lambda: [1, 2, 3])
        wire: Any = self
        self.view = ClusterView(wire, known)
        self.asked = 0

    def request(self, message: Any, *, node_id: int | None = None, **_options: Any) -> Any:
        if node_id in self.silent:
            raise KafkaUnavailableError("no answer")
        if isinstance(message, DescribeConfigsRequest):
            if self.denied:
                raise KafkaError("the principal needs the ACL DescribeConfigs on Cluster")
            config = SimpleNamespace(name="transaction.max.timeout.ms", value="60000")
            told = SimpleNamespace(resource_name=str(node_id), error_code=0, configs=[config])
            return SimpleNamespace(results=[told])
        assert isinstance(message, ApiVersionsRequest)
        self.asked += 1
        level = 1 if node_id == 2 else 2
        return SimpleNamespace(
            error_code=0,
            api_keys=[
                SimpleNamespace(api_key=key, min_version=least, max_version=most)
                for key, (least, most) in EVERYTHING.items()
            ],
            finalized_features=[
                SimpleNamespace(name="transaction.version", max_version_level=level)
            ],
        )

    def request_many(self, requests: Any, **_options: Any) -> list[Any]:
        return [self.request(message, node_id=node) for message, node in requests]

    def highest_version(self, _message: Any) -> int:
        return 4


def test_brokers_are_asked_once_and_the_lowest_transaction_version_counts() -> None:
    cluster = Cluster()
    assert cluster.view.transaction_version == 2  # one was asked
    found = cluster.view.capabilities()
    assert cluster.view.capabilities() is found
    assert cluster.asked == 1 + 3
    assert (found.transaction_version, cluster.view.transaction_version) == (1, 1)
    assert found.settings == {"transaction.max.timeout.ms": "60000"}


def test_a_broker_that_does_not_answer_is_not_known_and_not_taken_for_one_that_can() -> None:
    found = Cluster(silent=(3,)).view.capabilities()
    assert found.silent == (3,)
    assert sorted(found.versions) == [1, 2]
    assert found.remarks() == ("of broker 3 nothing is known: no answer",)


def test_where_none_answers_nothing_is_known() -> None:
    with pytest.raises(KafkaUnavailableError, match=r"brokers \[1, 2, 3\].*no answer"):
        Cluster(silent=(1, 2, 3)).view.capabilities()


def test_settings_that_may_not_be_read_are_untold_and_the_right_is_named() -> None:
    """As on MSK Serverless, where nobody can have the right."""
    found = Cluster(denied=True).view.capabilities()
    assert found.settings == {}
    [remark] = found.remarks()
    assert "transaction.max.timeout.ms is not told" in remark
    assert "ACL DescribeConfigs on Cluster" in remark


def test_a_need_of_two_versions_is_one_message() -> None:
    assert capable().speak(MetadataRequest)
    assert not capable(most={MetadataRequest: 8}).speak(MetadataRequest)
    assert not capable([DescribeProducersRequest]).speak(DescribeProducersRequest)
    assert not capable([WriteTxnMarkersRequest]).speak(WriteTxnMarkersRequest)


# -- what a broker may answer to a question about topics, coordinators and settings ----------------


class Answering:
    """A wire whose broker gives these answers, one after the other, then the last for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.refreshes = [True]
        known: Any = SimpleNamespace(
            has=lambda _node: True, ids=lambda: [1], refresh=self._refreshed
        )
        wire: Any = self
        self.view = ClusterView(wire, known)

    def _refreshed(self) -> bool:
        return self.refreshes.pop(0) if len(self.refreshes) > 1 else self.refreshes[0]

    def request(self, message: Any, **_options: Any) -> Any:
        del message
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def request_many(self, requests: Any, **_options: Any) -> list[Any]:
        return [self.request(message) for message, _ in requests]

    def highest_version(self, _message: Any) -> int:
        return 4


@pytest.fixture(autouse=True)
def _time_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "time", VirtualTime())


def topic(name: str, code: int = 0, leaders: tuple[int, ...] = (1,)) -> Any:
    partitions = [
        SimpleNamespace(partition_index=index, leader_id=leader)
        for index, leader in enumerate(leaders)
    ]
    told = SimpleNamespace(name=name, error_code=code, partitions=partitions)
    return SimpleNamespace(topics=[told])


NOBODY = SimpleNamespace(topics=[])


@pytest.mark.parametrize(
    "passing",
    [topic("t", LEADER_NOT_AVAILABLE), topic("t", NOT_CONTROLLER), topic("other"), NOBODY],
    ids=["no leader yet", "not the controller", "another topic", "nothing"],
)
def test_what_passes_is_asked_again_and_is_no_topic_that_does_not_exist(passing: Any) -> None:
    assert Answering(passing, topic("t")).view.leaders("t") == {0: 1}
    with pytest.raises(KafkaUnavailableError, match="What topic 't' is, nobody says"):
        Answering(passing).view.find_leaders("t")


def test_a_topic_that_is_absent_or_denied_is_an_answer() -> None:
    assert Answering(topic("t", faults.UNKNOWN_TOPIC_OR_PARTITION)).view.find_leaders("t") is None
    with pytest.raises(TopicError, match="Describe on Topic 't'"):
        Answering(topic("t", faults.TOPIC_AUTHORIZATION_FAILED)).view.find_leaders("t")


def coordinators(**codes: int) -> Any:
    told = [SimpleNamespace(key=k, error_code=code, node_id=1) for k, code in codes.items()]
    return SimpleNamespace(coordinators=told)


@pytest.mark.parametrize(
    "passing",
    [coordinators(a=0), coordinators(a=0, b=NOT_CONTROLLER), coordinators(a=0, b=-1)],
    ids=["left out", "not the controller", "an error of the broker"],
)
def test_a_coordinator_that_is_not_told_is_looked_for_again(passing: Any) -> None:
    wire = Answering(passing, coordinators(b=0))
    assert wire.view.coordinators(["a", "b"]) == {"a": 1, "b": 1}
    with pytest.raises(KafkaUnavailableError, match="No coordinator for 1 transactional ids"):
        Answering(passing).view.coordinators(["a", "b"])


LOG = "__transaction_state"


def test_a_log_of_transactions_without_a_leader_is_said_wherever_it_is_told() -> None:
    away = topic(LOG, 0, (1, -1, -1))
    with pytest.raises(KafkaUnavailableError, match=r"partitions \[1, 2\] of __transaction_state"):
        Answering(away).view.require_coordinators()
    Answering(away, topic(LOG)).view.require_coordinators()  # it only moved
    Answering(topic(LOG)).view.require_coordinators(must_be_told=True)
    absent = Answering(topic(LOG, faults.UNKNOWN_TOPIC_OR_PARTITION, ()))  # not Apache Kafka
    absent.view.require_coordinators(must_be_told=True)
    denied = Answering(topic(LOG, faults.TOPIC_AUTHORIZATION_FAILED, ()))
    denied.view.require_coordinators()
    with pytest.raises(TopicError, match="Describe on Topic '__transaction_state'"):
        denied.view.require_coordinators(must_be_told=True)


def test_settings_of_something_else_are_not_taken_for_those_that_were_asked_for() -> None:
    config = SimpleNamespace(name="diskless.enable", value="false")
    told = SimpleNamespace(resource_name="other", error_code=0, configs=[config])
    with pytest.raises(KafkaError, match="settings of 't', and told of others"):
        Answering(SimpleNamespace(results=[told])).view.topic_config("t", ["diskless.enable"])


def test_brokers_that_nobody_tells_of_now_are_not_those_of_before() -> None:
    """One that has joined since coordinates transactions, too."""
    wire = Answering()
    wire.refreshes = [False, True]
    assert wire.view.brokers() == [1]
    wire.refreshes = [False]
    with pytest.raises(KafkaUnavailableError, match="Which brokers run"):
        wire.view.brokers()
