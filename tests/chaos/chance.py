"""Random histories, each from its seed and from nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from tests.chaos import faults
from tests.chaos.faults import MANY
from tests.chaos.scenario import RETAINED, Incident, Scenario

MAKERS: tuple[tuple[Callable[[random.Random], Incident], int], ...] = (
    (faults.kill_at_step, 30),
    (faults.kill_worker, 12),
    (faults.fail_task, 6),
    (faults.kill_at_random, 20),
    (faults.stopped, 14),
    (faults.stopped_at_random, 6),
    (faults.two_drivers, 10),
    (faults.sleeper, 16),
    (faults.both_add, 8),
    (faults.renamed_late, 8),
    (faults.copied, 16),
    (faults.another_pipeline, 8),
    (faults.recovery_race, 16),
    (faults.recovery_beside, 12),
    (faults.left_to_timeout, 14),
    (faults.ids_expired, 8),
    (faults.past_retention, 8),
    (faults.executor_killed, 8),
    (faults.lost_reply, 20),
    (faults.broker_killed, 1),
    (faults.power_cut, 8),
)


def random_scenario(seed: int) -> Scenario:
    """The history of a seed: one to three incidents, each with a fault."""
    chance = random.Random(seed)
    makers = [maker for maker, weight in MAKERS for _ in range(weight)]
    count = chance.choices((1, 2, 3), (4, 4, 2))[0]
    incidents = tuple(chance.choice(makers)(chance) for _ in range(count))
    # Rows cut anew are told apart by reading back what was delivered, which retention forbids.
    cut_anew = 0 if any(incident.retention for incident in incidents) else 2
    kinds = (4, cut_anew, cut_anew, 3)
    many = any(incident.feed == MANY for incident in incidents)
    return Scenario(
        seed=seed,
        kind=chance.choices(("map", "shuffle", "keyed", "count"), kinds)[0],
        partitions=chance.choice((1, 2, 3, 3, 4)),
        keys=chance.choice((1, 5, 11, 40)),
        batch_rows=chance.choice((5, 10) if many else (5, 10, 20, 40)),
        retained=RETAINED if many or chance.random() < 0.5 else 100,
        incidents=incidents,
    )


def racing_scenario(seed: int) -> Scenario:
    """The history of a seed in which every driver has a rival from the start."""
    chance = random.Random(f"{seed} racing")
    count = chance.choices((1, 2), (3, 2))[0]
    incidents = tuple(faults.racing(chance) for _ in range(count))
    return Scenario(
        seed=seed,
        kind=chance.choices(("map", "shuffle", "count"), (4, 2, 3))[0],
        partitions=chance.choice((1, 2, 3, 4)),
        keys=chance.choice((1, 5, 11, 40)),
        batch_rows=chance.choice((5, 10, 20)),
        retained=RETAINED if chance.random() < 0.5 else 100,
        incidents=incidents,
    )


def standing_by(scenario: Scenario) -> Scenario:
    """The same history with rivals that stand by."""
    chance = random.Random(f"{scenario.seed} standing by")
    incidents = tuple(faults.standing_by(chance, each) for each in scenario.incidents)
    return msgspec.structs.replace(scenario, incidents=incidents)


def killed_often(seed: int, times: int) -> Scenario:
    """The history that measures how long recovery takes: a driver at work is killed so often.

    In its second batch, so that a row of its first ended the recovery before: with nothing
    promised, with a promise, with one that is settled.
    """
    places = ("prepared", "decided", "settled")
    return Scenario(
        seed=seed,
        incidents=tuple(
            Incident(fault=f"kill driver at {place}", failpoints=f"{place}=kill@2", feed=240)
            for place in (places[number % len(places)] for number in range(times))
        ),
    )
