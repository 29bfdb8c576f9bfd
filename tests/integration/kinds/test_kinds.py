"""The placed crashes, on every kind: each row is delivered once, and nothing is left prepared.

``make test`` runs three of them, ``make proof`` all; see ``cases.py``.
"""

from __future__ import annotations

import os
import signal

import pytest

from airflow_eos.recovery import Action, Result, execute_recovery
from tests.integration.hazards.stopping import PATIENCE_S, stopped_at, wake
from tests.integration.kinds.cases import (
    DRIVER,
    OWN,
    RECOVERY,
    each,
    places,
    rowwise,
    stops,
    tasks,
)
from tests.integration.kinds.delivery import BATCH, Delivery, acting
from tests.support.pipeline import KILLED, finish

PERISHABLE = {"kafka", "delta", "iceberg"}  # by a timeout, or by who cleans the table


@pytest.mark.parametrize(("kind", "place"), places())
def test_driver_killed(delivery: Delivery, place: str) -> None:
    least, most = {**DRIVER, **OWN}[place]
    if place in OWN and "+" in delivery.at.kind:
        most = 2 * BATCH  # the place is of one output; the others may have come first
        least = (
            0 if {"iceberg", "delta"} <= set(delivery.at.kind.split("+")) else least
        )  # or of two
    delivery.pipeline.feed(3 * BATCH)
    delivery.killed(place)
    for seen in delivery.inputs():
        assert least <= seen <= most, f"{seen} rows of the input are visible"
    delivery.pipeline.feed(BATCH // 2)
    delivery.resume()
    delivery.assert_exactly_once()


@pytest.mark.parametrize("kind", rowwise())
def test_rows_that_arrow_kafka_source_has_read(delivery: Delivery) -> None:
    """Its tasks write to a sink of plain columns themselves; to others Spark brings the rows."""
    delivery.pipeline.feed(2 * BATCH)
    delivery.pipeline.run(kind="arrow", expect=KILLED, failpoints=acting("kill", "settled-some@2"))
    delivery.pipeline.feed(BATCH)
    delivery.resume(kind="arrow")
    delivery.assert_exactly_once()


@pytest.mark.parametrize(("kind", "place"), tasks())
def test_python_worker_killed(delivery: Delivery, place: str) -> None:
    """Spark runs the task again as another attempt; what the lost one prepared goes."""
    delivery.pipeline.feed(2 * BATCH)
    delivery.pipeline.run(failpoints=acting("kill", place))
    assert (delivery.pipeline.folder / f"{place.partition('@')[0]}.hit").exists()
    delivery.assert_exactly_once()


@pytest.mark.parametrize("kind", each())
def test_a_recovery_without_the_app(delivery: Delivery) -> None:
    """What was decided it makes visible, and what was not it removes."""
    plan = delivery.decided()
    assert {step.action for step in plan.steps} == {Action.COMMIT}
    perishing = {step.work.kind for step in plan.steps if step.work and step.time_left_ms}
    assert perishing <= PERISHABLE, "nothing else is ended by its system"
    report = execute_recovery(plan, delivery.at.kafka, reach=delivery.reach, force=True)
    assert {step.result for step in report.results} == {Result.DONE}
    assert delivery.inputs() == {2 * BATCH}

    delivery.pipeline.feed(BATCH)
    delivery.killed("prepared@1")
    assert {step.action for step in delivery.plan().steps} == {Action.ABORT}
    report = execute_recovery(
        delivery.pipeline.checkpoint, delivery.at.kafka, reach=delivery.reach, force=True
    )
    assert report.count(Result.DONE) == len(report.results) > 0
    assert report.sealed is not None
    assert delivery.inputs() == {2 * BATCH}
    assert delivery.kind.left(delivery.at) == 0
    delivery.resume()
    delivery.assert_exactly_once()


@pytest.mark.parametrize("kind", each())
def test_a_recovery_killed_at_each_of_its_steps(delivery: Delivery) -> None:
    """One after the other, on what the one before left; first of a promise, then of leftovers."""
    delivery.decided()
    assert [delivery.recover(killed_at=place) for place in RECOVERY] == [KILLED] * len(RECOVERY)
    assert delivery.recover() == 0
    assert delivery.inputs() == {2 * BATCH}
    assert delivery.plan().steps == ()

    delivery.pipeline.feed(BATCH)
    delivery.killed("prepared@1")
    places = [place for place in RECOVERY if place != "settled-some"]  # nothing is committed
    assert [delivery.recover(killed_at=place) for place in places] == [KILLED] * len(places)
    assert delivery.recover() == 0
    assert delivery.inputs() == {2 * BATCH}
    assert delivery.kind.left(delivery.at) == 0
    delivery.resume()
    delivery.assert_exactly_once()


@pytest.mark.parametrize(("kind", "place"), stops())
def test_a_driver_that_wakes_up_after_another_took_over(delivery: Delivery, place: str) -> None:
    delivery.pipeline.feed(3 * BATCH)
    with stopped_at(delivery.pipeline, place) as zombie:
        delivery.resume()
        delivery.assert_exactly_once()
        wake(zombie)
    delivery.assert_exactly_once()
    delivery.pipeline.feed(100)
    delivery.resume()
    delivery.assert_exactly_once()


@pytest.mark.parametrize("kind", each())
def test_two_drivers_started_together(delivery: Delivery) -> None:
    """Both have recovered and sealed before either writes; only one of them can decide."""
    delivery.pipeline.feed(3 * BATCH)
    with (
        stopped_at(delivery.pipeline, "sealed") as first,
        stopped_at(delivery.pipeline.elsewhere(), "before-prepare") as second,
    ):
        for driver in (first, second):
            os.kill(driver.pid, signal.SIGCONT)
        told = [finish(driver, PATIENCE_S) for driver in (first, second)]
    assert [first.returncode, second.returncode].count(0) <= 1, told
    assert any("SupersededError" in each for each in told), told
    delivery.resume()
    delivery.assert_exactly_once()


@pytest.mark.parametrize("kind", each())
def test_at_least_once_the_rows_are_visible_at_once(delivery: Delivery) -> None:
    delivery.pipeline.feed(BATCH)
    delivery.resume(guarantee="at_least_once")
    delivery.assert_exactly_once()
