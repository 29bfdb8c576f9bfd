"""The plan on the page and in the shell: the same words."""

from __future__ import annotations

from airflow_eos.page.board import view
from airflow_eos.recovery.plan import make_plan
from airflow_eos.recovery.tables import plan_view
from airflow_eos.tables import as_text
from tests.unit.recovery.facts_of import commit, facts, prepared, still_open

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
