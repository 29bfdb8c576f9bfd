"""Pytest fixtures: one broker per test session, and topics with unique names.

Use them with ``pytest_plugins = ["airflow_eos.local.pytest_plugin"]`` in ``conftest.py``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import pytest

from airflow_eos.local.broker import EmbeddedKafka

# The broker aborts a transaction within a second after its timeout, not within ten.
_SOON = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}

TopicFactory: TypeAlias = Callable[..., str]


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[EmbeddedKafka]:
    """Provide one broker for the whole session; tests use topics of different names."""
    with EmbeddedKafka(_SOON) as broker:
        yield broker


@pytest.fixture
def topic(kafka_broker: EmbeddedKafka) -> TopicFactory:
    """Provide ``topic(name="topic", partitions=1, config=None)``, which creates a fresh topic."""

    def create(
        name: str = "topic", partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        return kafka_broker.create_topic(f"{name}-{uuid.uuid4().hex[:8]}", partitions, config)

    return create
