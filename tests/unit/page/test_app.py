"""The routes: what they say of recorded checkpoints, that they change nothing, and who comes in."""

from __future__ import annotations

import os
import re
import shutil
from importlib.resources import files

import msgspec
import pytest
from fastapi import HTTPException
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.standby import write_standby
from airflow_eos.page import views
from airflow_eos.page.app import Checkpoints, create_app, standalone
from airflow_eos.page.board import Board
from airflow_eos.page.pipeline_state import Look
from airflow_eos.page.views import Reach
from tests.support.beats import standby
from tests.unit.page.conftest import contents, listed


@pytest.fixture
def client(recorded):
    app = standalone([str(each) for each in recorded.values()], Reach())
    with TestClient(app, base_url="http://127.0.0.1:8642") as client:
        yield client


def board(client) -> views.BoardView:
    return msgspec.json.decode(client.get("/api/pipelines").content, type=views.BoardView)


def test_the_list_says_of_a_killed_pipeline_what_its_checkpoint_says(client):
    settling, undecided = board(client).rows
    assert (settling.name, settling.state) == ("killed-settling", "looking")
    assert (settling.batch, settling.in_flight, settling.lag_rows) == (1, 2, 300)
    assert settling.promised is not None
    assert (settling.promised.works, settling.promised.rows) == (3, 300)
    assert undecided.promised is None, "nothing was decided, so nothing is promised"
    assert settling.rows_per_s is None, "nobody is there to write them"
    assert len(settling.rates) == 2


def test_who_stands_by_is_said_beside_the_pipeline_once_it_was_seen_to(tmp_path, recorded):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(recorded["killed-settling"], checkpoint)
    store, look = CheckpointStore.open(checkpoint), Look(listed(checkpoint), 300_000)
    said = standby(interval_ms=60_000)
    write_standby(store, said)
    assert "whether it does shows in a moment" in look.row().remarks[-1]
    write_standby(store, msgspec.structs.replace(said, beat=1))
    assert look.row().remarks[-1] == "driver app-2 on h stands by"


def test_one_pipeline_has_its_batches_with_every_decision(client):
    row = board(client).rows[0]
    answer = client.get(f"/api/pipelines/{row.id}")
    detail = msgspec.json.decode(answer.content, type=views.DetailView)
    assert [(b.batch, b.stage, b.rows) for b in detail.batches] == [
        (2, "settling", 300),
        (1, "committed", 300),
        (0, "committed", 300),
    ]
    assert [a.verdict for a in detail.batches[2].attempts] == ["sealed", "commit"]
    flying = detail.batches[0]
    assert flying.attempts[0].opened_at_ms is not None
    assert flying.planned_at_ms <= flying.attempts[0].opened_at_ms[0]
    assert flying.attempts[0].opened_at_ms[1] <= flying.attempts[0].decided_at_ms
    assert detail.participants[0].address["transactional_id_prefix"] == "killed-settling"
    assert detail.actions == ()


def test_a_plan_that_cannot_be_made_says_why(client):
    row = board(client).rows[0]
    plan = client.get(f"/api/pipelines/{row.id}/plan").json()
    assert "was not told which cluster" in plan["error"]
    assert plan["untold"], "which is no failure"
    # Whoever looks at a page has no command line to give an option to: but for who started it.
    assert "start it again with the brokers: airflow-eos ui" in plan["error"]
    assert "--bootstrap-servers" not in plan["error"]


def test_asking_changes_nothing(client, recorded):
    before = [contents(each) for each in recorded.values()]
    for row in board(client).rows:
        for path in ("", "/plan"):
            assert client.get(f"/api/pipelines/{row.id}{path}").status_code == 200
    assert [contents(each) for each in recorded.values()] == before


def test_the_page_without_airflow_has_no_route_that_is_more_than_a_get(recorded):
    app = standalone([str(recorded["killed-settling"])], Reach())
    routes = [each for each in app.routes if isinstance(each, APIRoute)]
    assert {method for each in routes for method in each.methods} == {"GET"}
    assert len(routes) == len(app.routes) == 5


@pytest.mark.parametrize("path", ["", "static/page.js", "static/page.css", "api/pipelines"])
def test_what_the_browser_may_load_is_said_with_everything(client, path):
    answer = client.get(f"/{path}")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_names_no_address_but_its_own():
    static = files("airflow_eos.page") / "static"
    for file in static.iterdir():
        text = file.read_text(encoding="utf-8")
        found = set(re.findall(r"(?:https?:)?//[a-z0-9][\w.-]+", text))
        assert found <= {"http://www.w3.org"}, file.name
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


def test_every_file_of_the_page_is_served_and_no_other(client):
    static = files("airflow_eos.page") / "static"
    for file in static.iterdir():
        path = "/" if file.name == "index.html" else f"/static/{file.name}"
        assert client.get(path).content == file.read_bytes()
    assert client.get("/static/..%2Fapp.py").status_code == 404
    assert client.get("/static/app.py").status_code == 404


def test_a_name_that_leads_here_from_elsewhere_is_refused(client):
    """DNS rebinding: a page of somebody else asks us under its own name."""
    answer = client.get("/api/pipelines", headers={"Host": "evil.example:8642"})
    assert answer.status_code == 400


def test_nobody_comes_in_where_the_host_says_so(recorded):
    def nobody():
        raise HTTPException(401, "Not authenticated")

    one = listed(recorded["killed-settling"])
    app = create_app(Checkpoints((one,)), Board(), user=nobody)
    paths = [each.path for each in app.routes if isinstance(each, APIRoute)]
    assert len(paths) == 5
    client = TestClient(app)
    for path in paths:
        asked = path.replace("{id}", one.id).replace("{name}", "page.js")
        assert client.get(asked).status_code == 401, asked


def test_one_pipeline_that_surprises_does_not_take_the_list_from_the_others(recorded):
    def surprise():
        raise KeyError("a bug")

    pipelines = (
        listed(recorded["killed-settling"]),
        listed("/elsewhere", storage=surprise, name="odd"),
        listed("gopher://host/x", name="wrong"),
    )
    client = TestClient(create_app(Checkpoints(pipelines), Board(), user=lambda: None))
    rows = {row.name: row for row in board(client).rows}
    assert rows["orders"].batch == 1
    assert rows["odd"].state == rows["wrong"].state == "unreadable"
    assert "KeyError" in rows["odd"].reason
    assert "a bug" not in rows["odd"].reason, "what a surprise says may be secret"
    view = client.get(f"/api/pipelines/{pipelines[1].id}")
    assert view.status_code == 200
    assert view.json()["row"]["state"] == "unreadable"
    assert "a bug" not in view.text


def test_a_file_whose_name_is_no_text_does_not_take_the_list_from_the_others(tmp_path, recorded):
    """Whoever may write to one checkpoint may call a file there what no JSON can say."""
    odd, fine = tmp_path / "odd", recorded["killed-settling"]
    shutil.copytree(fine, odd)
    (odd / "eos" / "drivers" / os.fsdecode(b"\xff.json")).touch()
    with TestClient(standalone([str(odd), str(fine)], Reach()), base_url="http://localhost") as c:
        named, other = board(c).rows
        assert (named.state, other.state) == ("unreadable", "looking")
        assert "\\udcff.json" in named.reason
        assert c.get(f"/api/pipelines/{named.id}").status_code == 200


def test_a_pipeline_that_nobody_knows_is_not_there(client):
    assert client.get("/api/pipelines/0123456789abcdef").status_code == 404
