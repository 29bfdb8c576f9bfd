"""The page inside a real Airflow API server: who comes in, who may press, and what it does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, clear_drain, standing_request
from airflow_eos.plugins.actions import NAMES as BUTTONS
from airflow_eos.plugins.application import Tokens
from tests.integration.page.conftest import beats, falls_silent, recorded_checkpoint
from tests.support.airflow_server import AirflowServer, airflow_server
from tests.support.pipeline import wait_until
from tests.unit.ops.page.conftest import contents


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return recorded_checkpoint(tmp_path_factory.mktemp("pipeline"))


@pytest.fixture(scope="module")
def server(tmp_path_factory, checkpoint) -> Iterator[AirflowServer]:
    with airflow_server(tmp_path_factory.mktemp("server"), str(checkpoint)) as server:
        yield server


@pytest.fixture
def ann(server):
    """She may do everything."""
    with server.client("ann") as client:
        yield client


def pipeline(client) -> str:
    [row] = client.get("/eos/api/pipelines").json()["rows"]
    assert row["name"] == "orders_etl"
    return f"/eos/api/pipelines/{row['id']}"


def button(client, name: str) -> dict[str, str]:
    """What the page sends when it is pressed, once it can be: the page looks every second."""

    def token() -> str | None:
        actions = client.get(pipeline(client)).json()["actions"]
        found: str | None = next(e["token"] for e in actions if e["name"] == name)
        return found

    wait_until(lambda: token() is not None, every=0.3, what=f"the button {name}")
    return {
        "X-EOS-Token": token() or "",
        "Origin": str(client.base_url),
        "Sec-Fetch-Site": "same-origin",
    }


def sent(server, client, who: str, name: str) -> dict[str, str]:
    """What the page would send for that person, whether he is given it or not: a valid token."""
    row = client.get(pipeline(client)).json()["row"]
    driver = f" {row['heartbeat']['application_id']}" if name == "drain" else ""
    token = Tokens(server.secret).make(who, row["id"], name + driver)
    return {"X-EOS-Token": token, "Origin": str(client.base_url), "Sec-Fetch-Site": "same-origin"}


def runs(server, dag_id: str) -> list[str]:
    return [
        row[0]
        for row in server.sql(f"select run_id from dag_run where dag_id = '{dag_id}' order by id")
    ]


@pytest.mark.long
def test_nobody_sees_anything_without_a_login(server, ann):
    path = pipeline(ann)
    with server.client() as nobody:
        for asked in ("/eos/static/page.js", "/eos/api/pipelines", path, f"{path}/plan"):
            answer = nobody.get(asked)
            assert answer.status_code == 401, asked
            assert "orders" not in answer.text
        assert nobody.post(f"{path}/drain").status_code == 401
        led = nobody.get("/eos/", headers={"Accept": "text/html"})
        assert (led.status_code, led.headers["location"][:11]) == (307, "/auth/login")
        assert nobody.get("/eos/").status_code == 401
        forged = {"Authorization": "Bearer x.y.z"}
        assert nobody.get("/eos/api/pipelines", headers=forged).status_code == 403


def test_airflow_shows_it_in_its_navigation(ann):
    plugins = ann.get("/api/v2/plugins").json()["plugins"]
    [ours] = [each for each in plugins if each["name"] == "airflow_eos"]
    [view] = ours["external_views"]
    assert ann.get(f"/{view['href']}").status_code == 200
    assert ann.get("/api/v2/plugins/importErrors").json()["total_entries"] == 0


def test_a_dag_whose_checkpoint_is_a_template_is_named_and_not_shown(ann):
    board = ann.get("/eos/api/pipelines").json()
    assert not board["read_only"]
    assert any("by_template.run is not shown" in each for each in board["remarks"])


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_only_a_post_presses_a_button(server, ann, checkpoint, method):
    """Also with all that a button sends: what follows a link, or fetches ahead, presses none."""
    before, path = contents(checkpoint), pipeline(ann)
    for name in BUTTONS:
        headers = sent(server, ann, "ann", name)
        assert ann.request(method, f"{path}/{name}", headers=headers).status_code == 405, name
    assert contents(checkpoint) == before
    assert runs(server, "orders_etl") == runs(server, "orders_recovery") == []


def test_looking_changes_nothing(server, ann, checkpoint):
    before, path = contents(checkpoint), pipeline(ann)
    for asked in ("/eos/", "/eos/api/pipelines", path, f"{path}/plan"):
        assert ann.get(asked).status_code == 200, asked
    assert contents(checkpoint) == before
    assert runs(server, "orders_etl") == runs(server, "orders_recovery") == []


def test_who_may_only_look_sees_all_and_presses_nothing(server, ann, checkpoint):
    beats(checkpoint)
    path, headers = pipeline(ann), button(ann, "drain")
    with server.client("vic") as vic:
        detail = vic.get(path).json()
        assert (detail["row"]["batch"], detail["row"]["state"]) == (1, "stalled")
        assert [each["token"] for each in detail["actions"]] == [None] * 3
        assert "permission to edit" in detail["actions"][0]["not_now"]
        # Not with the token of somebody else either.
        for name in BUTTONS:
            answer = vic.post(f"{path}/{name}", headers=headers)
            assert (answer.status_code, "of another user" in answer.text) == (403, True)
    assert standing_request(CheckpointStore.open(checkpoint)) is None


@pytest.mark.long
@pytest.mark.parametrize("name", BUTTONS)
def test_a_valid_token_is_no_permission(server, ann, checkpoint, name):
    """She was given none; with one of her own, permission is what is missing."""
    (beats if name == "drain" else falls_silent)(checkpoint)
    button(ann, name)  # it can be pressed, by who may
    with server.client("vic") as vic:
        answer = vic.post(f"{pipeline(vic)}/{name}", headers=sent(server, vic, "vic", name))
    assert (answer.status_code, "permission to" in answer.text) == (403, True), answer.text
    assert standing_request(CheckpointStore.open(checkpoint)) is None
    assert runs(server, "orders_etl") == runs(server, "orders_recovery") == []


@pytest.mark.long
def test_the_same_token_of_who_may_gets_past_the_permission(server, ann, checkpoint):
    """Else the test above would show nothing: hers ends at what is alive, not at who she is."""
    beats(checkpoint)
    button(ann, "drain")
    answer = ann.post(f"{pipeline(ann)}/recover", headers=sent(server, ann, "ann", "recover"))
    assert answer.status_code == 409, answer.text


def test_who_may_not_read_the_dag_sees_nothing_of_its_pipeline(server, ann, checkpoint):
    path = pipeline(ann)
    row = ann.get(path).json()["row"]
    with server.client("ned") as ned:
        board = ned.get("/eos/api/pipelines")
        assert (board.status_code, board.json()["rows"], board.json()["remarks"]) == (200, [], [])
        for asked in (path, f"{path}/plan"):
            assert ned.get(asked).status_code == 404, asked
        for name in BUTTONS:
            his = {
                **sent(server, ann, "ann", name),
                "X-EOS-Token": Tokens(server.secret).make("ned", row["id"], name),
            }
            answer = ned.post(f"{path}/{name}", headers=his)
            assert answer.status_code == 404, answer.text
            assert not any(told in answer.text for told in ("orders", row["location"]))
    assert standing_request(CheckpointStore.open(checkpoint)) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"X-EOS-Token": None},
        {"X-EOS-Token": "nonsense"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.example"},
    ],
)
def test_another_site_drains_nothing_with_the_users_cookie(ann, checkpoint, changed):
    beats(checkpoint)
    headers = {**button(ann, "drain"), **changed}
    answer = ann.post(
        f"{pipeline(ann)}/drain", headers={k: v for k, v in headers.items() if v is not None}
    )
    assert answer.status_code == 403, answer.text
    assert standing_request(CheckpointStore.open(checkpoint)) is None


def test_drain_stands_in_the_checkpoint_and_in_the_audit_log(server, ann, checkpoint):
    store = CheckpointStore.open(checkpoint)
    beats(checkpoint)
    headers = button(ann, "drain")
    answer = ann.post(f"{pipeline(ann)}/drain", headers=headers)
    assert answer.status_code == 200, answer.text
    request = standing_request(store)
    assert request is not None
    assert request.requested_by == "page ann"
    assert ann.get(pipeline(ann)).json()["row"]["state"] == "draining", "also a moment later"
    logged = server.sql("select owner, dag_id from log where event = 'eos drain'")
    assert logged == [("ann", "orders_etl")]

    again = ann.post(f"{pipeline(ann)}/drain", headers=headers)
    assert again.status_code == 409, "it is draining already"
    assert standing_request(store) == request
    clear_drain(store, term=None, submission="the next")


@pytest.mark.long
def test_what_is_alive_is_neither_recovered_nor_resumed(server, ann, checkpoint):
    falls_silent(checkpoint)
    pressed = {name: button(ann, name) for name in ("recover", "resume")}
    beats(checkpoint)  # the driver was only slow: it beats again before the button is pressed
    for name, headers in pressed.items():
        answer = ann.post(f"{pipeline(ann)}/{name}", headers=headers)
        assert answer.status_code == 409, answer.text
        # at the first look, and at a later one
        assert "driver" in answer.text or "It is running" in answer.text
    assert runs(server, "orders_etl") == runs(server, "orders_recovery") == []


@pytest.mark.long
def test_recover_starts_the_dag_once_whoever_presses_how_often(server, ann, checkpoint):
    falls_silent(checkpoint)
    path, headers = pipeline(ann), button(ann, "recover")
    for _ in range(2):  # the second: the reply was lost
        answer = ann.post(f"{path}/recover", headers=headers)
        assert answer.status_code == 200, answer.text
    answer = ann.post(f"{path}/recover", headers=button(ann, "recover"))
    assert "at work already" in answer.json()["said"]
    assert len(runs(server, "orders_recovery")) == 1
    assert runs(server, "orders_etl") == [], "nothing acts but the DAG that was started"


def test_resume_replaces_a_driver_once_also_beside_eos_recovery(server, ann, checkpoint):
    falls_silent(checkpoint)
    path = pipeline(ann)
    pressed = [button(ann, "resume") for _ in range(4)]
    with ThreadPoolExecutor(4) as together:
        answers = list(together.map(lambda h: ann.post(f"{path}/resume", headers=h), pressed))
    assert {each.status_code for each in answers} <= {200, 409}
    assert any("Started orders_etl" in each.text for each in answers)
    # The name that eos_recovery gives to the run, too: whoever is second finds it there.
    driver = ann.get(path).json()["row"]["heartbeat"]["application_id"]
    assert runs(server, "orders_etl") == [f"resume__{driver}__0"]
    [told] = server.sql("select triggering_user_name from dag_run where dag_id = 'orders_etl'")
    assert told == ("ann",)


@pytest.mark.long
def test_a_paused_dag_is_not_started_to_wait_for_ever(server, ann, checkpoint):
    falls_silent(checkpoint)
    assert ann.patch("/api/v2/dags/orders_etl", json={"is_paused": True}).status_code == 200
    try:
        actions = ann.get(pipeline(ann)).json()["actions"]
        assert "is paused" in actions[2]["not_now"]
    finally:
        ann.patch("/api/v2/dags/orders_etl", json={"is_paused": False})
