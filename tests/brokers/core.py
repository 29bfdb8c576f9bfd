"""A first start, each place to die at, a timeout with its replay, recovery, a group's offsets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.local import EmbeddedKafka
from airflow_eos.ops.blocked import find_blocked
from tests.brokers.releases import AS_SHIPPED, RELEASES, running
from tests.integration.conftest import die_at
from tests.integration.hazards.conftest import _no_warm_writers
from tests.integration.hazards.direct import Direct
from tests.integration.hazards.test_transaction_versions import (
    pipeline,
    test_a_driver_that_died_is_followed_by_one_that_delivers_each_row_once,
    test_recovery_alone_aborts_what_nobody_decided,
    test_recovery_alone_commits_what_was_decided,
    test_rows_whose_promise_timed_out_are_replayed,
    test_the_offsets_of_a_consumer_group_are_set_and_never_lowered,
)

__all__ = [
    "_no_warm_writers",
    "die_at",
    "pipeline",
    "test_a_driver_that_died_is_followed_by_one_that_delivers_each_row_once",
    "test_recovery_alone_aborts_what_nobody_decided",
    "test_recovery_alone_commits_what_was_decided",
    "test_rows_whose_promise_timed_out_are_replayed",
    "test_the_offsets_of_a_consumer_group_are_set_and_never_lowered",
]


@pytest.fixture(scope="module", params=RELEASES, ids=str)
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    soon = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "300"}
    with running(request.param, AS_SHIPPED | soon) as made:
        made.release = request.param  # type: ignore[attr-defined]
        yield made


def test_a_first_start(broker: EmbeddedKafka, pipeline: Direct) -> None:
    pipeline.feed_numbers(50)
    pipeline.run()
    pipeline.assert_exactly_once()
    with ConnectionPool(pipeline.settings) as wire:
        found = wire.cluster.capabilities()
        assert found.transaction_version == broker.release.transactions  # type: ignore[attr-defined]
        assert found.remarks() == ()
        assert find_blocked(wire, {pipeline.topic}).partitions == ()
