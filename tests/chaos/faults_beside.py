"""Random faults in which a second driver or pipeline is there: sleepers, rivals, copies."""

from __future__ import annotations

import random

import msgspec

from tests.chaos.drawing import MANY, incident, nth
from tests.chaos.scenario import (
    DRIVER_PLACES,
    LONG_S,
    RACING,
    RECOVERY_PLACES,
    RETAINED,
    SHORT_S,
    SPARK_PLACES,
    WORKER_PLACES,
    Incident,
)


def stopped(chance: random.Random) -> Incident:
    """SIGSTOP longer than the timeout, another driver meanwhile, then SIGCONT."""
    place = chance.choice((*DRIVER_PLACES[1:], *WORKER_PLACES))
    return incident(
        chance,
        fault=f"SIGSTOP at {place}, SIGCONT beside a second driver",
        failpoints=f"{place}=stop@{nth(chance)}",
        rival="when-stopped",
        timeout_s=SHORT_S if chance.random() < 0.6 else LONG_S,
        left_s=chance.uniform(0.2, 1.0),
        group=False,
    )


def stopped_at_random(chance: random.Random) -> Incident:
    return incident(
        chance,
        fault="SIGSTOP at random, SIGCONT beside a second driver",
        signal="STOP",
        group=chance.random() < 0.5,
        at_s=chance.uniform(0.1, 0.9),
        rival="when-stopped",
        timeout_s=SHORT_S if chance.random() < 0.6 else LONG_S,
        left_s=chance.uniform(0.2, 1.0),
    )


def sleeper(chance: random.Random) -> Incident:
    """SIGSTOP longer than Spark and we remember the batch, another driver meanwhile."""
    place = chance.choice((*SPARK_PLACES, *SPARK_PLACES, *DRIVER_PLACES[1:], *WORKER_PLACES))
    return incident(
        chance,
        fault=f"SIGSTOP at {place}, SIGCONT beyond retention",
        feed=MANY,
        failpoints=f"{place}=stop@{nth(chance)}",
        rival_rows=chance.choice((1, 2)),
        rival="when-stopped",
        past=chance.choice((1, RETAINED + 1, RETAINED + 2, RETAINED + 3)),
        timeout_s=SHORT_S if chance.random() < 0.3 else LONG_S,
        group=False,
    )


def both_add(chance: random.Random) -> Incident:
    """Two drivers from the start, and a wide gap between Spark's look and its rename."""
    return incident(
        chance,
        fault="two drivers from the start, both may add",
        rival_rows=chance.choice((1, 2)),
        rival="at-start",
        signal="KILL",
        at_s=chance.uniform(0.5, 1.5),
        gap_s=chance.choice((0.05, 0.2)),
    )


def renamed_late(chance: random.Random) -> Incident:
    """The gap of one driver is so long that another one delivers the batch in it."""
    log = chance.choice(("offsets", "offsets", "commits"))
    return incident(
        chance,
        fault=f"SIGSTOP before the rename in {log}",
        feed=MANY,
        failpoints=f"{log}-renaming=stop@{nth(chance)}",
        rival_rows=chance.choice((1, 2)),
        rival="when-stopped",
        past=chance.choice((0, 1, 1, 2)),
        left_s=chance.uniform(0.1, 0.5),
        group=False,
    )


def copied(chance: random.Random) -> Incident:
    place = chance.choice((*SPARK_PLACES, *DRIVER_PLACES[1:], *DRIVER_PLACES[1:]))
    copy = chance.choices(("restored", "in place", "in place, live"), (4, 2, 1))[0]
    past, at = chance.choice((0, 1, 1, 2, RETAINED + 2)), nth(chance)
    # Not a step further than the batch in flight: the copy lags by that one.
    halt = f",between=stop@{at}" if past == 1 else ""
    return incident(
        chance,
        fault=f"a copy of the checkpoint, {copy}",
        feed=MANY,
        failpoints=f"{place}=stop@{at}{halt}",
        copy=copy,
        past=past,
    )


def another_pipeline(chance: random.Random) -> Incident:
    other = chance.choice(("another topic", "another topic", "the same topic"))
    alone = ", left alone" if chance.random() < 0.4 else ""
    return incident(
        chance, fault=f"a second pipeline, {other}{alone}", other=other + alone, at_s=0.1
    )


def two_drivers(chance: random.Random) -> Incident:
    return incident(
        chance,
        fault="two drivers from the start",
        rival="at-start",
        signal="KILL",
        at_s=chance.uniform(0.5, 1.2),
    )


def racing(chance: random.Random) -> Incident:
    """Two drivers from the start, and a kill at a place that either may come to, or at random."""
    place = chance.choice((*DRIVER_PLACES, *WORKER_PLACES, "", "", "", ""))
    at = 1 if place == "sealed" else nth(chance)
    alone = ", workers go on" if chance.random() < 0.5 else ""
    killed = chance.choice(RECOVERY_PLACES) if chance.random() < 0.3 else ""
    return incident(
        chance,
        fault=f"two drivers from the start, kill at {place or 'random'}{alone}",
        group=not alone,
        feed=chance.choice((60, 120)),
        rival=RACING,
        rival_rows=chance.choice((1, 1, 2)),
        apart_s=chance.choice((0.0, 0.0, 0.0, 0.2, 0.6)),
        failpoints=f"{place}=kill@{at}" if place else "",
        signal="" if place else "KILL",
        at_s=chance.uniform(0.0, 1.2),
        past=chance.choice((0, 0, 1, 2)),
        recoveries=chance.choice((0, 0, 1, 2)),
        recovery_failpoints=f"{killed}=kill" if killed else "",
        beside=chance.random() < 0.3,
    )


def standing_by(chance: random.Random, raced: Incident) -> Incident:
    """The same where the second one stands by, two times of three before anything strikes."""
    behind = chance.choice(("", "KILL", "STOP", "hand over", "hand over", ""))
    if not behind:
        return raced
    place = raced.failpoints.partition("=")[0]
    then = f", then kill at {place}" if place else ""
    alone = "" if raced.group else ", workers go on"
    return msgspec.structs.replace(
        raced,
        fault=f"{behind} of the first once the second stands by{then}{alone}",
        behind=behind,
        signal="",
        past=max(1, raced.past),
    )
