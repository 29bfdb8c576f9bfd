"""A busy machine is waited for as long as anything moves, and the demo never ends in a trace."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import demo.__main__ as program
from airflow_eos.errors import LocalEnvironmentError
from demo import rest, stage
from demo.patience import Patience, slowness
from demo.rest import AirflowApi, DagRun
from demo.story import Story


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
