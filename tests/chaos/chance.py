"""Random histories, each from its seed and from nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.chaos.scenario import (
    DRIVER_PLACES,
    EXPIRY_S,
    LONG_S,
    RECOVERY_PLACES,
    RETAINED,
    SHORT_S,
    SPARK_PLACES,
    WORKER_PLACES,
    Incident,
    Scenario,
)


def random_scenario(seed: int) -> Scenario:
    """The history of a seed: one to three incidents, each with a fault."""
    chance = random.Random(seed)
    makers = [maker for maker, weight in _MAKERS for _ in range(weight)]
    count = chance.choices((1, 2, 3), (4, 4, 2))[0]
    incidents = tuple(chance.choice(makers)(chance) for _ in range(count))
    # Rows cut anew are told apart by reading back what was delivered, which retention forbids.
    cut_anew = 0 if any(incident.retention for incident in incidents) else 2
    kinds = (4, cut_anew, cut_anew, 3)
    many = any(incident.past for incident in incidents)
    return Scenario(
        seed=seed,
        kind=chance.choices(("map", "shuffle", "keyed", "count"), kinds)[0],
        partitions=chance.choice((1, 2, 3, 3, 4)),
        keys=chance.choice((1, 5, 11, 40)),
        batch_rows=chance.choice((5, 10) if many else (5, 10, 20, 40)),
        retained=RETAINED if many or chance.random() < 0.5 else 100,
        incidents=incidents,
        with_ledger=chance.random() < 0.15,
    )


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


def _nth(chance: random.Random) -> int:
    return chance.choices((1, 2, 3), (3, 4, 2))[0]


def _incident(chance: random.Random, **what: Any) -> Incident:
    """The rest is usual: a parallelism, and rows to begin with."""
    width, feed = chance.choice((2, 3, 3, 5)), chance.choice((10, 60, 120))
    return Incident(width=width, feed=feed, **what)


def _kill_at_step(chance: random.Random) -> Incident:
    place = chance.choice(DRIVER_PLACES)
    nth = 1 if place == "sealed" else _nth(chance)
    return _incident(chance, fault=f"kill driver at {place}", failpoints=f"{place}=kill@{nth}")


def _kill_worker(chance: random.Random) -> Incident:
    place = chance.choice(WORKER_PLACES)
    return _incident(
        chance,
        fault=f"kill worker at {place}",
        failpoints=f"{place}=kill@{_nth(chance)}",
    )


def _fail_task(chance: random.Random) -> Incident:
    place = chance.choice(WORKER_PLACES)
    return _incident(
        chance, fault=f"task fails at {place}", failpoints=f"{place}=raise@{_nth(chance)}"
    )


def _kill_at_random(chance: random.Random) -> Incident:
    signal = chance.choices(("KILL", "TERM"), (3, 1))[0]
    group = chance.random() < 0.5
    return _incident(
        chance,
        fault=f"SIG{signal} at random" + ("" if group else ", workers go on"),
        signal=signal,
        group=group,
        at_s=chance.uniform(0.1, 1.0),
    )


def _stopped(chance: random.Random) -> Incident:
    """SIGSTOP longer than the timeout, another driver meanwhile, then SIGCONT."""
    place = chance.choice((*DRIVER_PLACES[1:], *WORKER_PLACES))
    return _incident(
        chance,
        fault=f"SIGSTOP at {place}, SIGCONT beside a second driver",
        failpoints=f"{place}=stop@{_nth(chance)}",
        rival="when-stopped",
        timeout_s=SHORT_S if chance.random() < 0.6 else LONG_S,
        left_s=chance.uniform(0.2, 1.0),
        group=False,
    )


def _stopped_at_random(chance: random.Random) -> Incident:
    return _incident(
        chance,
        fault="SIGSTOP at random, SIGCONT beside a second driver",
        signal="STOP",
        group=chance.random() < 0.5,
        at_s=chance.uniform(0.1, 0.9),
        rival="when-stopped",
        timeout_s=SHORT_S if chance.random() < 0.6 else LONG_S,
        left_s=chance.uniform(0.2, 1.0),
    )


def _sleeper(chance: random.Random) -> Incident:
    """SIGSTOP longer than Spark and we remember the batch, another driver meanwhile."""
    place = chance.choice((*SPARK_PLACES, *SPARK_PLACES, *DRIVER_PLACES[1:], *WORKER_PLACES))
    return _incident(
        chance,
        fault=f"SIGSTOP at {place}, SIGCONT beyond retention",
        failpoints=f"{place}=stop@{_nth(chance)}",
        rival_rows=chance.choice((1, 2)),
        rival="when-stopped",
        past=chance.choice((1, RETAINED + 1, RETAINED + 2, RETAINED + 3)),
        timeout_s=SHORT_S if chance.random() < 0.3 else LONG_S,
        group=False,
    )


def _both_add(chance: random.Random) -> Incident:
    """Two drivers from the start, and a wide gap between Spark's look and its rename."""
    return _incident(
        chance,
        fault="two drivers from the start, both may add",
        rival_rows=chance.choice((1, 2)),
        rival="at-start",
        signal="KILL",
        at_s=chance.uniform(0.5, 1.5),
        gap_s=chance.choice((0.05, 0.2)),
    )


def _renamed_late(chance: random.Random) -> Incident:
    """The gap of one driver is so long that another one delivers the batch in it."""
    log = chance.choice(("offsets", "offsets", "commits"))
    return _incident(
        chance,
        fault=f"SIGSTOP before the rename in {log}",
        failpoints=f"{log}-renaming=stop@{_nth(chance)}",
        rival_rows=chance.choice((1, 2)),
        rival="when-stopped",
        past=chance.choice((0, 1, 1, 2)),
        left_s=chance.uniform(0.1, 0.5),
        group=False,
    )


def _copied(chance: random.Random) -> Incident:
    place = chance.choice((*SPARK_PLACES, *DRIVER_PLACES[1:], *DRIVER_PLACES[1:]))
    copy = chance.choices(("restored", "in place", "in place, live"), (4, 2, 1))[0]
    return _incident(
        chance,
        fault=f"a copy of the checkpoint, {copy}",
        failpoints=f"{place}=stop@{_nth(chance)}",
        copy=copy,
        past=chance.choice((0, 1, 1, 2, RETAINED + 2)),
    )


def _another_pipeline(chance: random.Random) -> Incident:
    other = chance.choice(("another topic", "another topic", "the same topic"))
    alone = ", left alone" if chance.random() < 0.4 else ""
    return _incident(
        chance, fault=f"a second pipeline, {other}{alone}", other=other + alone, at_s=0.1
    )


def _two_drivers(chance: random.Random) -> Incident:
    return _incident(
        chance,
        fault="two drivers from the start",
        rival="at-start",
        signal="KILL",
        at_s=chance.uniform(0.5, 1.2),
    )


def _recovery_race(chance: random.Random) -> Incident:
    place = chance.choice(("prepared", "decided", "settled-some"))
    killed = chance.choice(RECOVERY_PLACES)
    return _incident(
        chance,
        fault=f"two recoveries, one killed at {killed}",
        failpoints=f"{place}=kill@{_nth(chance)}",
        recoveries=2,
        recovery_failpoints=f"{killed}=kill",
    )


def _recovery_beside(chance: random.Random) -> Incident:
    return _incident(
        chance,
        fault="recoveries, forced, beside a live driver",
        at_s=chance.uniform(0.2, 0.8),
        recoveries=chance.choice((1, 2)),
        recovery_failpoints=f"{chance.choice(RECOVERY_PLACES)}=kill"
        if chance.random() < 0.3
        else "",
        beside=True,
    )


def _left_to_timeout(chance: random.Random) -> Incident:
    place = chance.choice(("decided", "settled-some"))
    return _incident(
        chance,
        fault=f"kill at {place}, left until the timeout",
        failpoints=f"{place}=kill@{_nth(chance)}",
        timeout_s=SHORT_S,
        left_s=SHORT_S + 0.6,
        recoveries=chance.choice((0, 0, 1)),
    )


def _ids_expired(chance: random.Random) -> Incident:
    """Nobody is there until the broker has forgotten whose the ids were."""
    place = chance.choice(("decided", "settled-some", "settled"))
    return _incident(
        chance,
        fault=f"kill at {place}, left until ids expire",
        failpoints=f"{place}=kill@{_nth(chance)}",
        timeout_s=chance.choice((SHORT_S, LONG_S)),
        left_s=EXPIRY_S + 0.8,
        recoveries=chance.choice((0, 0, 1)),
    )


def _past_retention(chance: random.Random) -> Incident:
    """And until the rows are gone that would tell what became of a promise."""
    place = chance.choice(("decided", "settled-some", "settled"))
    return _incident(
        chance,
        fault=f"kill at {place}, left until ids expire and rows pass retention",
        failpoints=f"{place}=kill@{_nth(chance)}",
        timeout_s=SHORT_S,
        left_s=SHORT_S + EXPIRY_S + 0.8,
        recoveries=chance.choice((0, 0, 1)),
        retention=True,
    )


def _executor_killed(chance: random.Random) -> Incident:
    return _incident(chance, fault="kill executor", executor=True, at_s=chance.uniform(0.1, 1.0))


def _lost_reply(chance: random.Random) -> Incident:
    api = chance.choice(("EndTxn", "EndTxn", "Produce", "InitProducerId"))
    action = chance.choices(("drop-reply", "cut", "delay", "half-open"), (5, 3, 2, 1))[0]
    nth = chance.randint(1, 7)
    return _incident(
        chance,
        fault=f"{action} {api}",
        rule=(api, nth, action),
        signal="KILL" if chance.random() < 0.4 else "",
        at_s=chance.uniform(0.2, 0.8),
    )


def _broker_killed(chance: random.Random) -> Incident:
    return _incident(chance, fault="kill broker", broker=True, at_s=chance.uniform(0.2, 0.8))


_MAKERS: tuple[tuple[Callable[[random.Random], Incident], int], ...] = (
    (_kill_at_step, 30),
    (_kill_worker, 12),
    (_fail_task, 6),
    (_kill_at_random, 20),
    (_stopped, 14),
    (_stopped_at_random, 6),
    (_two_drivers, 10),
    (_sleeper, 16),
    (_both_add, 8),
    (_renamed_late, 8),
    (_copied, 16),
    (_another_pipeline, 8),
    (_recovery_race, 16),
    (_recovery_beside, 12),
    (_left_to_timeout, 14),
    (_ids_expired, 8),
    (_past_retention, 8),
    (_executor_killed, 8),
    (_lost_reply, 20),
    (_broker_killed, 1),
)
