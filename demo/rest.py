"""What the demo asks Airflow, over its REST API."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from airflow_eos.errors import LocalEnvironmentError

_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class DagRun:
    """One run of a DAG, and how it stands."""

    dag_id: str
    run_id: str
    state: str

    @property
    def ended(self) -> bool:
        """Whether it will not change any more."""
        return self.state in {"success", "failed"}


class AirflowApi:
    """A client of one Airflow, for as long as it runs.

    Args:
        url: base URL of the API server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._token: str | None = None

    def healthy(self) -> bool:
        """Whether every part of Airflow has given a sign of life."""
        try:
            health = self._call("GET", "/api/v2/monitor/health", authenticated=False)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return all(part["status"] == "healthy" for part in health.values())

    def known_dags(self) -> set[str]:
        """Ids of the DAGs that were found so far."""
        return {each["dag_id"] for each in self._call("GET", "/api/v2/dags")["dags"]}

    def import_errors(self) -> list[str]:
        """Why DAG files could not be read."""
        errors = self._call("GET", "/api/v2/importErrors")["import_errors"]
        return [each["stack_trace"] for each in errors]

    def unpause(self, dag_id: str) -> None:
        """Let its runs start."""
        self._call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})

    def trigger(self, dag_id: str) -> DagRun:
        """Start a run now."""
        answer = self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None})
        return _run(answer)

    def runs(self, dag_id: str) -> list[DagRun]:
        """All runs of a DAG, the oldest first."""
        return [_run(each) for each in self._call("GET", _runs(dag_id))["dag_runs"]]

    def tasks(self, run: DagRun) -> dict[str, str]:
        """State of each task of a run."""
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances"
        found = self._call("GET", path)["task_instances"]
        return {each["task_id"]: each["state"] or "waiting" for each in found}

    def xcoms(self, run: DagRun, task_id: str) -> set[tuple[str, str]]:
        """Which XComs a task has pushed, and when; those of an earlier try have another time."""
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task_id}/xcomEntries"
        found = self._call("GET", path)["xcom_entries"]
        return {(each["key"], each["timestamp"]) for each in found}

    def clear(self, run: DagRun, task_id: str) -> None:
        """Let one task of a run try again, and no other."""
        body = {"dry_run": False, "only_failed": False, "task_ids": [task_id]}
        path = f"/api/v2/dags/{run.dag_id}/clearTaskInstances"
        self._call("POST", path, body | {"dag_run_id": run.run_id})

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
            raise LocalEnvironmentError(
                f"Airflow answered {error.code} to {method} {path}: {error.read().decode()[:500]}"
            ) from error

    def _login(self) -> str:
        if self._token is None:
            # Everybody is an administrator of an Airflow that listens to this machine only.
            answer = self._call("GET", "/auth/token", authenticated=False)
            self._token = str(answer["access_token"])
        return self._token


def _runs(dag_id: str) -> str:
    return f"/api/v2/dags/{dag_id}/dagRuns?order_by=run_after"


def _run(answer: dict[str, Any]) -> DagRun:
    return DagRun(answer["dag_id"], answer["dag_run_id"], answer["state"])
