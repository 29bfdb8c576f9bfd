"""Random faults: of one driver or the broker, with a second one beside, of several outputs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from tests.chaos.scenario import (
    DRIVER_PLACES,
    EXPIRY_S,
    LONG_S,
    RACING,
    RECOVERY_PLACES,
    RETAINED,
    SHORT_S,
    SPARK_PLACES,
    WORKER_PLACES,
    Incident,
    Scenario,
)
from tests.chaos.settings import POSTGRES

MANY = 160
"""Rows for several batches, where batches are small."""


def nth(chance: random.Random) -> int:
    return chance.choices((1, 2, 3), (3, 4, 2))[0]


def incident(chance: random.Random, **what: Any) -> Incident:
    """The rest is usual: a parallelism, and rows to begin with."""
    width, feed = chance.choice((2, 3, 3, 5)), chance.choice((10, 60, 120))
    return Incident(**{"width": width, "feed": feed, **what})


# --- faults ---------------------------------------------------------------------------------------
# Random faults that befall one driver, or the broker.


def kill_at_step(chance: random.Random) -> Incident:
    place = chance.choice(DRIVER_PLACES)
    at = 1 if place == "sealed" else nth(chance)
    return incident(chance, fault=f"kill driver at {place}", failpoints=f"{place}=kill@{at}")


def kill_worker(chance: random.Random) -> Incident:
    place = chance.choice(WORKER_PLACES)
    return incident(
        chance, fault=f"kill worker at {place}", failpoints=f"{place}=kill@{nth(chance)}"
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


# --- faults beside --------------------------------------------------------------------------------
# Random faults in which a second driver or pipeline is there: sleepers, rivals, copies.


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


# --- faults several -------------------------------------------------------------------------------
# Random faults of a history that delivers to more than Kafka: drawn beside, not among, the others.
#
# What a seed draws for Kafka alone stays what it was: these come from a chance of their own, and
# take the place of some of what was drawn.


REPLACED = 0.5
TIMEOUT_S = 2.5
"""Short, for Kafka's transactions: three systems take longer than one to prepare."""

_AWAY_S = (0.0, 0.5, 1.5)
_LIMITS = (
    "statement_timeout = '20ms'",
    "lock_timeout = '1ms'",
    "idle_in_transaction_session_timeout = '50ms'",
    "default_transaction_read_only = on",
    "default_transaction_isolation = serializable",
    "synchronous_commit = off",
)
_ALTERED = (
    "ALTER TABLE {} ADD COLUMN IF NOT EXISTS extra text",
    "ALTER TABLE {} ADD CHECK (key IS NOT NULL)",
    "ALTER TABLE {} ALTER COLUMN run TYPE varchar(80)",
    "CREATE INDEX ON {} (run)",
    "VACUUM FULL {}",
)


def with_outputs(scenario: Scenario, outputs: tuple[str, ...]) -> Scenario:
    """The history of the same seed, delivered to all of ``outputs`` in one decision."""
    chance = random.Random(f"{scenario.seed} {outputs}")
    incidents = tuple(
        _made(chance, outputs)
        if chance.random() < REPLACED and not drawn.retention
        else _patient(drawn)
        for drawn in scenario.incidents
    )
    return msgspec.structs.replace(scenario, outputs=outputs, incidents=incidents)


def _patient(drawn: Incident) -> Incident:
    """With a timeout that a batch of several outputs can be decided in."""
    if drawn.timeout_s != SHORT_S:
        return drawn
    left_s = drawn.left_s + TIMEOUT_S - SHORT_S
    return msgspec.structs.replace(drawn, timeout_s=TIMEOUT_S, left_s=left_s)


def between_prepares(chance: random.Random, outputs: tuple[str, ...]) -> Incident:
    """A task has prepared in one system, and not in the next."""
    place, what = f"task-{chance.choice(outputs)}-prepared", chance.choice(("kill", "raise"))
    return incident(
        chance, fault=f"{what} task at {place}", failpoints=f"{place}={what}@{nth(chance)}"
    )


def between_commits(chance: random.Random, outputs: tuple[str, ...]) -> Incident:
    """Some of a decision's work is committed, in one system or in several."""
    most = 3 * len(outputs)
    return incident(
        chance,
        fault="kill driver between the commits of several",
        failpoints=f"settled-some=kill@{chance.randint(1, most)}",
        recoveries=chance.choice((0, 1, 2)),
    )


def lost_by_one(chance: random.Random, _outputs: tuple[str, ...]) -> Incident:
    """Kafka's timeout passes: the others keep their part, and Kafka's is replayed."""
    return incident(
        chance,
        fault="kill at decided, left until Kafka's timeout alone has passed",
        failpoints=f"decided=kill@{nth(chance)}",
        timeout_s=TIMEOUT_S,
        left_s=TIMEOUT_S + 0.6,
        recoveries=chance.choice((0, 1)),
    )


def database_killed(chance: random.Random, _outputs: tuple[str, ...]) -> Incident:
    """PostgreSQL crashes beside a driver that runs, and comes back."""
    return incident(
        chance,
        fault="kill PostgreSQL",
        at_s=chance.uniform(0.2, 1.0),
        database_s=chance.choice(_AWAY_S),
    )


def database_killed_meanwhile(chance: random.Random, _outputs: tuple[str, ...]) -> Incident:
    """It crashes with work prepared in it, of a driver that is dead or stands still."""
    place = chance.choice(("task-postgres-prepared", "prepared", "decided", "settled-some"))
    return incident(
        chance,
        fault=f"kill driver at {place}, then PostgreSQL",
        failpoints=f"{place}=kill@{nth(chance)}",
        database_s=chance.choice(_AWAY_S),
        timeout_s=chance.choice((TIMEOUT_S, LONG_S)),
        recoveries=chance.choice((0, 1)),
    )


def role_limited(chance: random.Random, _outputs: tuple[str, ...]) -> Incident:
    """A role imposes a limit on every session, of the driver, its tasks and the recoveries."""
    limit = chance.choice(_LIMITS)
    place = chance.choice(("", "task-postgres-prepared", "decided", "settled-some"))
    return incident(
        chance,
        fault=f"a role with {limit}",
        role=limit,
        **_beside_or_killed(chance, place),
    )


def table_altered(chance: random.Random, _outputs: tuple[str, ...]) -> Incident:
    """Beside a driver that runs, or between the death of one and the start of the next."""
    what, place = chance.choice(_ALTERED), chance.choice(("", "prepared", "decided", "settled"))
    beside = f"a driver at {place}" if place else "a driver that runs"
    return incident(
        chance,
        fault=f"{what.format('the table')} beside {beside}",
        altered=what,
        **_beside_or_killed(chance, place),
    )


def _beside_or_killed(chance: random.Random, place: str) -> dict[str, Any]:
    """Beside a driver that runs, or that dies at a place; recovered then, or at the next start."""
    return {
        "failpoints": f"{place}=kill@{nth(chance)}" if place else "",
        "at_s": chance.uniform(0.2, 1.0),
        "recoveries": chance.choice((0, 1)),
    }


def _made(chance: random.Random, outputs: tuple[str, ...]) -> Incident:
    makers: list[Callable[[random.Random, tuple[str, ...]], Incident]] = [
        between_prepares,
        between_commits,
        between_commits,
        lost_by_one,
    ]
    if POSTGRES in outputs:
        makers += [database_killed, database_killed_meanwhile, role_limited, table_altered]
    return chance.choice(makers)(chance, outputs)
