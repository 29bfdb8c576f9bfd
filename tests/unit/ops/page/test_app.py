"""The routes: what they say, who comes in, and a store that never answers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from importlib.resources import files
from typing import Any

import msgspec
import pytest
from fastapi import HTTPException
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    history,
    read_heartbeat,
    request_drain,
    write_heartbeat,
)
from airflow_eos.core.checkpoint.cuts import CutLog
from airflow_eos.core.checkpoint.liveness import LivenessProbe, Standstill
from airflow_eos.core.checkpoint.recovery_notes import (
    Replacement,
    forget_refusal,
    note_refusal,
    note_restart,
)
from airflow_eos.core.checkpoint.standby import write_standby
from airflow_eos.core.checkpoint.watchdog_record import WatchdogRecord, note_look
from airflow_eos.core.protocol.cut import Cut, Position
from airflow_eos.ops.page import views
from airflow_eos.ops.page.app import Checkpoints, create_app, standalone
from airflow_eos.ops.page.board import Answers, Board
from airflow_eos.ops.page.pipeline_state import PipelineSnapshot
from airflow_eos.ops.page.views import Reach
from tests.support.beats import heartbeat, of_a_killed_process, standby
from tests.support.fleet import said_again
from tests.unit.ops.page.conftest import contents, listed


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


def test_a_driver_that_was_killed_on_this_machine_is_never_said_to_live(tmp_path, recorded):
    """Eleven seconds after its death the page said "idle … the driver is alive"."""
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(recorded["killed-settling"], checkpoint)
    store, look = CheckpointStore.open(checkpoint), PipelineSnapshot(listed(checkpoint), 300_000)
    beats = msgspec.structs.replace(heartbeat("settling", term=9), **of_a_killed_process())
    write_heartbeat(store, msgspec.structs.replace(beats, beat_at_ms=1, process=""))
    assert look.row().state == "looking"
    write_heartbeat(store, beats)  # it has beaten since, and was killed
    assert look.row().state == "silent"


def test_the_lag_of_a_pipeline_that_plans_nothing_is_not_nought(tmp_path, recorded):
    """A stopped one with 340 unread rows was said to have none: nobody asks the input here."""
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(recorded["killed-settling"], checkpoint)
    store = CheckpointStore.open(checkpoint)
    shutil.copy(checkpoint / "commits" / "1", checkpoint / "commits" / "2")
    write_heartbeat(store, heartbeat("stopped", term=9, end="drained"))
    row = PipelineSnapshot(listed(checkpoint), 300_000).row()
    assert (row.state, row.in_flight, row.lag_rows) == ("stopped", None, None)


def test_who_stands_by_is_said_beside_the_pipeline_once_it_was_seen_to(tmp_path, recorded):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(recorded["killed-settling"], checkpoint)
    store, look = CheckpointStore.open(checkpoint), PipelineSnapshot(listed(checkpoint), 300_000)
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
    assert [a.verdict for a in detail.batches[2].attempts] == ["commit"]
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


def test_the_page_names_no_address_but_its_own_and_the_docs_that_a_person_may_open():
    static = files("airflow_eos.ops.page") / "static"
    for file in static.iterdir():
        text = file.read_text(encoding="utf-8")
        found = set(re.findall(r"(?:https?:)?//[a-z0-9][\w.-]+", text))
        assert found <= {"http://www.w3.org", "https://github.com"}, file.name
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


def test_every_file_of_the_page_is_served_and_no_other(client):
    static = files("airflow_eos.ops.page") / "static"
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


def test_a_login_in_a_location_is_shown_to_nobody_who_looks():
    app = standalone(["s3a://KEY:hun/ter2@bucket/etl"], Reach())
    with TestClient(app, base_url="http://localhost") as client:
        (row,) = board(client).rows
        told = client.get(f"/api/pipelines/{row.id}").text
    assert row.location == "s3a://KEY:***@bucket/etl"
    for said in (repr(row), told):
        assert "hun" not in said
        assert "ter2" not in said


def test_a_pipeline_that_nobody_knows_is_not_there(client):
    assert client.get("/api/pipelines/0123456789abcdef").status_code == 404


# --- A store that never answers must hold neither the list nor the threads of the web server ------


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def dead():
    """A question that is answered when the test is over."""
    over = threading.Event()
    yield lambda: over.wait(600) and "late"
    over.set()


def test_one_that_is_not_answered_keeps_nobody_from_the_others(clock, dead):
    answers: Answers[Any] = Answers(2, within_s=0.2, fresh_s=lambda _: 3.0, clock=clock)
    begun = time.monotonic()
    while (told := answers.of({"dead": dead, "well": lambda: "here"})) != {"well": "here"}:
        assert told == {}, "on a busy machine nobody answers in time"
    assert time.monotonic() - begun < 300


def test_a_store_with_more_pipelines_than_threads_keeps_nobody_from_the_others(clock, dead):
    answers: Answers[Any] = Answers(2, within_s=0.05, fresh_s=lambda _: 3.0, clock=clock)
    asked = {**{str(n): dead for n in range(9)}, "well": lambda: "here"}
    begun = clock.now
    while answers.of(asked) != {"well": "here"}:
        clock.now += 11
        assert clock.now < begun + 300 * 11


def test_threads_that_were_held_up_are_no_more_than_asked_for_when_they_are_free(clock):
    over = threading.Event()
    answers: Answers[Any] = Answers(2, within_s=0.05, fresh_s=lambda _: 3.0, clock=clock)
    slow = {str(n): lambda: over.wait(600) for n in range(8)}
    patient = time.monotonic() + 300
    while answers._pool._there < 8:
        answers.of(slow)
        clock.now += 11
        assert time.monotonic() < patient
    over.set()
    while len(answers.of(slow)) < 8 or answers._pool._there > 2:
        assert time.monotonic() < patient


def test_a_question_is_asked_once_at_a_time_whoever_asks(clock):
    answers: Answers[Any] = Answers(4, within_s=0.05, fresh_s=lambda _: 3.0, clock=clock)
    asked, go_on = [], threading.Event()

    def question():
        asked.append(1)
        go_on.wait(600)
        return "here"

    for _ in range(5):
        assert answers.of({"it": question}) == {}
    go_on.set()
    patient = time.monotonic() + 300
    while not answers.of({"it": question}):
        assert time.monotonic() < patient
    assert asked == [1]


def test_an_answer_stands_for_its_time_and_an_older_one_while_the_next_is_late(clock, dead):
    answers: Answers[Any] = Answers(2, within_s=300, fresh_s=lambda _: 3.0, clock=clock)
    assert answers.of({"it": lambda: "first"}) == {"it": "first"}
    clock.now = 2.9
    assert answers.of({"it": lambda: "second"}) == {"it": "first"}
    clock.now = 3.1
    assert answers.of({"it": lambda: "second"}) == {"it": "second"}
    clock.now = 6.5
    answers._within_s = 0.1
    assert answers.of({"it": dead}) == {"it": "second"}


def test_one_of_a_moment_ago_is_given_rather_than_waited_for_and_an_old_one_is_not(clock):
    answers: Answers[Any] = Answers(2, within_s=300, fresh_s=lambda _: 3.0, clock=clock)
    assert answers.of({"it": lambda: "first"}) == {"it": "first"}
    go_on = threading.Event()
    clock.now = 10
    assert answers.of({"it": lambda: go_on.wait(600) and "second"}) == {"it": "first"}
    clock.now = 100
    threading.Timer(0.5, go_on.set).start()
    assert answers.of({"it": lambda: "never asked"}) == {"it": "second"}


def test_what_is_forgotten_while_it_is_asked_does_not_come_back(clock):
    """Somebody has drained: the answer that was under way is of the time before."""
    answers: Answers[Any] = Answers(2, within_s=0.05, fresh_s=lambda _: 99.0, clock=clock)
    go_on = threading.Event()
    before = lambda: go_on.wait(600) and "before"  # noqa: E731
    assert answers.of({"it": before}) == {}
    answers.forget("it")
    go_on.set()
    answers._within_s = 300
    assert answers.of({"it": lambda: "after"}) == {"it": "after"}


def test_what_a_question_raises_is_raised_once_and_asked_again(clock):
    answers: Answers[Any] = Answers(1, within_s=300, fresh_s=lambda _: 3.0, clock=clock)
    with pytest.raises(ValueError, match="wrong"):
        answers.of({"it": lambda: int("wrong")})
    assert answers.of({"it": lambda: 1}) == {"it": 1}


def test_a_question_that_is_never_answered_keeps_no_process_from_ending():
    program = """
import threading
from airflow_eos.ops.page.board import Answers
answers = Answers(1, within_s=0.05, fresh_s=lambda _: 1.0)
answers.of({"dead": threading.Event().wait})
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


# --- A request to drain means one driver: its successor is not shown as draining ------------------


def test_a_driver_is_silent_once_it_was_seen_to_stand_still_and_not_before(recorded, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(
        "airflow_eos.ops.page.pipeline_state.LivenessProbe", lambda: LivenessProbe(lambda: now[0])
    )
    look, states = PipelineSnapshot(listed(recorded["killed-settling"]), 300_000), []
    for _ in range(4):
        states.append(look.row().state)
        now[0] += 2
    assert states == ["looking", "looking", "looking", "silent"]


def test_who_brings_it_back_and_a_watchdog_that_has_stopped_are_said(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(
        "airflow_eos.ops.page.pipeline_state.Standstill", lambda: Standstill(lambda: now[0])
    )
    store = CheckpointStore.open(tmp_path)
    write_heartbeat(store, heartbeat("failed", term=1))
    by = Replacement(driver="app-1", number=1, limit=3, by="task orders.run of run r1")
    note_restart(store, by)
    note_look(store, WatchdogRecord(dag_id="dog", run_id="r1", interval_ms=60_000))
    look = PipelineSnapshot(listed(tmp_path), 300_000)
    assert look.row().remarks == ("restart 1 of 3, by task orders.run of run r1",)
    note_refusal(store, "status 78", dag_id="orders", run_id="r1")
    (remark,) = look.row().remarks
    assert "no restart heals what its start was refused for: status 78" in remark
    forget_refusal(store)
    assert watched(look) == "by dog, every minute"
    now[0] += 179
    assert watched(look) == "by dog, every minute"
    now[0] += 1
    assert watched(look) == "nobody: the watchdog dog has stopped; it was to look every minute"
    note_look(store, WatchdogRecord(dag_id="dog", run_id="r2", interval_ms=60_000))
    write_heartbeat(store, heartbeat("waiting", term=1, application_id="app-2"))
    assert look.row().remarks == (), "another driver has come"
    assert watched(look) == "by dog, every minute", "and the watchdog looks again"
    paused = PipelineSnapshot(listed(tmp_path, watchdogs=(("dog", True),)), 300_000)
    assert watched(paused) == "nobody: the watchdog dog is paused"


def test_who_was_to_watch_and_never_did_is_said(tmp_path):
    CheckpointStore.open(tmp_path).put("metadata", b'{"id":"1"}')
    assert watched(PipelineSnapshot(listed(tmp_path), 1)) == "nobody: no watchdog has ever looked"
    named = PipelineSnapshot(listed(tmp_path, watchdogs=(("dog", False),)), 1)
    assert watched(named) == "not yet: dog has not looked"


def watched(look: PipelineSnapshot) -> str:
    watch = look.row().watch
    assert watch is not None
    assert watch.is_watched == watch.said.startswith("by ")
    return watch.said


@pytest.mark.parametrize(("term", "state"), [(7, "draining"), (6, "stalled"), (None, "draining")])
def test_a_request_to_the_driver_before_says_nothing_of_this_one(tmp_path, recorded, term, state):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(recorded["killed-settling"], checkpoint)
    store = CheckpointStore.open(checkpoint)
    told = read_heartbeat(store)
    assert told is not None
    beat = said_again(told, term=7, batch_id=2, started_at_ms=told.beat_at_ms - 3_600_000)
    write_heartbeat(store, beat)
    request_drain(store, requested_by="ann", reason="a release", term=term)
    look = PipelineSnapshot(listed(checkpoint), 300_000)
    assert look.row().state == "looking", "one look says nothing"
    write_heartbeat(store, said_again(beat, beat_at_ms=beat.beat_at_ms + 1))
    assert look.row().state == state


# --- What happened --------------------------------------------------------------------------------


def events(checkpoint: Any) -> list[tuple[str, str]]:
    look = PipelineSnapshot(listed(checkpoint), 300_000)
    return [(each.what, f"{each.who} · {each.why}") for each in look.detail().events]


def test_a_checkpoint_without_notes_tells_the_driver_that_its_heartbeat_tells(tmp_path, recorded):
    """An earlier release has noted nothing."""
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(recorded["killed-settling"], checkpoint)
    store = CheckpointStore.open(checkpoint)
    failed = {"end": "failed", "reason": "TopicError: gone", "started_at_ms": 1_000}
    write_heartbeat(store, heartbeat("failed", term=9, beat_at_ms=2_000, **failed))
    assert events(checkpoint) == [
        ("failed", "app-1 on node-1 · TopicError: gone"),
        ("started", "app-1 on node-1 · by hand"),
    ]


def test_what_is_noted_is_told_the_newest_first_and_a_new_version_is_an_upgrade(tmp_path, recorded):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(recorded["killed-settling"], checkpoint)
    store = CheckpointStore.open(checkpoint)
    first, second = heartbeat(term=8, started_at_ms=1_000), heartbeat(term=9, started_at_ms=5_000)
    drained = {"end": "drained", "drained_by": "cli ann", "reason": "cli ann: a release"}
    write_heartbeat(store, second)
    history.note(
        store,
        (
            history.started(first, stood_by=False, app="etl.py", release="1"),
            history.ended(heartbeat("stopped", term=8, beat_at_ms=4_000, **drained), store),
            history.started(second, stood_by=False, app="etl_2.py", release="1"),
            history.Happened(what="recovered", at_ms=6_000, who="bob", why="batch 2: 3 committed"),
        ),
    )
    assert events(checkpoint) == [
        ("recovered", "bob · batch 2: 3 committed"),
        ("upgraded", "app-1 on node-1 · by hand, etl_2.py, airflow_eos 1"),
        ("drained", "app-1 on node-1 · cli ann: a release"),
        ("started", "app-1 on node-1 · by hand, etl.py, airflow_eos 1"),
    ]
    assert PipelineSnapshot(listed(checkpoint), 1).detail().runs == "etl_2.py, airflow_eos 1"


@pytest.mark.parametrize(
    ("said", "phase", "shown"),
    [
        ("http://node-1:4040", "waiting", True),
        ("https://[fd00::1]:4040/proxy/app-1", "waiting", True),
        ("", "waiting", False),
        ("http://node-1:4040", "stopped", False),
        ("javascript:alert(1)", "waiting", False),
        ('http://node-1:4040/"onclick=', "waiting", False),
        ("see http://node-1:4040", "waiting", False),
    ],
)
def test_sparks_ui_is_a_link_only_of_a_driver_that_lives_and_only_to_the_web(
    tmp_path, said, phase, shown
):
    """Whoever may write into the checkpoint has written it, and a click runs what a link says."""
    store = CheckpointStore.open(tmp_path)
    first, second = heartbeat(term=1, started_at_ms=1_000), heartbeat(phase, term=2)
    former = history.started(
        first, stood_by=False, app="a", release="1", spark_ui="http://node-1:1"
    )
    ours = history.started(second, stood_by=False, app="a", release="1", spark_ui=said)
    history.note(store, (former, ours))
    write_heartbeat(store, second)
    found = PipelineSnapshot(listed(tmp_path), 300_000).detail()
    assert found.spark_ui == (said if shown else "")


@pytest.mark.parametrize(
    ("phase", "since"), [("stopped", 7_000), ("failed", 7_000), ("waiting", None)]
)
def test_since_when_a_state_holds_is_told_where_it_is_written(tmp_path, phase, since):
    store = CheckpointStore.open(tmp_path)
    write_heartbeat(store, heartbeat(phase, term=1, beat_at_ms=7_000, started_at_ms=3_000))
    look = PipelineSnapshot(listed(tmp_path), 300_000)
    assert look.row().since_ms == since, "of one look nobody knows"
    if phase == "waiting":
        write_heartbeat(store, heartbeat(phase, term=1, beat_at_ms=9_000, started_at_ms=3_000))
        assert (look.row().state, look.row().since_ms) == ("running", 3_000)


def test_the_newest_cut_is_told_with_the_outputs_that_have_no_place(tmp_path, recorded):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(recorded["killed-settling"], checkpoint)
    store, look = CheckpointStore.open(checkpoint), PipelineSnapshot(listed(checkpoint), 300_000)
    assert look.detail().cut is None
    places = {"a": Position("kafka", 0, {}), "b": Position("upsert", 0, None, "newest alone")}
    log = CutLog(store)
    for batch in (0, 1):
        log.record(Cut(batch_id=batch, pipeline=log.pipeline, incomplete=None, positions=places))
    store.put("eos/cuts/2.json", b"{")  # damaged: the one before it is whole
    cut = look.detail().cut
    assert cut is not None
    assert (cut.batch, [(o.name, o.is_known, o.why) for o in cut.outputs]) == (
        1,
        [("a", True, ""), ("b", False, "newest alone")],
    )
