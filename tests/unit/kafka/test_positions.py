"""What is asked of partitions and topics, in the words of those who asked before."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.kafka.client.offsets import cleanup_policies, topic_ids

pytestmark = pytest.mark.unit


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
