"""A pipeline goes on while the broker beneath it becomes the next release, and is finalized."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from kafka.protocol.admin import UpdateFeaturesRequest

from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import Action, Result, execute_recovery
from tests.brokers.releases import VERSIONS, programs
from tests.integration.hazards.conftest import _no_warm_writers, die_at
from tests.integration.hazards.direct import Direct, forget_writers, wait_for

__all__ = ["_no_warm_writers", "die_at"]

PAIRS = [pair for pair in pairwise(VERSIONS) if pair[0] >= "3.3"]
"""Since 3.3 a cluster without ZooKeeper can be upgraded."""


def started(version: str, folder: Path, port: int | None = None) -> EmbeddedKafka:
    made = EmbeddedKafka(folder=folder, port=port)
    with programs(version):
        made.start()
    return made


@pytest.mark.parametrize(("before", "after"), PAIRS, ids="-to-".join)
def test_a_promise_of_one_release_is_kept_by_the_next(
    before: str,
    after: str,
    tmp_path: Path,
    die_at: Callable[[str], None],
) -> None:
    broker = started(before, tmp_path / "data")
    topic = broker.create_topic("out", 2)
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    pipeline = Direct(broker.bootstrap_servers, tmp_path, topic)
    pipeline.feed_numbers(100)
    pipeline.run()
    pipeline.feed_numbers(100)
    die_at("settled-some")
    with pytest.raises(RuntimeError, match="settled-some"):
        pipeline.run()
    die_at("")
    broker.close()
    forget_writers()
    broker = started(after, tmp_path / "data", port)
    try:
        pipeline.bootstrap = pipeline.plain_bootstrap = broker.bootstrap_servers
        report = execute_recovery(str(pipeline.checkpoint), pipeline.settings, force=True)
        done = [(each.step.action, each.result) for each in report.results]
        assert done == [(Action.COMMIT, Result.DONE)] * 2
        pipeline.feed_numbers(100)
        pipeline.run()
        pipeline.assert_exactly_once()
    finally:
        broker.close()


def test_a_driver_that_runs_while_its_cluster_goes_to_transaction_version_2(tmp_path: Path) -> None:
    with EmbeddedKafka(features={"transaction.version": 0}) as broker:
        topic = broker.create_topic("out", 2)
        pipeline = Direct(broker.bootstrap_servers, tmp_path, topic)
        for _ in range(4):
            pipeline.feed_numbers(100)
        with pipeline.started() as batch:
            pipeline.deliver(batch, 0)
            pipeline.deliver(batch, 1)
            finalize(broker, 2)
            pipeline.deliver(batch, 2)
            forget_writers()  # new Python workers, which meet the new version
            pipeline.deliver(batch, 3)
        pipeline.feed_numbers(100)
        pipeline.run()
        pipeline.assert_exactly_once()
        with ConnectionPool(pipeline.settings) as wire:
            assert wire.cluster.transaction_version == 2


def finalize(broker: EmbeddedKafka, level: int) -> None:
    kind = UpdateFeaturesRequest.FeatureUpdateKey
    update = kind(feature="transaction.version", max_version_level=level, upgrade_type=1)
    request = UpdateFeaturesRequest(
        timeout_ms=30_000, feature_updates=[update], validate_only=False
    )
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": broker.bootstrap_servers})
    with ConnectionPool(settings) as wire:
        answer = wire.request(request)
        assert answer.error_code == 0, answer

    def seen() -> bool:
        with ConnectionPool(settings) as wire:
            return wire.cluster.transaction_version == level

    wait_for(seen)
