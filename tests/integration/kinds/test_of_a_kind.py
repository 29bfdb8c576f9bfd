"""What only some kinds can suffer: a server that crashes, files that are lost, half a promise."""

from __future__ import annotations

import re
from pathlib import Path
from signal import SIGQUIT

import pytest
from pyspark.sql import SparkSession

from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.coordinator import end_transactions
from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import Action, plan_recovery
from tests.integration.kinds.cases import with_servers
from tests.integration.kinds.delivery import BATCH, Delivery
from tests.support.host import Host
from tests.support.kinds.one import Delta, Iceberg
from tests.support.servers.postgres import EmbeddedPostgres

pytestmark = pytest.mark.proof

SECRET = re.compile(r"password=(\S+)|//\w+:([^@]+)@")


@pytest.mark.parametrize("kind", with_servers())
def test_a_recovery_that_is_not_told_how_to_reach_a_system_refuses_by_its_name(
    delivery: Delivery,
) -> None:
    """It cannot find it in the checkpoint, where no password is."""
    delivery.pipeline.feed(100)
    delivery.resume()
    with pytest.raises(ConfigurationError, match=r"'(sink|orders|postings)'"):
        plan_recovery(delivery.pipeline.checkpoint)
    secrets = [secret for found in delivery.at.servers.values() for secret in SECRET.findall(found)]
    has_password = delivery.at.servers.keys() & {"postgres", "mariadb"}
    assert len(secrets) == len(has_password), "or nothing is looked for"
    for file in Path(delivery.pipeline.checkpoint, "eos").rglob("*.json"):
        for secret in secrets:
            assert "".join(secret) not in file.read_text()


def test_the_server_crashes_under_a_decision(
    kafka_broker: EmbeddedKafka, host: Host, spark: SparkSession, tmp_path: Path
) -> None:
    with EmbeddedPostgres() as server:
        reached = {"postgres": server.dsn}
        delivery = Delivery.made("postgres", kafka_broker, reached, host, spark, tmp_path)
        delivery.decided()
        server.stop(how=SIGQUIT)
        server.start()
        assert delivery.kind.left(delivery.at) > 0
        delivery.resume()
        delivery.assert_exactly_once()


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.proof)])
def test_promised_files_that_are_lost_are_replayed(delivery: Delivery) -> None:
    delivery.decided()
    assert isinstance(delivery.kind, Delta | Iceberg)
    notes = Path(delivery.pipeline.checkpoint, "eos", "works", "sink").iterdir()
    next(delivery.kind.data(delivery.at) / f"{note.name}.parquet" for note in notes).unlink()
    delivery.resume()
    delivery.assert_exactly_once()


@pytest.mark.parametrize("kind", ["kafka+files"])
def test_a_promise_that_only_kafka_lost_is_replayed_to_kafka_alone(delivery: Delivery) -> None:
    delivery.decided()
    with ConnectionPool(KafkaSettings.from_librdkafka(delivery.at.kafka or {})) as wire:
        lost = [each.identity for each in delivery.pipeline.open_transactions()]
        end_transactions(wire, lost, commit=False)
    plan = delivery.plan()
    assert {(step.action, step.work and step.work.participant) for step in plan.steps} == {
        (Action.COMMIT, "postings"),
        (Action.REPLAY, None),
    }
    assert [each.participant for each in plan.steps if each.action is Action.REPLAY] == ["orders"]
    delivery.pipeline.feed(BATCH // 4)
    delivery.resume()
    delivery.assert_exactly_once()
