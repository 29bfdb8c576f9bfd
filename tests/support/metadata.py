"""A cluster without a cluster: what it can do, and its topics and coordinators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any

from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.cluster import NEEDS, BrokerCapabilities, ClusterView
from airflow_eos.kafka.client.messages import FindCoordinatorRequest, MetadataRequest

EVERYTHING = {need.message.API_KEY: (0, need.message.max_version) for need in NEEDS}


def capable(
    *brokers: Collection[Any],
    settings: Mapping[str, str] | None = None,
    transaction_version: int = 2,
    silent: tuple[int, ...] = (),
    most: Mapping[Any, int] | None = None,
) -> BrokerCapabilities:
    """Brokers 1, 2, …: each lacks the messages that are given for it; one that lacks none else.

    ``most``: the highest version of a message, on all of them.
    """
    limits = {message.API_KEY: (0, highest) for message, highest in (most or {}).items()}
    return BrokerCapabilities(
        versions={
            number: {
                key: versions
                for key, versions in (EVERYTHING | limits).items()
                if key not in {message.API_KEY for message in lacks}
            }
            for number, lacks in enumerate(brokers or ((),), 1)
        },
        silent=silent,
        transaction_version=transaction_version,
        settings=settings or {},
    )


# --- metadata -------------------------------------------------------------------------------------
# A wire that knows topics and coordinators, under the package's own view of a cluster.


class Metadata:
    """Broker 1 coordinates every id.

    Args:
        topics: the leader of each partition; change it as topics come and go.

    Attributes:
        asked: the topics that were asked for, in order.
        learns: called where an answer names a broker: other threads run meanwhile.
    """

    def __init__(self, topics: dict[str, dict[int, int]]) -> None:
        self.topics = topics
        self.asked: list[str] = []
        self.learns: Callable[[], None] = lambda: None
        known: Any = SimpleNamespace(has=self._has)
        wire: Any = self
        self.cluster = ClusterView(wire, known)

    def request(self, message: Any, **_options: Any) -> Any:
        assert isinstance(message, MetadataRequest)
        name = message.topics[0].name
        self.asked.append(name)
        code = faults.NONE if name in self.topics else faults.UNKNOWN_TOPIC_OR_PARTITION
        partitions = [
            SimpleNamespace(partition_index=index, leader_id=leader)
            for index, leader in self.topics.get(name, {}).items()
        ]
        told = SimpleNamespace(name=name, error_code=code, partitions=partitions)
        return SimpleNamespace(topics=[told])

    def request_many(self, requests: Any, **_options: Any) -> list[Any]:
        return [self._found(message) for message, _ in requests]

    def highest_version(self, _message: Any) -> int:
        return 4

    def _found(self, message: Any) -> Any:
        assert isinstance(message, FindCoordinatorRequest)
        return SimpleNamespace(
            coordinators=[
                SimpleNamespace(key=each, error_code=faults.NONE, node_id=1)
                for each in message.coordinator_keys
            ]
        )

    def _has(self, _node_id: int) -> bool:
        self.learns()
        return True
