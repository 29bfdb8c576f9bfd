"""Transactions that no coordinator knows, on brokers that take their rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_eos.local import EmbeddedKafka
from tests.brokers.releases import OF_EACH_VERSION, running
from tests.integration.kafka.conftest import raw_kafka
from tests.integration.kafka.test_hanging import (
    kafka,
    out,
    test_one_that_ends_between_the_questions_is_left_alone,
    test_one_that_hangs_is_found_and_aborted_and_readers_get_on,
    test_one_that_its_coordinator_knows_is_left_alone,
)

__all__ = [
    "kafka",
    "out",
    "raw_kafka",
    "test_one_that_ends_between_the_questions_is_left_alone",
    "test_one_that_hangs_is_found_and_aborted_and_readers_get_on",
    "test_one_that_its_coordinator_knows_is_left_alone",
]


@pytest.fixture(scope="module", params=OF_EACH_VERSION, ids=str)
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    unverified = {"transaction.partition.verification.enable": "false"}  # as before Kafka 3.6
    with running(request.param, unverified) as made:
        yield made
