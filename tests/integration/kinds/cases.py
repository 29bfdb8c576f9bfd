"""Kinds by places: all of it for ``make proof``, and the part of it that ``make test`` has."""

from __future__ import annotations

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
    "rewritten@2": (BATCH, BATCH),
    "kept-ending@2": (BATCH, BATCH),
    "kept-applied@2": (0, 2 * BATCH),
    "moved@2": (0, 2 * BATCH),
}
TASKS = ("task-wrote@2", "task-prepared@2")
STOPPED = ("before-prepare@2", "prepared@2", "decided@2", "settled-some@2", "settled@2")
RECOVERY = ("recovery-listed", "recovery-sealed", "settled-some", "recovery-acted-first")

# What ``make test`` has of it, beside what it has of Kafka alone (sinks/test_crashes.py,
# hazards/test_two_drivers.py): one death of each way that has a system of its own.
_THIN = {("files", "decided@2"), ("postgres", "decided@2"), ("mysql", "decided@2")}


def places() -> list[ParameterSet]:
    """Each kind with each place that its driver can die at."""
    return [
        _case(kind, place, thin=(kind, place) in _THIN)
        for kind, its in KINDS.items()
        for place in (*DRIVER, *its.own_places)
    ]


def tasks() -> list[ParameterSet]:
    """Each kind with each place that a task of it can die at."""
    return [_case(kind, place) for kind, its in KINDS.items() for place in (*TASKS, *its.own_tasks)]


def stops() -> list[ParameterSet]:
    """Each kind with each place that a driver sleeps at while another takes over."""
    return [_case(kind, place) for kind in KINDS for place in STOPPED]


def each() -> list[ParameterSet]:
    """Each kind."""
    return [_case(kind) for kind in KINDS]


def rowwise() -> list[ParameterSet]:
    """Each kind that takes rows as they are."""
    return [_case(kind) for kind, its in KINDS.items() if its.query == "map"]


def with_servers() -> list[ParameterSet]:
    """Each kind that has a server of its own."""
    return [_case(kind) for kind, its in KINDS.items() if its.servers]


def _case(*values: str, thin: bool = False) -> ParameterSet:
    marks = () if thin else (pytest.mark.proof,)
    return pytest.param(*values, marks=marks, id="-".join(values))
