"""What the clock of ``benchmarks.first_row`` is stopped by."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.first_row import said_at

SAID = ["A broker is up", "Recovered, once", "Recovered, twice", "lost 0"]


def test_the_first_time_counts():
    seconds = itertools.count(10)
    assert said_at(SAID, ("Recovered", "lost 0"), lambda: next(seconds)) == {
        "Recovered": 10,
        "lost 0": 12,
    }


def test_what_was_not_said_gives_no_figure():
    with pytest.raises(SystemExit, match="No figure is given"):
        said_at(SAID[:2], ("Recovered", "lost 0"), lambda: 0.0)
