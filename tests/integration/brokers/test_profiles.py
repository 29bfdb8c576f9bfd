"""Kafka's other servers, by their documents: a start delivers, or says what is missing."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import EosError, KafkaError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.offsets import topic_ids
from airflow_eos.kafka.participant import connect
from airflow_eos.kafka.transactions.hanging import end_hanging
from airflow_eos.kafka.transactions.listing import HangingTransaction
from airflow_eos.ops.doctor import protocol
from airflow_eos.ops.supervision.preflight import TimeoutBudget, reached_within
from airflow_eos.recovery import Action, Result, execute_recovery
from tests.integration.hazards.direct import Direct, forget_writers, wait_for
from tests.integration.kafka.conftest import raw_kafka
from tests.support.broker_profiles import KEYS, PROFILES, Profile, ProfileProxy

__all__ = ["raw_kafka"]

DELIVERS = [profile for profile in PROFILES if not profile.refused]
REFUSES = [profile for profile in PROFILES if profile.refused]


@pytest.fixture
def proxy(request: pytest.FixtureRequest, kafka_broker) -> Iterator[ProfileProxy]:
    with ProfileProxy(kafka_broker.bootstrap_servers, request.param) as running:
        yield running
    forget_writers()


@pytest.fixture
def pipeline(
    proxy: ProfileProxy, kafka_broker, topic: Callable[..., str], tmp_path: Path
) -> Direct:
    return Direct(
        proxy.bootstrap_servers,
        tmp_path,
        topic("out", 2),
        plain_bootstrap=kafka_broker.bootstrap_servers,
    )


def of(profiles: list[Profile], *, thin: bool = False) -> pytest.MarkDecorator:
    """Each of them; ``thin``: all but each third are left to ``make proof``."""
    cases = [
        pytest.param(
            each,
            id=re.sub(r"\W+", "-", each.name),
            marks=pytest.mark.proof if thin and number % 3 else (),
        )
        for number, each in enumerate(profiles)
    ]
    return pytest.mark.parametrize("proxy", cases, indirect=True)


@pytest.mark.proof
@of(DELIVERS, thin=True)
def test_a_driver_that_died_half_way_is_followed_by_one_that_delivers_each_row_once(
    pipeline: Direct, proxy: ProfileProxy, die_at: Callable[[str], None]
) -> None:
    pipeline.feed_numbers(60)
    pipeline.run()
    pipeline.feed_numbers(60)
    die_at("settled-some")
    with pytest.raises(RuntimeError, match="settled-some"):
        pipeline.run()
    die_at("")
    report = execute_recovery(str(pipeline.checkpoint), pipeline.settings, force=True)
    assert [(r.step.action, r.result) for r in report.results] == [(Action.COMMIT, Result.DONE)] * 2
    pipeline.feed_numbers(10)
    pipeline.run()
    pipeline.assert_exactly_once()
    assert KEYS["EndTxn"] in proxy.asked
    assert not proxy.asked & {KEYS[each] for each in proxy._profile.without}


@of(REFUSES)
def test_a_start_is_refused_before_the_first_row_in_one_sentence(
    pipeline: Direct, proxy: ProfileProxy
) -> None:
    pipeline.feed_numbers(10)
    with pytest.raises(EosError) as refused:
        pipeline.run()
    message = str(refused.value)
    assert proxy._profile.refused in message
    assert "too old" not in message
    assert refused.value.remedies
    assert KEYS["Produce"] not in proxy.asked
    assert KEYS["InitProducerId"] not in proxy.asked
    assert pipeline.visible() == []


def named(name: str) -> list[Profile]:
    return [each for each in PROFILES if each.name == name]


@pytest.mark.proof
@of(named("WarpStream"))
def test_somebody_elses_transaction_that_holds_readers_up_keeps_no_batch_from_its_end(
    pipeline: Direct, proxy: ProfileProxy, kafka_broker, raw_kafka: Callable[[str], Any]
) -> None:
    """Without DescribeProducers it was "too old for this request", after EndTxn."""
    assert "DescribeProducers" in proxy._profile.without
    raw = raw_kafka(kafka_broker.bootstrap_servers)
    others = [f"theirs-{uuid.uuid4().hex[:6]}-0-{partition}" for partition in (0, 1)]
    theirs = [raw.prepare(each, pipeline.topic, partition=p) for p, each in enumerate(others)]
    pipeline.feed_numbers(60)
    pipeline.feed_numbers(60)
    pipeline.run()
    assert pipeline.visible() == []
    for each in theirs:
        raw.end(each)
    wait_for(lambda: len(pipeline.visible()) == 2 + 120)
    assert pipeline.open_transactions() == []


@of(named("WarpStream"))
def test_a_marker_that_nobody_can_write_is_said_by_the_name_of_what_is_missing(
    pipeline: Direct, proxy: ProfileProxy
) -> None:
    left_out = HangingTransaction(pipeline.topic, 0, 0, 1, 0, -1, 0)
    with (
        ConnectionPool(pipeline.settings) as wire,
        pytest.raises(
            KafkaError, match="WriteTxnMarkers, to write a marker that a broker has left"
        ),
    ):
        end_hanging(wire, left_out, commit=True)
    assert KEYS["WriteTxnMarkers"] not in proxy.asked


@pytest.mark.proof
@of(named("Azure Event Hubs"))
def test_what_a_start_refuses_the_look_before_it_the_doctor_and_a_recovery_refuse_too(
    pipeline: Direct, proxy: ProfileProxy
) -> None:
    sentence = re.escape(proxy._profile.refused)
    part = pipeline.timeout / 4
    budget = TimeoutBudget(part, part, part, pipeline.timeout)
    with pytest.raises(KafkaError, match=sentence):
        reached_within(budget, pipeline.settings)
    with ConnectionPool(pipeline.settings) as wire, pytest.raises(KafkaError, match=sentence):
        protocol(wire.cluster.capabilities())
    member = Member("output", "kafka", {"transactional_id_prefix": pipeline.prefix})
    with pytest.raises(KafkaError, match=sentence):
        connect(member, pipeline.settings, timeout_s=100).close()


@pytest.mark.proof
@of(named("Redpanda"))
def test_what_is_unproven_is_said_once_by_the_start_and_by_the_doctor(
    pipeline: Direct, proxy: ProfileProxy
) -> None:
    with capture_logs() as logs, pipeline.started():
        pass
    said = [each["what"] for each in logs if each["event"] == "not_with_these_brokers"]
    assert len(said) == 3
    for what in ("WriteTxnMarkers", "Metadata 10", "transaction.max.timeout.ms is not told"):
        assert any(what in each for each in said), what
    with ConnectionPool(pipeline.settings) as wire:
        line = protocol(wire.cluster.capabilities())
        assert line.verdict == "warn"
        assert all(each in line.found for each in said)
        assert topic_ids(wire, [pipeline.topic]) == {}
