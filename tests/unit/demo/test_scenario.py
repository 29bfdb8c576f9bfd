"""The four deaths are those that were asked for, at places that exist."""

from __future__ import annotations

import re
from pathlib import Path

import airflow_eos
from demo.scenario import ACTS, failpoints

PACKAGE = Path(airflow_eos.__file__).parent


def test_the_app_dies_undecided_then_uncommitted_then_half_committed_then_timed_out():
    assert [(act.failpoint, act.until_timeout) for act in ACTS] == [
        ("prepared", False),
        ("decided", False),
        ("settled-some", False),
        ("decided", True),
    ]


def test_every_place_is_armed_once():
    assert failpoints() == "prepared=kill@3,decided=kill@3,settled-some=kill@3"


def test_every_place_exists_in_the_code():
    code = "".join(
        path.read_text()
        for room in ("delivery", "kinds", "kafka")
        for path in (PACKAGE / room).rglob("*.py")
    )
    places = set(re.findall(r'failpoint\("([a-z-]+)"\)', code))

    assert {act.failpoint for act in ACTS} <= places
