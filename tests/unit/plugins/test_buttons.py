"""When which button may be pressed, and by whom: a table."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import HTTPException

from airflow_eos.page.views import Beat, PipelineRow, Promised
from airflow_eos.plugins.actions import Allowed, asked_of, buttons
from airflow_eos.plugins.application import Tokens
from tests.unit.page.conftest import listed

PIPELINE = listed("/c", dag_id="etl", task_id="run", recovery_dag_id="rec")
ALL = Allowed(edit=True, run=frozenset({"etl", "rec"}), paused={"etl": False, "rec": False})


def row(state, **changes):
    told: dict[str, Any] = {
        "id": "x",
        "name": "orders",
        "location": "/c",
        "reason": "why",
        "looked_at_ms": 1,
    }
    return PipelineRow(state=state, **(told | changes))


def pressable(state, allowed=ALL, pipeline=PIPELINE):
    made = buttons(pipeline, row(state), allowed, lambda name: f"token of {name}")
    assert all(bool(each.token) != bool(each.not_now) for each in made)
    return {each.name for each in made if each.token}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("running", {"drain"}),
        ("idle", {"drain"}),
        ("stalled", {"drain"}),
        ("draining", set()),
        ("stopped", {"recover", "resume"}),
        ("failed", {"recover", "resume"}),
        ("silent", {"recover", "resume"}),
        ("new", {"recover", "resume"}),
        ("unreadable", {"recover"}),
    ],
)
def test_who_lives_is_drained_and_who_does_not_is_brought_back(state, expected):
    assert pressable(state) == expected


@pytest.mark.parametrize(
    ("state", "allowed", "expected"),
    [
        ("running", Allowed(edit=False, run=ALL.run, paused=ALL.paused), set()),
        ("silent", Allowed(edit=True, run=frozenset(), paused=ALL.paused), set()),
        ("silent", Allowed(edit=True, run=frozenset({"rec"}), paused=ALL.paused), {"recover"}),
        (
            "silent",
            Allowed(edit=True, run=ALL.run, paused={"etl": True, "rec": False}),
            {"recover"},
        ),
        ("silent", Allowed(edit=True, run=ALL.run, paused={"etl": False}), {"resume"}),
    ],
)
def test_who_may_not_or_would_wait_for_ever_is_told_so(state, allowed, expected):
    assert pressable(state, allowed) == expected


def test_what_no_dag_recovers_cannot_be_recovered_from_here():
    alone = listed("/c", dag_id="etl", task_id="run")
    assert pressable("silent", pipeline=alone) == {"resume"}


def test_the_confirmation_says_what_is_promised():
    promised = Promised(3, 1_200, 1, 2)
    _, recover, _ = buttons(PIPELINE, row("silent", promised=promised), ALL, str)
    assert any("3 pieces of work with 1,200 rows" in each for each in recover.says)


def test_a_drain_that_was_confirmed_for_one_driver_is_not_one_of_the_next():
    def shown(application_id):
        beat = Beat(
            application_id=application_id,
            host="h",
            phase="waiting",
            beat_at_ms=1,
            started_at_ms=1,
            interval_ms=1,
            trigger_ms=1,
        )
        return row("running", heartbeat=beat)

    tokens = Tokens("secret")
    token = tokens.make("ann", "p", asked_of("drain", shown("app-1")))
    assert tokens.nonce(token, "ann", "p", asked_of("drain", shown("app-1")))
    with pytest.raises(HTTPException, match="or driver"):
        tokens.nonce(token, "ann", "p", asked_of("drain", shown("app-2")))
    assert asked_of("recover", shown("app-1")) == "recover"
