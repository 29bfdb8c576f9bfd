"""The table of the page's states, row by row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from airflow_eos.checkpoint import DrainRequest
from airflow_eos.checkpoint.heartbeat import ENDED, Phase
from airflow_eos.checkpoint.snapshot import Snapshot
from airflow_eos.page.pipeline_state import STALL_AFTER_MS, state_of
from airflow_eos.page.views import Stage, State
from tests.unit.recovery.facts_of import NOW, checkpoint, heartbeat

DRAIN = DrainRequest(requested_by="ann", reason="an upgrade", requested_at_ms=NOW)
LONG_AGO = NOW - STALL_AFTER_MS - 2_000
OLD = {"committed_at_ms": LONG_AGO, "planned_at_ms": LONG_AGO}


SILENT, LOOKED_AT_ONCE = heartbeat(), heartbeat()


def is_going(beat):
    return beat is not None and beat.phase not in ENDED


def started_long_ago(**changes):
    return msgspec.structs.replace(heartbeat(**changes), started_at_ms=LONG_AGO)


def seen(state, beat, unheard=""):
    return Snapshot(
        pipeline=None,
        state=state,
        batch=state.latest_offsets,
        decisions=(),
        accepted=None,
        heartbeat=beat,
        unheard=unheard,
        read_at_ms=NOW,
    )


@pytest.mark.parametrize(
    ("state", "beat", "drain", "expected", "because"),
    [
        (checkpoint(None, None), None, None, "new", "no driver has run"),
        (checkpoint(), heartbeat("stopped"), None, "stopped", "the driver stopped"),
        (checkpoint(), heartbeat("failed"), None, "failed", "the driver failed"),
        # A commit a moment ago is no life where the driver has said since that it failed.
        (
            checkpoint(5, 5, committed_at_ms=NOW - 5_000),
            heartbeat("failed", age_ms=100),
            None,
            "failed",
            "the driver failed",
        ),
        (checkpoint(), SILENT, None, "silent", "has fallen silent"),
        (checkpoint(), LOOKED_AT_ONCE, None, "looking", "shows at a second look"),
        (checkpoint(), None, None, "silent", "no driver has ever written"),
        (checkpoint(), heartbeat(), DRAIN, "draining", "asked to stop by ann: an upgrade"),
        (checkpoint(), heartbeat("stopped"), DRAIN, "stopped", "the driver stopped"),
        (checkpoint(), heartbeat(), None, "running", "the driver started"),
        (
            checkpoint(5, 5, committed_at_ms=NOW - 1_500),
            heartbeat("waiting"),
            None,
            "running",
            "batch 5 was committed",
        ),
        (checkpoint(5, 5, **OLD), started_long_ago(phase="waiting"), None, "idle", "alive"),
        (checkpoint(5, 4, **OLD), started_long_ago(), None, "stalled", "is in flight for"),
    ],
)
def test_the_first_evidence_that_holds_decides(state, beat, drain, expected, because):
    alive = {id(SILENT): False, id(LOOKED_AT_ONCE): None}.get(id(beat), is_going(beat))
    found, reason = state_of(seen(state, beat), drain, alive=alive, beaten_at_ms=NOW)
    assert found == expected
    assert because in reason


@pytest.mark.parametrize(
    ("phase", "told", "expected"),
    [
        (
            "failed",
            {"reason": "TopicError: it is gone"},
            "the driver failed: TopicError: it is gone",
        ),
        ("failed", {}, "the driver failed"),
        (
            "stopped",
            {"reason": "cli ann: a release", "drained_by": "cli ann"},
            "the driver stopped, asked to by cli ann: a release",
        ),
        ("stopped", {}, "the driver stopped"),
    ],
)
def test_what_a_driver_ended_with_is_said_with_it(phase, told, expected):
    beat = msgspec.structs.replace(heartbeat(phase, age_ms=2_000), **told)
    _, reason = state_of(seen(checkpoint(), beat), None, alive=False, beaten_at_ms=NOW)
    assert reason.endswith(expected)


def test_a_heartbeat_that_cannot_be_read_is_no_driver_that_never_was():
    found = seen(checkpoint(), None, unheard="it is damaged")
    assert state_of(found, None, alive=None, beaten_at_ms=NOW) == ("unreadable", "it is damaged")


def test_the_guide_names_each_state_phase_and_stage_that_the_page_shows():
    guide = (Path(__file__).parents[3] / "docs" / "page.md").read_text(encoding="utf-8")
    table = guide.partition("| state | meaning")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| (\w+) \|", table, re.MULTILINE)) == set(get_args(State))
    assert {f"`{name}`" for name in (*get_args(Phase), *get_args(Stage))} <= set(
        re.findall(r"`\w+`", guide)
    )
