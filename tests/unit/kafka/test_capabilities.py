"""What brokers can do: all of them, some not, nobody has told; and what each of these means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.errors import KafkaError, KafkaUnavailableError
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
from airflow_eos.supervision.doctor import protocol
from tests.support.capable import EVERYTHING, capable

pytestmark = pytest.mark.unit

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
        known: Any = SimpleNamespace(refresh=lambda: None, ids=lambda: [1, 2, 3])
        self.view = ClusterView(self, known)
        self.asked = 0

    def request(self, message: Any, *, node_id: int | None = None, **_options: Any) -> Any:
        if node_id in self.silent:
            raise KafkaUnavailableError("no answer")
        if isinstance(message, DescribeConfigsRequest):
            if self.denied:
                raise KafkaError("the principal needs the ACL DescribeConfigs on Cluster")
            config = SimpleNamespace(name="transaction.max.timeout.ms", value="60000")
            return SimpleNamespace(results=[SimpleNamespace(error_code=0, configs=[config])])
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
    with pytest.raises(KafkaUnavailableError, match=r"None of the brokers \[1, 2, 3\]"):
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
