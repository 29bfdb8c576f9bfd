"""The few questions that the embedded cluster asks its brokers."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from airflow_eos.errors import LocalEnvironmentError

_SECONDS = 30.0


def live_brokers(bootstrap_servers: str) -> set[int]:
    """Ids of the brokers in the cluster's metadata; empty where none answers within a second."""
    try:
        return set(_admin(bootstrap_servers).list_topics(timeout=1.0).brokers)
    except KafkaException:
        return set()


def topics(bootstrap_servers: str) -> dict[str, int]:
    """How many partitions each topic has."""
    found = _admin(bootstrap_servers).list_topics(timeout=_SECONDS).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def create_topic(
    bootstrap_servers: str, name: str, partitions: int, config: Mapping[str, str]
) -> None:
    """Create a topic and wait until every partition has a leader.

    Raises:
        LocalEnvironmentError: the broker refused, or no leader was elected in time.
    """
    admin = _admin(bootstrap_servers)
    topic = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config))
    try:
        admin.create_topics([topic], operation_timeout=_SECONDS)[name].result(_SECONDS)
        deadline = time.monotonic() + _SECONDS
        while not _led(admin, name, partitions):
            if time.monotonic() > deadline:
                raise LocalEnvironmentError(
                    f"topic {name} has partitions without a leader after {_SECONDS:.0f} s: "
                    "read the broker's log, a node may be down"
                )
            time.sleep(0.02)
    except TimeoutError as error:  # of the future: the request has its own, as a KafkaException
        raise LocalEnvironmentError(
            f"could not create topic {name}: {bootstrap_servers} gave no answer within "
            f"{_SECONDS:.0f} s; read the broker's log, the machine may be too busy, then try again"
        ) from error
    except KafkaException as error:
        raise LocalEnvironmentError(
            f"could not create topic {name}: {error.args[0].str()}"
        ) from error


def _led(admin: AdminClient, name: str, partitions: int) -> bool:
    found = admin.list_topics(name, timeout=_SECONDS).topics[name]
    leaders = [partition.leader for partition in found.partitions.values()]
    return found.error is None and len(leaders) == partitions and min(leaders) >= 0


def _admin(bootstrap_servers: str) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": bootstrap_servers,
            "allow.auto.create.topics": False,  # nor does a look make a topic
            "log_level": 0,  # a broker that does not listen yet is expected here
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
        }
    )
