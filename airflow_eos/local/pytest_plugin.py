"""Fixtures: one broker a test session, and topics with names of their own.

Use them with ``pytest_plugins = ["airflow_eos.local.pytest_plugin"]`` in ``conftest.py``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import pytest

from airflow_eos.local.broker import EmbeddedKafka

# A transaction that ran out of time is aborted within a second, not within ten.
_SOON = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}

TopicFactory: TypeAlias = Callable[..., str]


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[EmbeddedKafka]:
    """One broker for the whole session; tests keep apart by the names of their topics."""
    with EmbeddedKafka(_SOON) as broker:
        yield broker


@pytest.fixture
def topic(kafka_broker: EmbeddedKafka) -> TopicFactory:
    """A function ``topic(name="topic", partitions=1, config=None)`` that gives a fresh topic."""

    def create(
        name: str = "topic", partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        return kafka_broker.create_topic(f"{name}-{uuid.uuid4().hex[:8]}", partitions, config)

    return create
