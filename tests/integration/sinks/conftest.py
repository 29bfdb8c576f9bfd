"""A broker that looks for timed-out transactions twice a second, not every ten seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_eos.local import EmbeddedKafka


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(
        {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    ) as broker:
        yield broker
