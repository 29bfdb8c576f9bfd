"""The demo without its servers: orders, deaths, patience, what Airflow answers, how it is told."""

from __future__ import annotations

import io
import itertools
import json
import re
import threading
import urllib.error
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import airflow_eos
import demo.__main__ as program
from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.recovery import AuditReport
from demo import rest, stage
from demo.orders import ORDER_ID_HEADER, orders
from demo.patience import Patience, slowness
from demo.rest import AirflowApi, DagRun
from demo.scenario import ACTS, failpoints
from demo.story import Story

COUNT = 20_000


def is_json(value: bytes) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


def test_the_same_seed_gives_the_same_orders():
    assert list(orders(500)) == list(orders(500))
    assert list(orders(500)) != list(orders(500, seed=8))


def test_every_order_has_a_name_of_its_own_whatever_its_value_is():
    names = {dict(order.headers)[ORDER_ID_HEADER] for order in orders(COUNT)}

    assert len(names) == COUNT


def test_about_two_percent_are_malformed_in_four_ways():
    made = list(orders(COUNT))
    ways = Counter(
        "cut short or no JSON"
        if not is_json(order.value)
        else "no customer"
        if b'"customer_id"' not in order.value
        else "negative"
        if b'"quantity":-' in order.value
        else "fine"
        for order in made
    )

    assert 0.015 * COUNT < COUNT - ways.pop("fine") < 0.025 * COUNT
    assert set(ways) == {"cut short or no JSON", "no customer", "negative"}


def test_keys_repeat_so_that_their_order_can_be_checked():
    keys = Counter(order.key for order in orders(COUNT))

    assert len(keys) < COUNT / 4
    assert keys.most_common(1)[0][1] > 100


# --- The four deaths are those that were asked for, at places that exist --------------------------


PACKAGE = Path(airflow_eos.__file__).parent


def test_the_app_dies_undecided_then_uncommitted_then_half_committed_then_timed_out():
    assert [(act.failpoint, act.until_timeout) for act in ACTS] == [
        ("prepared", False),
        ("decided", False),
        ("settled-some", False),
        ("decided", True),
    ]


def test_every_place_is_armed_once():
    assert failpoints() == "prepared=kill@3,decided=kill@3,settled-some=kill@3"


def test_every_place_exists_in_the_code():
    code = "".join(
        path.read_text()
        for room in ("core/delivery", "kinds", "kafka")
        for path in (PACKAGE / room).rglob("*.py")
    )
    places = set(re.findall(r'failpoint\("([a-z-]+)"\)', code))

    assert {act.failpoint for act in ACTS} <= places


# --- A busy machine is waited for as long as anything moves, and the demo never ends in a trace ---


def test_what_moves_is_waited_for_however_long_it_takes():
    clock = itertools.count(0, 700)
    waits = Patience("rows", still_s=600, clock=lambda: next(clock))
    for delivered in range(200):  # a day
        waits.see(delivered)


def test_what_stands_still_is_given_up_in_one_sentence():
    clock = iter((0, 500, 1_000, 1_500, 2_000))
    waits = Patience("the next act", still_s=600, clock=lambda: next(clock))
    waits.see("queued")
    waits.see("running")
    waits.see("running")
    with pytest.raises(LocalEnvironmentError, match=r"10 minutes, waiting for the next act: .*end"):
        waits.see("running")


@pytest.mark.parametrize(
    ("load", "cores", "times"), [(0.1, 2, 1), (5, 2, 2.5), (40, 2, 4), (2, 8, 1)]
)
def test_times_that_are_told_beforehand_grow_with_the_load_and_not_without_end(
    monkeypatch, load, cores, times
):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0, 0))
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert slowness() == times


class Airflow(ThreadingHTTPServer):
    """Answers as it is told: a status and a body, or nothing at all (None) until the end."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, object] | None] = []
        self.asked: list[object] = []
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Airflow

    def do_GET(self) -> None:
        self.answer(self.path)

    def do_POST(self) -> None:
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, asked: object) -> None:
        if asked == "/auth/token":
            self.say(200, {"access_token": "t"})
            return
        self.server.asked.append(asked)
        answers = self.server.answers
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if found is None:
            self.server.over.wait(10)
        else:
            self.say(*found)

    def say(self, status: int, body: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def airflow(monkeypatch) -> Iterator[Airflow]:
    monkeypatch.setattr(rest, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(rest, "_AGAIN_S", 0.01)
    with Airflow() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield server
        server.over.set()
        server.shutdown()


RUN = {"dag_id": "etl", "dag_run_id": "theirs", "state": "queued"}


def test_an_answer_that_is_late_or_an_error_of_the_server_is_asked_for_again(airflow, monkeypatch):
    monkeypatch.setattr(rest, "_TOLD_S", 0.0)
    told: list[str] = []
    airflow.answers = [None, (500, "database is locked"), (503, ""), (200, {"dag_runs": [RUN]})]
    found = AirflowApi(airflow.url, tell=told.append).runs("etl")
    assert found == [DagRun("etl", "theirs", "queued")]
    assert len(airflow.asked) == 4
    assert len(told) == 1, "once is enough"


def test_a_run_whose_answer_was_lost_is_not_started_twice(airflow):
    airflow.answers = [None, (409, "there is one of that name")]
    started = AirflowApi(airflow.url).trigger("etl")
    first, second = airflow.asked
    assert first == second
    assert started.run_id == first["dag_run_id"]


def test_what_airflow_refuses_is_not_asked_for_again(airflow):
    airflow.answers = [(404, "no such DAG")]
    with pytest.raises(LocalEnvironmentError, match="answered 404 to GET"):
        AirflowApi(airflow.url).runs("etl")
    assert len(airflow.asked) == 1


def test_an_airflow_that_never_answers_is_given_up_and_one_that_has_ended_at_once(
    airflow, monkeypatch
):
    airflow.answers = [None]
    monkeypatch.setattr(rest, "Patience", lambda what: Patience(what, still_s=0.3))
    with pytest.raises(LocalEnvironmentError, match="waiting for Airflow to answer GET"):
        AirflowApi(airflow.url).runs("etl")

    def ended() -> None:
        raise LocalEnvironmentError("Airflow's scheduler has ended")

    with pytest.raises(LocalEnvironmentError, match="scheduler has ended"):
        AirflowApi(airflow.url, check=ended).runs("etl")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError("timed out"), "demo: TimeoutError: timed out\n"),
        (LocalEnvironmentError("Nothing has moved."), "demo: Nothing has moved.\n"),
    ],
)
def test_whatever_goes_wrong_is_one_sentence_and_its_trace_is_kept(
    monkeypatch, capsys, tmp_path, error, said
):
    def play(*_: object) -> None:
        with stage._work_folder(Story()):
            raise error

    monkeypatch.setattr(program, "play", play)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["demo"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    found = capsys.readouterr()
    assert ended.value.code == 2
    assert found.err == said
    assert "Traceback" not in found.out + found.err
    [trace] = tmp_path.glob("*/trace.log")
    assert type(error).__name__ in trace.read_text()


# --- What the demo understands of Airflow's answers -----------------------------------------------


class FakeApi(AirflowApi):
    """Gives the answers that a test puts in, and keeps what was asked."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str, Any]] = []

    def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        authenticated: bool = True,  # noqa: ARG002 - nobody logs in here
    ) -> Any:
        self.asked.append((method, path, body))
        answer = self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


def test_an_airflow_that_does_not_listen_yet_is_not_healthy(api):
    api.answers["/api/v2/monitor/health"] = urllib.error.URLError("refused")

    assert not api.healthy()


@pytest.mark.parametrize(("status", "healthy"), [("healthy", True), ("unhealthy", False)])
def test_every_part_must_be_healthy(api, status, healthy):
    api.answers["/api/v2/monitor/health"] = {
        "scheduler": {"status": "healthy"},
        "triggerer": {"status": status},
    }

    assert api.healthy() is healthy


def test_a_run_without_a_logical_date_is_started_at_once(api):
    api.answers["/api/v2/dags/etl/dagRuns"] = {
        "dag_id": "etl",
        "dag_run_id": "manual__1",
        "state": "queued",
    }

    assert api.trigger("etl") == DagRun("etl", "manual__1", "queued")
    [(method, path, body)] = api.asked
    assert (method, path, body["logical_date"]) == ("POST", "/api/v2/dags/etl/dagRuns", None)


def test_one_task_is_cleared_and_no_other_nor_a_try_of_it_that_a_lost_answer_has_begun(api):
    path = "/api/v2/dags/etl/clearTaskInstances"
    api.answers[path] = {"task_instances": []}

    api.clear(DagRun("etl", "manual__1", "failed"), "run")

    [(method, asked, body)] = api.asked
    assert (method, asked) == ("POST", path)
    assert (body["task_ids"], body["dag_run_id"]) == (["run"], "manual__1")
    assert (body["dry_run"], body["only_failed"]) == (False, True)


@pytest.mark.parametrize(
    ("state", "ended"), [("queued", False), ("running", False), ("success", True), ("failed", True)]
)
def test_only_success_and_failure_are_an_end(state, ended):
    assert DagRun("etl", "manual__1", state).ended is ended


# --- What a spectator reads at the end, and in the picture ----------------------------------------


def report(**counts: int) -> AuditReport:
    zero = {"lost": 0, "duplicated": 0, "reordered": 0, "unexpected": 0}
    return AuditReport(
        input_topics=("orders",),
        output_topics=("orders.clean", "orders.rejected"),
        rows_in=200_000,
        rows_out={"orders.clean": 196_000, "orders.rejected": 4_000},
        visible_undecided=0,
        open_rows=0,
        open_partitions=(),
        unidentified=0,
        matched=1,
        unjudged=(),
        offenders=(),
        seconds=1.0,
        **(zero | counts),  # type: ignore[arg-type]
    )


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), record=True, width=100, force_terminal=True)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({}, "lost 0, duplicated 0, reordered 0"),
        ({"duplicated": 7}, "lost 0, duplicated 7, reordered 0"),
    ],
)
def test_the_end_says_the_three_counts(console, counts, words):
    Story(console).end(report(**counts), deaths=4)

    shown = console.export_text()
    assert words in shown
    assert "after 4 deaths" in shown


def test_the_picture_begins_with_the_last_death(console, tmp_path):
    story = Story(console)
    story.say("prologue")
    story.act(4, ACTS[-1])
    story.end(report(), deaths=4)

    story.save_picture(tmp_path / "demo.svg")

    picture = (tmp_path / "demo.svg").read_text()
    assert "prologue" not in picture
    assert "http" not in picture.replace("http://www.w3.org", "").replace("https://www.textual", "")
    assert "duplicated" in picture
