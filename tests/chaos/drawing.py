"""What every maker of a fault draws from chance."""

from __future__ import annotations

import random
from typing import Any

from tests.chaos.scenario import Incident

MANY = 160
"""Rows for several batches, where batches are small."""


def nth(chance: random.Random) -> int:
    return chance.choices((1, 2, 3), (3, 4, 2))[0]


def incident(chance: random.Random, **what: Any) -> Incident:
    """The rest is usual: a parallelism, and rows to begin with."""
    width, feed = chance.choice((2, 3, 3, 5)), chance.choice((10, 60, 120))
    return Incident(**{"width": width, "feed": feed, **what})
