"""What a button does."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowException

from airflow_eos.checkpoint.heartbeat import Replacement, note_resumption
from airflow_eos.errors import ConfigurationError
from airflow_eos.plugins import actions as acting
from tests.unit.page.conftest import listed

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("failed", "says"), [(19, "__19"), (20, "clear that run")])
def test_after_so_many_starts_that_failed_it_says_what_to_do(tmp_path, monkeypatch, failed, says):
    found = [(f"resume__first__{n}", "failed") for n in range(failed)]
    session = SimpleNamespace(execute=lambda _: SimpleNamespace(all=lambda: found))
    monkeypatch.setattr(acting, "create_session", lambda: nullcontext(session))
    monkeypatch.setattr(acting, "_triggered", lambda _dag, run_id, *_: run_id)
    etl = dataclasses.replace(listed(tmp_path), dag_id="etl")
    assert says in acting.resume(etl, "ann")


def test_the_page_counts_the_starts_that_airflow_has_forgotten(tmp_path, monkeypatch):
    """`airflow db clean`: the newest that began is in the checkpoint."""
    session = SimpleNamespace(execute=lambda _: SimpleNamespace(all=list))
    monkeypatch.setattr(acting, "create_session", lambda: nullcontext(session))
    monkeypatch.setattr(acting, "_triggered", lambda _dag, run_id, *_: run_id)
    etl = dataclasses.replace(listed(tmp_path), dag_id="etl")
    assert acting.resume(etl, "ann") == "resume__first__0"
    begun = Replacement(driver="first", number=5, limit=20, by="run resume__first__4 of etl")
    note_resumption(etl.open(), begun)
    assert acting.resume(etl, "ann") == "resume__first__5"


@pytest.mark.parametrize("kind", [AirflowException, ValueError])
def test_a_dag_that_airflow_starts_by_hand_alone_is_said_to_be_one(tmp_path, monkeypatch, kind):
    def refuse(*_, **__):
        raise kind("No value passed for Param region")

    session = SimpleNamespace(execute=lambda _: SimpleNamespace(all=list))
    monkeypatch.setattr(acting, "create_session", lambda: nullcontext(session))
    monkeypatch.setattr(acting, "trigger_dag", refuse)
    etl = dataclasses.replace(listed(tmp_path), dag_id="etl")
    with pytest.raises(ConfigurationError, match=r"No value passed.*Trigger etl by hand"):
        acting.resume(etl, "ann")


def test_recover_starts_the_dag_that_recovers_and_no_other(tmp_path, monkeypatch):
    session = SimpleNamespace(scalars=lambda _: SimpleNamespace(first=lambda: None))
    monkeypatch.setattr(acting, "create_session", lambda: nullcontext(session))
    started = []
    monkeypatch.setattr(acting, "trigger_dag", lambda dag_id, **_: started.append(dag_id))
    etl = dataclasses.replace(listed(tmp_path), dag_id="etl", recovery_dag_id="etl_recovery")
    assert "Started etl_recovery" in acting.recover(etl, "ann", "n1")
    assert started == ["etl_recovery"]
