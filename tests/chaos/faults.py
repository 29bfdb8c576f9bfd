"""Random faults that befall one driver, or the broker."""

from __future__ import annotations

import random

from tests.chaos.drawing import incident, nth
from tests.chaos.scenario import (
    DRIVER_PLACES,
    EXPIRY_S,
    LONG_S,
    RECOVERY_PLACES,
    SHORT_S,
    WORKER_PLACES,
    Incident,
)


def kill_at_step(chance: random.Random) -> Incident:
    place = chance.choice(DRIVER_PLACES)
    at = 1 if place == "sealed" else nth(chance)
    return incident(chance, fault=f"kill driver at {place}", failpoints=f"{place}=kill@{at}")


def kill_worker(chance: random.Random) -> Incident:
    place = chance.choice(WORKER_PLACES)
    return incident(
        chance,
        fault=f"kill worker at {place}",
        failpoints=f"{place}=kill@{nth(chance)}",
    )


def fail_task(chance: random.Random) -> Incident:
    place = chance.choice(WORKER_PLACES)
    return incident(
        chance, fault=f"task fails at {place}", failpoints=f"{place}=raise@{nth(chance)}"
    )


def kill_at_random(chance: random.Random) -> Incident:
    signal = chance.choices(("KILL", "TERM"), (3, 1))[0]
    group = chance.random() < 0.5
    return incident(
        chance,
        fault=f"SIG{signal} at random" + ("" if group else ", workers go on"),
        signal=signal,
        group=group,
        at_s=chance.uniform(0.1, 1.0),
    )


def recovery_race(chance: random.Random) -> Incident:
    place = chance.choice(("prepared", "decided", "settled-some"))
    killed = chance.choice(RECOVERY_PLACES)
    return incident(
        chance,
        fault=f"two recoveries, one killed at {killed}",
        failpoints=f"{place}=kill@{nth(chance)}",
        recoveries=2,
        recovery_failpoints=f"{killed}=kill",
    )


def recovery_beside(chance: random.Random) -> Incident:
    return incident(
        chance,
        fault="recoveries, forced, beside a live driver",
        at_s=chance.uniform(0.2, 0.8),
        recoveries=chance.choice((1, 2)),
        recovery_failpoints=f"{chance.choice(RECOVERY_PLACES)}=kill"
        if chance.random() < 0.3
        else "",
        beside=True,
    )


def left_to_timeout(chance: random.Random) -> Incident:
    place = chance.choice(("decided", "settled-some"))
    return incident(
        chance,
        fault=f"kill at {place}, left until the timeout",
        failpoints=f"{place}=kill@{nth(chance)}",
        timeout_s=SHORT_S,
        left_s=SHORT_S + 0.6,
        recoveries=chance.choice((0, 0, 1)),
    )


def ids_expired(chance: random.Random) -> Incident:
    """Nobody is there until the broker has forgotten whose the ids were."""
    place = chance.choice(("decided", "settled-some", "settled"))
    return incident(
        chance,
        fault=f"kill at {place}, left until ids expire",
        failpoints=f"{place}=kill@{nth(chance)}",
        timeout_s=chance.choice((SHORT_S, LONG_S)),
        left_s=EXPIRY_S + 0.8,
        recoveries=chance.choice((0, 0, 1)),
    )


def past_retention(chance: random.Random) -> Incident:
    """And until the rows are gone that would tell what became of a promise."""
    place = chance.choice(("decided", "settled-some", "settled"))
    return incident(
        chance,
        fault=f"kill at {place}, left until ids expire and rows pass retention",
        failpoints=f"{place}=kill@{nth(chance)}",
        timeout_s=SHORT_S,
        left_s=SHORT_S + EXPIRY_S + 0.8,
        recoveries=chance.choice((0, 0, 1)),
        retention=True,
    )


def executor_killed(chance: random.Random) -> Incident:
    return incident(chance, fault="kill executor", executor=True, at_s=chance.uniform(0.1, 1.0))


def lost_reply(chance: random.Random) -> Incident:
    api = chance.choice(("EndTxn", "EndTxn", "Produce", "InitProducerId"))
    action = chance.choices(("drop-reply", "cut", "delay", "half-open"), (5, 3, 2, 1))[0]
    nth = chance.randint(1, 7)
    return incident(
        chance,
        fault=f"{action} {api}",
        rule=(api, nth, action),
        signal="KILL" if chance.random() < 0.4 else "",
        at_s=chance.uniform(0.2, 0.8),
    )


def broker_killed(chance: random.Random) -> Incident:
    return incident(chance, fault="kill broker", broker=True, at_s=chance.uniform(0.2, 0.8))


def power_cut(chance: random.Random) -> Incident:
    """The driver's machine loses power: what nobody synced is empty; or one file was removed.

    Two that were synced with a promise are an older copy.
    """
    place = chance.choice(("prepared", "decided", "settled-some", "settled"))
    names = ("offsets", "commits", "metadata")
    gone = place != "prepared" and chance.random() < 0.5
    return incident(
        chance,
        fault=f"a file removed at {place}" if gone else f"power cut at {place}",
        gone=gone,
        failpoints=f"{place}=kill@{nth(chance)}",
        emptied=tuple(chance.sample(names, 1 if gone else chance.choice((1, 1, 2, 3)))),
        recoveries=chance.choice((0, 0, 1)),
    )
