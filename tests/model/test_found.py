"""Interleavings that the machine, or thinking along with it, has found; each once, by hand."""

from __future__ import annotations

import pytest

from airflow_eos.errors import SupersededError
from tests.model.broker import Rows
from tests.model.frames import Cut
from tests.model.scheduler import Process
from tests.model.world import World

pytestmark = pytest.mark.unit


def world_of(*units: list[Rows], retained: int = 9) -> World:
    return World(list(units), version=2, retained=retained)


def up_to(world: World, process: Process, place: str, *, passes: int = 0) -> None:
    """Run the process and its tasks until it stands before a call, for the nth time after this."""
    while process.alive:
        if process.runnable:
            process.resume()
            if process.doing.startswith(place):
                if not passes:
                    return
                passes -= 1
        else:
            for task in world.scheduler.runnable:
                if task.name.startswith(f"{process.name} task"):
                    task.resume()


def test_a_driver_whose_batch_was_closed_meanwhile_ends_and_does_not_seal_for_ever():
    world = world_of([("a",)])
    first = world.start_driver(Cut())
    up_to(world, first, "put commits")
    second = world.start_driver(Cut())
    up_to(world, second, "put decisions")  # it has found batch 0 in flight, and seals
    up_to(world, first, "the end")
    up_to(world, second, "the end")
    assert isinstance(second.error, SupersededError), second.error
    assert not world.judge.violations, "\n".join(world.judge.history)


@pytest.mark.parametrize("delivered", [1, 2])
def test_a_driver_that_wakes_after_its_decisions_were_pruned_ends_and_aborts_its_own(delivered):
    """It planned batch ``delivered - 1`` itself; a second one delivered it and two more."""
    batches: list[list[tuple[str, ...]]] = [[(f"{number}",)] for number in range(delivered + 3)]
    world = world_of(*batches, retained=1)
    zombie = world.start_driver(Cut())
    up_to(world, zombie, "put decisions", passes=delivered)  # the first one seals
    second = world.start_driver(Cut())
    up_to(world, second, "the end")
    up_to(world, zombie, "the end")
    assert isinstance(zombie.error, SupersededError), zombie.error
    assert not world.broker.ongoing()
    assert not world.judge.violations, "\n".join(world.judge.history)


@pytest.mark.parametrize("asleep_before", ["ListTransactions", "put decisions", "EndTxn"])
def test_a_zombie_that_cleans_up_late_aborts_nothing_that_its_successor_promised(asleep_before):
    """Rule 5: it slept somewhere between its tasks and the end of what lost attempts left open."""
    world = world_of([("a",)], [("b",)])
    zombie = world.start_driver(Cut())
    up_to(world, zombie, "put decisions")  # it seals
    up_to(world, zombie, asleep_before)
    second = world.start_driver(Cut())
    up_to(world, second, "put commits")
    up_to(world, second, "EndTxn")  # of batch 1, which is decided now
    assert world.broker.ongoing()
    up_to(world, zombie, "the end")
    assert not world.judge.violations, "\n".join(world.judge.history)


def test_a_driver_that_wakes_up_to_a_copy_put_back_in_place_notes_and_ends():
    """Note, then look; term, then read the notes: the other way round both delivered."""
    world = world_of([("a",)], [("b",)])
    sleeper = world.start_driver(Cut())
    up_to(world, sleeper, "put offsets", passes=1)
    sleeper.resume()  # batch 1 is planned
    copy = world.objects.copy()
    up_to(world, sleeper, "append note")  # batch 1 is decided
    world.objects.put_back(copy)
    world.copies.append(copy)
    second = world.start_driver(Cut())
    up_to(world, second, "put drivers")
    second.resume()  # it has the term, and has not read the notes since
    up_to(world, sleeper, "the end")
    up_to(world, second, "the end")
    assert isinstance(sleeper.error, SupersededError), sleeper.error
    assert not world.judge.violations, "\n".join(world.judge.history)


def test_two_drivers_that_complete_one_batch_may_both_end_and_the_next_start_goes_on():
    """Spark's add answers False to the later one, though its rows are visible: a restart heals it.

    ``StreamRun`` starts an app again whatever it ended with
    (tests/unit/ops/supervision/test_run.py).
    """
    world = world_of([("a",)], [("b",)])
    dying = world.start_driver(Cut())
    up_to(world, dying, "put commits")
    second = world.start_driver(Cut())
    up_to(world, second, "append note")  # it honours batch 0
    up_to(world, second, "put driver.json")  # settled: Spark is going to complete it
    dying.resume()  # the former one was first
    up_to(world, second, "the end")
    assert str(second.error) == "CONCURRENT_STREAM_LOG_UPDATE commits/0"
    up_to(world, dying, "the end")
    assert isinstance(dying.error, SupersededError), dying.error
    third = world.start_driver(Cut())
    up_to(world, third, "the end")
    assert third.error is None
    world.judge.all_delivered()
    assert not world.judge.violations, "\n".join(world.judge.history)
