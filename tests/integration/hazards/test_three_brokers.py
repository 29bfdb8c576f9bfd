"""Three brokers, three copies, two of them needed: brokers die while we write, settle and recover.

Without Spark: its part is to call a batch again, which ``Direct`` does as well. ``-m chaos`` runs
the longer ones, too.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.transactions.identity import transactional_id_of
from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import Action, Result, execute_recovery
from tests.integration.hazards.direct import Direct


@pytest.fixture(scope="module")
def brokers() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(brokers=3) as running:
        yield running


@pytest.fixture
def pipeline(brokers: EmbeddedKafka, tmp_path: Path) -> Direct:
    topic = brokers.create_topic(f"out-{uuid.uuid4().hex[:8]}", 3)
    return Direct(brokers.bootstrap_servers, tmp_path, topic)


def leader(pipeline: Direct, partition: int = 0) -> int:
    with ConnectionPool(pipeline.settings) as wire:
        return wire.cluster.leaders(pipeline.topic, refresh=True)[partition]


def coordinator(pipeline: Direct, task: int = 0) -> int:
    transactional_id = transactional_id_of(pipeline.prefix, task, 0)
    with ConnectionPool(pipeline.settings) as wire:
        return wire.cluster.coordinators([transactional_id])[transactional_id]


def once(action: Callable[[], Any]) -> Callable[[], None]:
    """The action, the first time only."""
    done: list[bool] = []

    def act() -> None:
        if not done:
            done.append(True)
            action()

    return act


def before(method: Callable[..., Any], action: Callable[[], Any]) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        action()
        return method(*arguments)

    return called


@pytest.mark.proof
def test_the_leader_is_killed_while_a_task_writes_and_the_coordinator_while_it_is_settled(
    brokers: EmbeddedKafka, pipeline: Direct
) -> None:
    pipeline.feed_numbers(3000)
    pipeline.feed_numbers(3000)
    pipeline.feed_numbers(3000)
    killed: list[int] = []

    def kill(which: Callable[[Direct], int]) -> None:
        killed.append(which(pipeline))
        brokers.kill(killed[-1])

    with pipeline.started() as batch:
        driver: Any = batch
        pipeline.deliver(batch, 0)
        kill_leader = once(lambda: kill(leader))
        driver._sink.sink.before_task = lambda task: kill_leader() if task == 1 else None
        pipeline.deliver(batch, 1)
        brokers.start(killed[-1])
        settled = driver._participant
        settled.commit = before(settled.commit, once(lambda: kill(coordinator)))
        pipeline.deliver(batch, 2)
        brokers.start(killed[-1])
    assert len(killed) == 2
    pipeline.assert_exactly_once()


@pytest.mark.proof
@pytest.mark.parametrize("place", ["prepared", "decided"])
def test_the_coordinator_is_killed_before_recovery(
    brokers: EmbeddedKafka, pipeline: Direct, die_at: Callable[[str], None], place: str
) -> None:
    pipeline.feed_numbers(300)
    die_at(place)
    with pytest.raises(RuntimeError, match=place):
        pipeline.run()
    die_at("")
    down = coordinator(pipeline)
    brokers.kill(down)
    try:
        report = execute_recovery(str(pipeline.checkpoint), pipeline.settings, force=True)
        action = Action.COMMIT if place == "decided" else Action.ABORT
        assert [(r.step.action, r.result) for r in report.results] == [(action, Result.DONE)] * 3
        pipeline.run()
    finally:
        brokers.start(down)
    pipeline.assert_exactly_once()


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_every_broker_is_restarted_in_turn_under_load(
    brokers: EmbeddedKafka, pipeline: Direct, end: str
) -> None:
    finished = threading.Event()
    problems: list[BaseException] = []

    def roll() -> None:
        try:
            for node in (1, 2, 3):
                getattr(brokers, end)(node)
                brokers.start(node)
        except BaseException as error:  # noqa: BLE001 - told in the test's own thread
            problems.append(error)
        finally:
            finished.set()

    rolling = threading.Thread(target=roll)
    with pipeline.started() as batch:
        pipeline.feed_numbers(500)
        pipeline.deliver(batch, 0)
        rolling.start()
        number = 1
        while not finished.is_set() or number < 5:
            pipeline.feed_numbers(500)
            pipeline.deliver(batch, number)
            number += 1
    rolling.join(120)
    assert not problems
    pipeline.assert_exactly_once()


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("place", ["prepared", "decided", "settled-some"])
def test_all_brokers_are_killed_at_once_and_come_back(
    brokers: EmbeddedKafka, pipeline: Direct, die_at: Callable[[str], None], place: str
) -> None:
    pipeline.feed_numbers(300)
    die_at(place)
    with pytest.raises(RuntimeError, match=place):
        pipeline.run()
    die_at("")
    for node in (1, 2, 3):
        brokers.kill(node)
    starting = [threading.Thread(target=brokers.start, args=(node,)) for node in (1, 2, 3)]
    for thread in starting:
        thread.start()
    for thread in starting:
        thread.join(120)
    pipeline.run()
    pipeline.assert_exactly_once()
