"""What people read: complete at 100 columns."""

from __future__ import annotations

import pytest

from airflow_eos.audit.audit import AuditReport, Offender, _text
from airflow_eos.commands.audit import audit_view
from airflow_eos.recovery.plan import make_plan
from airflow_eos.recovery.tables import plan_view
from airflow_eos.tables import as_text, duration, time_left
from tests.unit.recovery.facts_of import (
    commit,
    facts,
    prepared,
    still_open,
    what_became,
)


def test_plan_as_a_table_at_100_columns():
    a, b, c, d = (prepared(task, content=str(task)) for task in range(4))
    plan = make_plan(
        facts(
            listed=(still_open(a), still_open(d)),
            decisions=(commit(a, b, c),),
            outcomes=what_became(aborted=[b], unknown=[c]),
            alive=("driver app-1 gave a heartbeat while it was looked at",),
        )
    )

    text = as_text(plan_view(plan))

    assert max(len(line) for line in text.splitlines()) <= 100
    words = " ".join(text.split())
    for word in ("COMMIT", "ABORT", "REPLAY", "ASK", "40.0 s", "20.0 s", "orders-etl-0-0", "ALIVE"):
        assert word in words


def test_nothing_to_do_is_said():
    assert "Nothing to do" in as_text(plan_view(make_plan(facts())))


def test_what_comes_from_a_topic_is_neither_markup_nor_a_terminal_command():
    row = Offender("lost", "in", 0, 1, "[red]k[/red]", _text(b"\x1b[31mid"))
    report = AuditReport(
        input_topics=("in",),
        output_topics=("out",),
        rows_in=1,
        rows_out={"out": 0},
        lost=1,
        duplicated=0,
        reordered=0,
        unexpected=0,
        visible_undecided=None,
        open_rows=0,
        open_partitions=(),
        unidentified=0,
        matched=1,
        unjudged=(),
        offenders=(row,),
        seconds=0.1,
    )

    text = as_text(audit_view(report))

    assert "[red]k[/red]" in text
    assert "\x1b" not in text
    assert "VIOLATED" in text


def test_a_transaction_past_its_timeout_is_due():
    assert [time_left(each) for each in (None, -1, 0, 1_000)] == ["", "due", "due", "1.0 s"]


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, ""),
        (-5, "0.0 s"),
        (4_200, "4.2 s"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_duration(milliseconds, text):
    assert duration(milliseconds) == text
