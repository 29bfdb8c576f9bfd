"""A client of Airflow's REST API, with what the demo asks."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_eos.errors import LocalEnvironmentError
from demo.patience import Patience

_TIMEOUT_S = 60
"""Timeout of one request in seconds; after it the request is sent again."""
_AGAIN_S = 1.0
_TOLD_S = 20.0
_NO_ANSWER = (
    *(urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError),
    json.JSONDecodeError,  # an answer that was cut short
)


class RefusedError(LocalEnvironmentError):
    """The server answered with an error status."""

    def __init__(self, method: str, path: str, status: int, said: str) -> None:
        super().__init__(f"Airflow answered {status} to {method} {path}: {said}")
        self.status = status


@dataclass(frozen=True, slots=True)
class DagRun:
    """One run of a DAG, and its state."""

    dag_id: str
    run_id: str
    state: str

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.state in {"success", "failed"}


class AirflowApi:
    """A client of one Airflow, for as long as it runs.

    Args:
        url: base URL of the API server.
        tell: called with a message where an answer is slow to come.
        check: raises where one of Airflow's processes has ended.
    """

    def __init__(
        self,
        url: str,
        *,
        tell: Callable[[str], object] = lambda _: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._url = url
        self._tell = tell
        self._check = check
        self._token: str | None = None

    def healthy(self) -> bool:
        """Whether every part of Airflow is healthy."""
        health = self.health()
        return bool(health) and all(status == "healthy" for status in health.values())

    def health(self) -> dict[str, str]:
        """Return the health of each part; empty where the server does not answer yet."""
        try:
            found = self._call("GET", "/api/v2/monitor/health", authenticated=False)
        except (*_NO_ANSWER, RefusedError):
            return {}
        return {name: str(part["status"]) for name, part in found.items()}

    def known_dags(self) -> set[str]:
        """Return the ids of the DAGs that were found so far."""
        return {each["dag_id"] for each in self._patiently("GET", "/api/v2/dags")["dags"]}

    def import_errors(self) -> list[str]:
        """Return the stack traces of DAG files that cannot be imported."""
        errors = self._patiently("GET", "/api/v2/importErrors")["import_errors"]
        return [each["stack_trace"] for each in errors]

    def unpause(self, dag_id: str) -> None:
        """Unpause a DAG, so that its runs start."""
        self._patiently("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})

    def pause(self, dag_id: str) -> None:
        """Pause a DAG, so that none of its runs gets on."""
        self._patiently("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": True})

    def trigger(self, dag_id: str) -> DagRun:
        """Trigger a run of a DAG, and return it."""
        run_id = f"manual__{uuid.uuid4().hex[:12]}"  # our own id: asking twice starts no second run
        body = {"logical_date": None, "dag_run_id": run_id}
        answer = self._patiently("POST", f"/api/v2/dags/{dag_id}/dagRuns", body, but=409)
        return _run(answer) if answer is not None else DagRun(dag_id, run_id, "queued")

    def runs(self, dag_id: str) -> list[DagRun]:
        """List all runs of a DAG, the oldest first."""
        return [_run(each) for each in self._patiently("GET", _runs(dag_id))["dag_runs"]]

    def tasks(self, run: DagRun) -> dict[str, str]:
        """Return the state of each task of a run."""
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances"
        found = self._patiently("GET", path)["task_instances"]
        return {each["task_id"]: each["state"] or "waiting" for each in found}

    def xcoms(self, run: DagRun, task_id: str) -> set[tuple[str, str]]:
        """Return a task's XComs by key and time; those of an earlier try have another time."""
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task_id}/xcomEntries"
        found = self._patiently("GET", path)["xcom_entries"]
        return {(each["key"], each["timestamp"]) for each in found}

    def clear(self, run: DagRun, task_id: str) -> None:
        """Clear one task of a run, so that it alone tries again.

        Only a failed task: a request sent again, as its answer was lost, ends no new try.
        """
        body = {"dry_run": False, "only_failed": True, "task_ids": [task_id]}
        path = f"/api/v2/dags/{run.dag_id}/clearTaskInstances"
        self._patiently("POST", path, body | {"dag_run_id": run.run_id})

    def _patiently(self, method: str, path: str, body: Any = None, *, but: int = 0) -> Any:
        """Repeat a request until it is answered; return None where the status is ``but``."""
        patience = Patience(f"Airflow to answer {method} {path}")
        told = False
        while True:
            try:
                return self._call(method, path, body)
            except RefusedError as error:
                if error.status == but:
                    return None
                if error.status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise
            except _NO_ANSWER:
                pass
            self._check()
            patience.see(method)
            if not told and patience.still_s > _TOLD_S:
                self._tell("Airflow has not answered for a while; it is asked again and again")
                told = True
            time.sleep(_AGAIN_S)

    def _call(self, method: str, path: str, body: Any = None, *, authenticated: bool = True) -> Any:
        headers = {"Content-Type": "application/json"}
        if authenticated:
            headers["Authorization"] = f"Bearer {self._login()}"
        request = urllib.request.Request(  # noqa: S310 - the URL is our own server's
            self._url + urllib.parse.quote(path, safe="/?=&"),
            method=method,
            headers=headers,
            data=None if body is None else json.dumps(body).encode(),
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RefusedError(method, path, error.code, error.read().decode()[:500]) from error

    def _login(self) -> str:
        if self._token is None:
            # Every user is an administrator: this Airflow listens on this machine only.
            answer = self._call("GET", "/auth/token", authenticated=False)
            self._token = str(answer["access_token"])
        return self._token


def _runs(dag_id: str) -> str:
    return f"/api/v2/dags/{dag_id}/dagRuns?order_by=run_after"


def _run(answer: dict[str, Any]) -> DagRun:
    return DagRun(answer["dag_id"], answer["dag_run_id"], answer["state"])
