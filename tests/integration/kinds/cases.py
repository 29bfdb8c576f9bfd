"""Kinds by places: all of it for ``make proof``, and the part of it that ``make test`` has."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from _pytest.mark import ParameterSet

from tests.integration.kinds.delivery import BATCH
from tests.support.kinds import KINDS

# Where a driver dies in its second batch, and how many rows of the input readers may see then.
DRIVER = {
    "sealed": (0, 0),  # the former attempt is taken, nothing is prepared
    "before-prepare@2": (BATCH, BATCH),
    "prepared@2": (BATCH, BATCH),  # prepared, and undecided
    "decided@2": (BATCH, BATCH),  # decided, and nothing of it is visible
    "settled-some@2": (0, 2 * BATCH),  # one piece after the other is made visible
    "settled@2": (2 * BATCH, 2 * BATCH),  # all visible, and Spark does not know it yet
}
# Places that only some kinds have.
OWN = {
    "looked@2": (BATCH, BATCH),
    "kept-ending@2": (BATCH, BATCH),
    "kept-applied@2": (0, 2 * BATCH),
    "moved@2": (0, 2 * BATCH),
}
TASKS = ("task-wrote@2", "task-prepared@2")
STOPPED = ("before-prepare@2", "prepared@2", "decided@2", "settled-some@2", "settled@2")
RECOVERY = ("recovery-listed", "recovery-sealed", "settled-some", "recovery-acted-first")

# One kind for each way in which something is prepared; the others are the same code in other words.
_EACH_WAY = {"files", "postgres", "mysql", "delta", "wal", "upsert-postgres", "kafka+postgres"}

# What ``make test`` has of it, beside what it has of Kafka alone (sinks/test_crashes.py,
# hazards/test_two_drivers.py): each kind killed once it has decided, some recovered without the app
# (then also before the decision), and asleep in the middle of a commit of their own that somebody
# else ends meanwhile; and the places of one kind only.
_THIN = {"decided@2"}
_OF_THEIR_OWN = {"mysql", "delta", "wal"}  # their place after the decision is one that others lack
_THIN_STOP = {"settled-some@2"}
_ASLEEP = {"delta"}
WITHOUT_ITS_APP = {"kafka+postgres"}
VISIBLE_AT_ONCE = {"files"}  # whose folder nothing but the start makes, as no participant is asked
_THIN_OF_A_KIND = {
    ("wal", "kept-applied@2"),
    ("delta", "looked@2"),
    ("iceberg", "task-filed@2"),
    ("mysql", "moved@2"),
    ("kafka+files", "task-wrote@2"),
}

_SLOW_TO_START = {"upsert-hbase"}  # half a minute: all of it is left to ``make proof``


def places() -> list[ParameterSet]:
    """Each kind with each place that its driver can die at."""
    return [
        _case(kind, place, thin=_is_thin(kind, place, _THIN))
        for kind, its in KINDS.items()
        for place in (*DRIVER, *its.own_places)
    ]


def tasks() -> list[ParameterSet]:
    """Each kind with each place that a task of it can die at."""
    return [
        _case(kind, place, thin=_is_thin(kind, place, set()))
        for kind, its in KINDS.items()
        for place in (*TASKS, *its.own_tasks)
    ]


def stops() -> list[ParameterSet]:
    """Each kind with each place that a driver sleeps at while another takes over."""
    return [
        _case(kind, place, thin=place in _THIN_STOP and kind in _ASLEEP)
        for kind in KINDS
        for place in STOPPED
    ]


def each(thin: Collection[str] = ()) -> list[ParameterSet]:
    """Each kind; ``make test`` has those of ``thin``."""
    return [_case(kind, thin=kind in thin) for kind in KINDS]


def rowwise() -> list[ParameterSet]:
    """Each kind that takes rows as they are."""
    return [_case(kind, thin=False) for kind, its in KINDS.items() if its.query == "map"]


def with_servers() -> list[ParameterSet]:
    """Each kind that has a server of its own."""
    thin = {"kafka", "mysql", "upsert-redis", "kafka+postgres+delta"}
    return [_case(kind, thin=kind in thin) for kind, its in KINDS.items() if its.servers]


def _is_thin(kind: str, place: str, of_each: set[str]) -> bool:
    return (place in of_each and kind in _EACH_WAY - _OF_THEIR_OWN) or (
        kind,
        place,
    ) in _THIN_OF_A_KIND


def _case(*values: str, thin: bool) -> ParameterSet:
    thin = thin and values[0] not in _SLOW_TO_START
    marks = () if thin else (pytest.mark.proof,)
    return pytest.param(*values, marks=marks, id="-".join(values))
