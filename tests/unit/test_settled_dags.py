"""The DAGs that run because rows are there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from airflow_eos.events import SettledEvent
from tests.support.by_asset import ByAsset

FILE = Path(__file__).parents[2] / "dags" / "eos_settled.py"


def event(first: int, last: int) -> SettledEvent:
    return SettledEvent(
        pipeline="p",
        from_batch=first,
        to_batch=last,
        start={"0": {"orders": {"0": 10 * first}}},
        end={"0": {"orders": {"0": 10 * (last + 1)}}},
        rows={"sink": 10 * (last + 1 - first)},
        watermark_ms=None,
        settled_at_ms=1,
    )


@pytest.fixture(scope="module")
def dags() -> ModuleType:
    spec = importlib.util.spec_from_file_location("eos_settled", FILE)
    assert spec is not None
    made: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def run(dags, monkeypatch) -> Callable[..., Any]:
    """A task of a DAG, in a run that these events have started."""

    def go(dag_id: str, task_id: str, *events: SettledEvent, **params: Any) -> Any:
        told = [SimpleNamespace(extra=each.as_extra()) for each in events]
        foreign = SimpleNamespace(extra={"made": "by hand"})
        context = {
            "triggering_asset_events": ByAsset(dags.SETTLED, [*reversed(told), foreign]),
            "params": params,
        }
        monkeypatch.setattr(dags, "get_current_context", lambda: context)
        return getattr(dags, dag_id)().get_task(task_id).python_callable()

    return go


def test_a_run_gets_the_ranges_it_was_started_by_in_their_order(run):
    assert run("eos_settled_report", "report", event(0, 4), event(5, 5)) == ["p/0-4", "p/5-5"]


def test_of_all_runs_one_acts_when_rows_up_to_an_offset_are_there(run):
    wanted = {"orders": {"0": 55}}
    ranges = [(0, 3), (4, 4), (5, 8), (9, 9)]
    acted = [
        span for span in ranges if run("eos_rows_are_there", "are_there", event(*span), upto=wanted)
    ]
    assert acted == [(5, 8)]


def test_several_events_of_one_run_are_looked_at_one_by_one(run):
    events = [event(0, 3), event(4, 6), event(7, 9)]
    assert run("eos_rows_are_there", "are_there", *events, upto={"orders": {"0": 55}})


def test_the_emitter_is_alone_waits_and_goes_on_for_ever(dags):
    emitter = dags.eos_settled.get_task("emit")
    assert dags.eos_settled.task_ids == ["emit"]
    assert (emitter.deferrable, emitter.max_active_tis_per_dag) == (True, 1)
    assert dags.eos_settled.start_date is not None, "else @continuous stops after its first run"
    assert dags.eos_settled.max_active_runs == 1
