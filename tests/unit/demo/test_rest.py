"""What the demo understands of Airflow's answers."""

from __future__ import annotations

import urllib.error
from typing import Any

import pytest

from demo.rest import AirflowApi, DagRun


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
