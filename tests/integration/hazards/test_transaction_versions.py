"""Brokers with transaction version 0 and 1: a batch, its deaths, its replay, its recovery."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.core.protocol.participant import Member
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kinds.consumer_group.participant import connect, work_of
from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import Action, Result, execute_recovery
from tests.integration.hazards.direct import Direct, wait_for

pytestmark = pytest.mark.proof


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(0, id="version0"),
        pytest.param(1, id="version1", marks=pytest.mark.proof),
    ],
)
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(
        {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "300"},
        features={"transaction.version": request.param},
    ) as running:
        running.version = request.param  # type: ignore[attr-defined]
        yield running


@pytest.fixture
def pipeline(broker: EmbeddedKafka, tmp_path: Path) -> Direct:
    topic = broker.create_topic(f"out-{uuid.uuid4().hex[:8]}", 2)
    return Direct(broker.bootstrap_servers, tmp_path, topic)


def test_the_broker_is_of_the_version_that_it_was_asked_for(broker, pipeline):
    with ConnectionPool(pipeline.settings) as wire:
        assert wire.cluster.transaction_version == broker.version


@pytest.mark.parametrize("place", ["prepared", "decided", "settled-some", "settled"])
def test_a_driver_that_died_is_followed_by_one_that_delivers_each_row_once(
    pipeline: Direct, die_at: Callable[[str], None], place: str
) -> None:
    pipeline.feed_numbers(300)
    pipeline.run()
    pipeline.feed_numbers(300)
    die_at(place)
    with pytest.raises(RuntimeError, match=place):
        pipeline.run()
    die_at("")
    pipeline.feed_numbers(10)
    pipeline.run()
    pipeline.assert_exactly_once()


def test_rows_whose_promise_timed_out_are_replayed(
    pipeline: Direct, die_at: Callable[[str], None]
) -> None:
    pipeline.timeout = timedelta(seconds=8)  # promised well within it, also by a busy machine
    pipeline.feed_numbers(300)
    die_at("settled-some")
    with pytest.raises(RuntimeError):
        pipeline.run()
    die_at("")
    wait_for(lambda: not pipeline.open_transactions())
    pipeline.timeout = timedelta(seconds=30)
    pipeline.run()
    pipeline.assert_exactly_once()
    commits = [d for d in pipeline.decisions.of_batch(0) if d.works]
    assert [len(d.works) for d in commits] == [3, 2], "only what was lost is promised anew"


def test_recovery_alone_commits_what_was_decided(
    pipeline: Direct, die_at: Callable[[str], None]
) -> None:
    pipeline.feed_numbers(300)
    die_at("settled-some")
    with pytest.raises(RuntimeError):
        pipeline.run()
    report = execute_recovery(str(pipeline.checkpoint), pipeline.settings, force=True)
    assert [(r.step.action, r.result) for r in report.results] == [(Action.COMMIT, Result.DONE)] * 2
    assert len(pipeline.visible()) == 300
    assert execute_recovery(str(pipeline.checkpoint), pipeline.settings, force=True).results == ()
    die_at("")
    pipeline.run()
    pipeline.assert_exactly_once()


def test_recovery_alone_aborts_what_nobody_decided(
    pipeline: Direct, die_at: Callable[[str], None]
) -> None:
    pipeline.feed_numbers(300)
    die_at("prepared")
    with pytest.raises(RuntimeError):
        pipeline.run()
    report = execute_recovery(str(pipeline.checkpoint), pipeline.settings, force=True)
    assert [(r.step.action, r.result) for r in report.results] == [(Action.ABORT, Result.DONE)] * 3
    assert pipeline.open_transactions() == []
    assert pipeline.visible() == []
    die_at("")
    pipeline.run()
    pipeline.assert_exactly_once()


def test_the_offsets_of_a_consumer_group_are_set_and_never_lowered(broker: EmbeddedKafka) -> None:
    topic = broker.create_topic(f"in-{uuid.uuid4().hex[:8]}", 1)
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": broker.bootstrap_servers})
    member = Member("consumer_group", "consumer_group", {"group": f"lag-{topic}"})
    with closing(connect(member, settings, timeout_s=100)) as group:
        for batch, offset in ((0, 5), (1, 9), (0, 5)):
            work = work_of("consumer_group", "p" * 32, batch, 1, {topic: {0: offset}}, 0)
            assert group.commit([work]) == {work.identity: Outcome.COMMITTED}
        assert [each.offset for each in group.offsets.read().values()] == [9]
