"""A pipeline on the page: the table of states, its batches and rates, its plan."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from airflow_eos.core.checkpoint import CheckpointStore, DrainRequest
from airflow_eos.core.checkpoint.decisions import DecisionLog, sealed
from airflow_eos.core.checkpoint.heartbeat import ENDED, Phase
from airflow_eos.core.checkpoint.snapshot import Snapshot, read_snapshot
from airflow_eos.core.protocol.decision import AT_A_START, IN_PLACE_OF_A_FORMER
from airflow_eos.core.recovery.plan import make_plan
from airflow_eos.ops.page.board import view
from airflow_eos.ops.page.pipeline_state import (
    STALL_AFTER_MS,
    Batches,
    PlannedBatch,
    _story,
    mean_rate,
    rates,
    state_of,
)
from airflow_eos.ops.page.views import Rate, Stage, State
from airflow_eos.ops.plan_tables import plan_view
from airflow_eos.ops.tables import as_text
from tests.unit.core.checkpoint.conftest import TroubledBackend
from tests.unit.core.recovery.facts_of import (
    NOW,
    checkpoint,
    commit,
    facts,
    heartbeat,
    prepared,
    still_open,
)

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
        (checkpoint(), LOOKED_AT_ONCE, None, "looking", "is known within"),
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
        (
            checkpoint(5, 5, **OLD),
            started_long_ago(phase="waiting"),
            None,
            "idle",
            "no commit for 5 minutes 2 seconds, with nothing in flight",
        ),
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
            "the driver stopped, drained by ann at a command line: a release",
        ),
        (
            "stopped",
            {"reason": "page ann: asked on the pipelines page", "drained_by": "page ann"},
            "the driver stopped, drained by ann on the page of pipelines",
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
    guide = (Path(__file__).parents[4] / "docs" / "page.md").read_text(encoding="utf-8")
    table = guide.partition("| state | meaning")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| (\w+) \|", table, re.MULTILINE)) == set(get_args(State))
    assert {f"`{name}`" for name in (*get_args(Phase), *get_args(Stage))} <= set(
        re.findall(r"`\w+`", guide)
    )


# --- The newest batches of a checkpoint: what they say, and what asking again costs ---------------


def offsets(end: int, at_ms: int) -> bytes:
    metadata = f'{{"batchWatermarkMs":0,"batchTimestampMs":{at_ms},"conf":{{}}}}'
    return f'v1\n{metadata}\n{{"in":{{"0":{end}}}}}'.encode()


@pytest.fixture
def backend() -> TroubledBackend:
    return TroubledBackend()


@pytest.fixture
def store(backend) -> CheckpointStore:
    store = CheckpointStore(backend, "memory://test")
    store.put("sources/0/0", b'\0v1\n{"in":{"0":5}}')
    for batch in range(4):
        store.put(f"offsets/{batch}", offsets(10 * (batch + 1), 1_000 * (batch + 1)))
    for batch in range(3):
        store.put(f"commits/{batch}", b"v1\n{}")
    return store


def test_each_says_its_rows_when_it_was_planned_and_whether_it_is_complete(store):
    found = Batches().newest(store)
    assert [(b.batch, b.rows, b.planned_at_ms) for b in found] == [
        (0, 5, 1_000),
        (1, 10, 2_000),
        (2, 10, 3_000),
        (3, 10, 4_000),
    ]
    assert [b.committed_at_ms is not None for b in found] == [True, True, True, False]


def test_the_oldest_that_is_shown_has_its_rows_although_the_one_before_is_not(store):
    assert [(b.batch, b.rows) for b in Batches().newest(store, 2)] == [(2, 10), (3, 10)]


def test_where_the_batch_before_is_gone_its_rows_are_not_known(store):
    store.delete(["offsets/0", "offsets/1"])
    assert [(b.batch, b.rows) for b in Batches().newest(store)] == [(2, None), (3, 10)]


def test_what_was_tried_is_numbered_from_1_and_a_starts_own_seal_is_not_shown(store):
    """Of a first attempt the page said "attempt 2", and showed a fault before it."""
    log = DecisionLog(store)
    for attempt, reason in enumerate((AT_A_START, "failed: OSError", IN_PLACE_OF_A_FORMER), 1):
        log.record(sealed(3, attempt, reason=reason, decided_by="d"))
    log.record(commit(prepared(0), batch=3, attempt=4))
    found = read_snapshot(store)
    story = _story(store, found, Batches().newest(store)[-1])
    assert [(each.attempt, each.verdict) for each in story.attempts] == [
        (1, "abort"),
        (2, "abort"),
        (3, "commit"),
    ]


def test_what_has_not_changed_is_not_read_again(store, backend):
    batches = Batches()
    batches.newest(store)
    backend.calls.clear()
    batches.newest(store)
    assert backend.calls == {"list": 2, "get": 1}, "two listings, and where the source began"


def test_an_entry_that_a_late_rename_has_replaced_is_read_again(store):
    batches = Batches()
    batches.newest(store)
    store.put("offsets/3", offsets(1_000, 4_000))
    assert batches.newest(store)[-1].rows == 970


def test_a_checkpoint_without_batches_has_none():
    assert Batches().newest(CheckpointStore(TroubledBackend(), "memory://new")) == ()


# --- Rows a second, of batches that take long and of pauses between them --------------------------


BATCHES = (
    PlannedBatch(0, 10_000, 11_000, 500),
    PlannedBatch(1, 12_000, 12_500, 100),
    PlannedBatch(2, 14_000, None, 900),
)


def test_a_pause_after_a_batch_counts_and_what_is_in_flight_does_not():
    assert rates(BATCHES) == (Rate(10_000, 12_000, 250.0), Rate(12_000, 14_000, 50.0))


def test_a_long_pause_is_a_gap_and_no_slow_batch():
    """After an outage of nine minutes the line of the list rose, as if it were growing."""
    late = PlannedBatch(1, 600_000, 601_000, 100)
    assert rates((BATCHES[0], late)) == (Rate(10_000, 11_000, 500.0), Rate(600_000, 601_000, 100.0))
    assert rates((BATCHES[0], late), trigger_ms=600_000)[0] == Rate(10_000, 600_000, 0.8)


def test_the_newest_batch_counts_as_long_as_the_one_before():
    """Each line ended in a spike: of the newest alone the time until the next was not counted."""
    assert [each.rows_per_s for each in rates(BATCHES[:2])] == [250.0, 50.0]


def test_a_batch_whose_rows_nobody_knows_has_no_rate():
    assert rates((PlannedBatch(0, 1_000, 2_000, None),)) == ()


def test_the_mean_is_of_the_last_minute():
    old = PlannedBatch(0, 0, 1_000, 1_000_000)
    new = (PlannedBatch(1, 200_000, 201_000, 300), PlannedBatch(2, 201_000, 202_000, 100))
    assert mean_rate((old, *new), now_ms=261_000) == 200.0


def test_who_has_committed_nothing_for_a_minute_is_at_nought():
    assert mean_rate(BATCHES[:2], now_ms=72_501) == 0.0


def test_clocks_that_differ_divide_by_no_nought():
    assert rates((PlannedBatch(0, 5_000, 4_000, 3),)) == (Rate(5_000, 5_001, 3_000.0),)


def test_of_no_batch_there_is_no_rate():
    assert rates(()) == ()
    assert mean_rate((), now_ms=1) is None


# --- The plan on the page and in the shell: the same words ----------------------------------------


PLAN = make_plan(
    facts(
        decisions=(commit(prepared(0)),),
        listed=(still_open(prepared(0)), still_open(prepared(1), key="orders-etl-1-0-9-0")),
    )
)


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_every_cell_of_the_shells_table_is_on_the_page_and_no_other():
    shown = view(PLAN, unread=None)
    assert {line.action for line in shown.lines} == {"COMMIT", "ABORT"}
    lines = [
        squeezed(f"{line.action} {line.work} {line.age} {line.left} {line.rows} {line.why}")
        for line in shown.lines
    ]
    shell = squeezed(as_text(plan_view(PLAN), width=400))
    told = [shown.headline, "action work age left rows why", *lines, *shown.remarks]
    assert shell == " ".join([f"{PLAN.location}:", *told]), "whose plan it is, the page has said"


def test_open_work_has_the_time_at_which_its_system_ends_it():
    shown = view(PLAN, unread=7)
    assert {each.key for each in shown.open} == {each.key for each in PLAN.listed}
    assert all(each.ends_at_ms == each.opened_at_ms + 60_000 for each in shown.open)
    assert shown.unread == 7
