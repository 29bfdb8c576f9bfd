"""When which button may be pressed, by whom and from where, and what it does."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from fastapi import HTTPException, Request
from fastapi.testclient import TestClient

from airflow_eos.core.checkpoint.drain import BY_AIRFLOW, BY_STANDBY
from airflow_eos.core.checkpoint.recovery_notes import Replacement, note_resumption
from airflow_eos.errors import ConfigurationError
from airflow_eos.ops.page.views import (
    DetailView,
    Drain,
    HeartbeatView,
    PipelineRow,
    Promised,
    Starter,
)
from airflow_eos.plugins import actions as acting
from airflow_eos.plugins import application
from airflow_eos.plugins import application as origin
from airflow_eos.plugins.actions import Allowed, asked_of, buttons
from airflow_eos.plugins.application import HEADER, Tokens, require_own
from tests.unit.ops.page.conftest import listed

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
    ("by", "expected"), [("cli ops", False), (BY_AIRFLOW, True), (BY_STANDBY, True)]
)
def test_who_ends_for_somebody_to_go_on_may_be_stopped_by_a_person(by, expected):
    """Told that it drains already, he would take the pipeline for stopped."""
    ends = row("draining", drain=Drain(by, "why", 1))
    drain, _, _ = buttons(PIPELINE, ends, ALL, lambda name: name)
    assert bool(drain.token) is expected


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
        beat = HeartbeatView(
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


# --- What a button does ---------------------------------------------------------------------------


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


# --- origin ---------------------------------------------------------------------------------------
# What changes something comes from the page, from who was asked, and a few minutes ago at most.


OWN = {"airflow.example:8080"}
TOKENS = Tokens("a secret")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://airflow.example:8080", "sec-fetch-site": "same-origin"},
        {"origin": "http://airflow.example:8080"},
        {},  # a client that is no browser, and sends no cookie by itself
    ],
)
def test_the_page_itself_may_ask(headers):
    require_own(headers | {HEADER: "token"}, OWN)


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "https://airflow.example"},
        {"origin": "null"},
    ],
)
def test_another_site_may_not(headers):
    with pytest.raises(HTTPException) as refused:
        require_own(headers | {HEADER: "token"}, OWN)
    assert refused.value.status_code == 403


def test_a_form_that_cannot_set_a_header_may_not():
    with pytest.raises(HTTPException, match=HEADER):
        require_own({"origin": "http://airflow.example:8080"}, OWN)


def test_a_confirmation_has_a_nonce_of_its_own():
    made = [TOKENS.make("ann", "p", "drain") for _ in range(2)]
    nonces = {TOKENS.nonce(each, "ann", "p", "drain") for each in made}
    assert len(nonces) == 2
    assert TOKENS.nonce(made[0], "ann", "p", "drain") in nonces


@pytest.mark.parametrize(
    "asked", [("vic", "p", "drain"), ("ann", "q", "drain"), ("ann", "p", "resume")]
)
def test_it_is_of_one_user_one_pipeline_and_one_button(asked):
    token = TOKENS.make("ann", "p", "drain")
    with pytest.raises(HTTPException, match="another user, pipeline, button or driver"):
        TOKENS.nonce(token, *asked)


def test_one_that_is_not_signed_by_airflow_is_none():
    for token in ("", "x.y.z", Tokens("another secret").make("ann", "p", "drain")):
        with pytest.raises(HTTPException, match="no confirmation"):
            TOKENS.nonce(token, "ann", "p", "drain")


def test_one_that_is_too_old_is_asked_for_again(monkeypatch):
    token = TOKENS.make("ann", "p", "drain")
    monkeypatch.setattr(origin, "MAX_AGE_S", -1)
    with pytest.raises(HTTPException, match="too old"):
        TOKENS.nonce(token, "ann", "p", "drain")


# --- The page in Airflow's API server, where Airflow does not say who asks ------------------------


async def of_the_header_alone() -> Any:
    """As Airflow 3.1.0 looks for a user."""
    raise HTTPException(401, "Not authenticated")


async def of_a_cookie_too(request: Request) -> Any:
    """As later ones do."""
    assert request
    raise HTTPException(401, "Not authenticated")


class Login:
    def get_url_login(self, *, next_url: str) -> str:
        return f"/auth/login?next={next_url}"


@pytest.mark.parametrize(
    ("get_user", "status", "says"),
    [(of_the_header_alone, 401, "needs Airflow"), (of_a_cookie_too, 307, "")],
)
def test_who_cannot_be_known_is_told_so_and_not_sent_round_in_circles(
    monkeypatch, get_user, status, says
):
    monkeypatch.setenv("AIRFLOW__API__SECRET_KEY", "a secret of this test")
    monkeypatch.setattr(application, "get_user", get_user)
    monkeypatch.setattr(application, "get_auth_manager", Login)
    client = TestClient(application.application(), follow_redirects=False)
    answer = client.get("/", headers={"accept": "text/html"})
    assert answer.status_code == status
    assert says in answer.text


# --- What is around a pipeline: links, and which task looks after it ------------------------------


def around(monkeypatch, *, state, silent_s=1.0, dag_id="etl", map_index=-1):
    at = datetime.now(UTC) - timedelta(seconds=silent_s)
    found = None if state is None else (state, at)
    answer = SimpleNamespace(execute=lambda _: SimpleNamespace(first=lambda: found))
    monkeypatch.setattr(application, "create_session", lambda: nullcontext(answer))
    by = Starter(dag_id, "run", "manual__1 a/b", map_index)
    heart = HeartbeatView("app-1", "h", "waiting", 1, 1, 2000, 1000, by)
    pipeline = dataclasses.replace(PIPELINE, watchdogs=(("dog", False),))
    detail = DetailView(row=row("running", heartbeat=heart))
    return origin.Airflow(Tokens("s")).around(pipeline, detail)


@pytest.mark.parametrize(
    ("state", "silent_s", "said"),
    [
        ("running", 1, "by task etl.run"),
        ("running", 100, "perhaps by nobody: task etl.run has given no heartbeat for 100 s"),
        ("deferred", 9_000, "by task etl.run, in the triggerer"),
        ("failed", 1, "by nobody now: task etl.run is failed"),
        (None, 1, "by nobody now: task etl.run is no longer known"),
    ],
)
def test_that_nobody_looks_after_a_driver_that_goes_on_is_said(monkeypatch, state, silent_s, said):
    """Its worker was killed, and the page said "running" for five minutes, and nothing else."""
    assert around(monkeypatch, state=state, silent_s=silent_s).supervised == said


def test_links_lead_to_the_tasks_log_the_recovery_and_the_watchdog(monkeypatch):
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://h:8080/below/")
    assert [(each.label, each.address) for each in around(monkeypatch, state="running").links] == [
        ("Log of the task", "/below/dags/etl/runs/manual__1%20a%2Fb/tasks/run"),
        ("Recovery DAG", "/below/dags/rec"),
        ("Watchdog", "/below/dags/dog"),
    ]
    mapped = around(monkeypatch, state="running", map_index=3).links[0]
    assert mapped.address.endswith("/tasks/run/mapped/3")


def test_a_checkpoint_leads_to_no_other_dag_than_its_own(monkeypatch):
    """Who may write it may name any: its viewer may not see that one."""
    found = around(monkeypatch, state="running", dag_id="secret")
    assert found.supervised is None
    assert [each.label for each in found.links] == ["Recovery DAG", "Watchdog"]
