"""A pipeline goes on while the broker beneath it becomes a later release, and is finalized."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import UpdateFeaturesRequest
from kafka.protocol.metadata import ApiVersionsRequest

from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import Action, Result, execute_recovery
from tests.brokers.releases import VERSIONS, programs
from tests.integration.conftest import die_at
from tests.integration.hazards.conftest import _no_warm_writers
from tests.integration.hazards.direct import Direct, forget_writers, wait_for

__all__ = ["_no_warm_writers", "die_at"]

THIRDS = [version for version in VERSIONS if "3.3" <= version < "4"]
"""Since 3.3 a cluster without ZooKeeper can be upgraded."""
FOURTHS = [version for version in VERSIONS if version >= "4"]
PAIRS = [
    (THIRDS[0], THIRDS[-1]),
    (THIRDS[-1], FOURTHS[0]),
    (FOURTHS[0], FOURTHS[-1]),
    (THIRDS[0], FOURTHS[-1]),
]
"""Each starts two brokers: all that follow one another would take many minutes."""


def started(version: str, folder: Path, port: int | None = None) -> EmbeddedKafka:
    made = EmbeddedKafka(folder=folder, port=port)
    with programs(version):
        made.start()
    return made


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=map("-to-".join, PAIRS))
def test_a_promise_of_one_release_is_kept_by_the_next(
    before: str, after: str, tmp_path: Path, die_at: Callable[[str], None]
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
        finalize(broker)
        pipeline.feed_numbers(100)
        pipeline.run()
        pipeline.assert_exactly_once()
        with ConnectionPool(pipeline.settings) as wire:
            assert wire.cluster.transaction_version == (2 if after in FOURTHS else 0)
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
            finalize(broker)
            pipeline.deliver(batch, 2)
            forget_writers()  # new Python workers, which meet the new version
            pipeline.deliver(batch, 3)
        pipeline.feed_numbers(100)
        pipeline.run()
        pipeline.assert_exactly_once()
        with ConnectionPool(pipeline.settings) as wire:
            assert wire.cluster.transaction_version == 2


def finalize(broker: EmbeddedKafka) -> None:
    """All that the release can, as ``kafka-features.sh upgrade`` does once every broker is new."""
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": broker.bootstrap_servers})

    def told() -> Any:
        question = ApiVersionsRequest(client_software_name="tests", client_software_version="0")
        with ConnectionPool(settings) as wire:
            return wire.request(question)

    def in_force() -> dict[str, int]:
        return {each.name: each.max_version_level for each in told().finalized_features or ()}

    wanted = {each.name: each.max_version for each in told().supported_features}
    for name in ("metadata.version", "transaction.version"):
        if in_force().get(name, 0) == wanted.get(name, 0):
            continue  # it is, or this release has no such feature
        kind = UpdateFeaturesRequest.FeatureUpdateKey
        update = kind(feature=name, max_version_level=wanted[name], upgrade_type=1)
        with ConnectionPool(settings) as wire:
            answer = wire.request(
                UpdateFeaturesRequest(
                    timeout_ms=30_000, feature_updates=[update], validate_only=False
                )
            )
        assert answer.error_code == 0, answer
        wait_for(lambda name=name: in_force().get(name) == wanted[name])
