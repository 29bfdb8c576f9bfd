"""Random faults of a history that delivers to more than Kafka: drawn beside, not among, the others.

What a seed draws for Kafka alone stays what it was: these come from a chance of their own, and take
the place of some of what was drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from tests.chaos.drawing import incident, nth
from tests.chaos.scenario import LONG_S, SHORT_S, Incident, Scenario
from tests.chaos.settings import POSTGRES

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
        failpoints=f"{place}=kill@{nth(chance)}" if place else "",
        at_s=chance.uniform(0.2, 1.0),
        recoveries=chance.choice((0, 1)),
    )


def table_altered(chance: random.Random, _outputs: tuple[str, ...]) -> Incident:
    """Beside a driver that runs, or between the death of one and the start of the next."""
    what, place = chance.choice(_ALTERED), chance.choice(("", "prepared", "decided", "settled"))
    beside = f"a driver at {place}" if place else "a driver that runs"
    return incident(
        chance,
        fault=f"{what.format('the table')} beside {beside}",
        altered=what,
        failpoints=f"{place}=kill@{nth(chance)}" if place else "",
        at_s=chance.uniform(0.2, 1.0),
        recoveries=chance.choice((0, 1)),
    )


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
