"""``staged=False``: the tasks write absolute values themselves, before the decision.

Repeats are harmless, so whatever is killed, the last values are right once the query has gone on.
"""

from __future__ import annotations

import pytest

from airflow_eos.recovery import execute_recovery
from tests.integration.hazards.stopping import stopped_at, wake
from tests.integration.kinds.delivery import BATCH, Delivery, acting

KINDS = ("at-once-postgres", "at-once-redis")
# Where a driver dies in its second batch, and how many rows of the input readers may see then.
PLACES = {
    "before-prepare@2": (BATCH, BATCH),
    "prepared@2": (2 * BATCH, 2 * BATCH),  # before the decision: the one exception
    "decided@2": (2 * BATCH, 2 * BATCH),
    "settled@2": (2 * BATCH, 2 * BATCH),
}


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "place",
    [p if p == "decided@2" else pytest.param(p, marks=pytest.mark.proof) for p in PLACES],
)
def test_driver_killed(delivery: Delivery, place: str) -> None:
    least, most = PLACES[place]
    delivery.pipeline.feed(3 * BATCH)
    delivery.killed(place)
    for seen in delivery.inputs():
        assert least <= seen <= most, f"{seen} rows of the input are visible"
    delivery.pipeline.feed(BATCH // 2)
    delivery.resume()
    delivery.assert_exactly_once()


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["task-wrote@2", "task-prepared@2"])
def test_python_worker_killed(delivery: Delivery, place: str) -> None:
    """Once it has written to the target, or before: Spark runs the task again."""
    delivery.pipeline.feed(2 * BATCH)
    delivery.pipeline.run(failpoints=acting("kill", place))
    assert (delivery.pipeline.folder / f"{place.partition('@')[0]}.hit").exists()
    delivery.assert_exactly_once()


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS)
def test_a_recovery_has_nothing_to_end_and_the_app_goes_on(delivery: Delivery) -> None:
    assert delivery.decided().steps == ()
    report = execute_recovery(delivery.pipeline.checkpoint, reach=delivery.reach, force=True)
    assert report.results == ()
    assert delivery.inputs() == {2 * BATCH}
    delivery.pipeline.feed(BATCH)
    delivery.resume()
    delivery.assert_exactly_once()


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_wakes_up_after_another_took_over(delivery: Delivery) -> None:
    """Its tasks have written their batch; it decides nothing more, and its values are old."""
    delivery.pipeline.feed(3 * BATCH)
    with stopped_at(delivery.pipeline, "prepared@2") as zombie:
        delivery.resume()
        delivery.assert_exactly_once()
        wake(zombie)
    delivery.assert_exactly_once()
    delivery.pipeline.feed(100)
    delivery.resume()
    delivery.assert_exactly_once()
