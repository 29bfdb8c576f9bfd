"""A look of the watchdog in a unit test: Airflow as its database is, and what the looks find."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import DAG, PokeReturnValue
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun

from airflow_eos.errors import EosError, KafkaUnavailableError
from airflow_eos.ops.supervision.progress import TimeoutJudge
from airflow_eos.sensors import CheckpointProgressSensor

WORK = {"participant": "sink", "key": "orders-etl-0-0", "age_ms": 9, "time_left_ms": 9}
WELL: dict[str, Any] = {"health": "fresh"}
HALF_TIME: dict[str, Any] = {"health": "fresh", "works": [WORK]}
STALL: dict[str, Any] = {"health": "stalled"}
NO_ANSWER: dict[str, Any] = {"works": None, "health": None}


def server_says(status: int | None, message: str) -> AirflowRuntimeError:
    """What Airflow's client raises; None: it has not reached the server."""
    detail = {
        "status_code": status,
        "message": message,
        "detail": {"detail": {"reason": "r", "message": message}},
    }
    return AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))


@dataclass
class Airflow:
    """Runs and DAGs as Airflow's database has them, and what tasks before have answered."""

    runs: dict[tuple[str, str], str] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    left: list[Any] = field(default_factory=list)
    paused: set[str] = field(default_factory=set)
    absent: dict[str, str] = field(default_factory=dict)
    """DAGs of which no run can be started, and what Airflow says of them."""
    try_number: int = 1

    def xcom_pull(
        self,
        *,
        task_ids: str,
        key: str = "return_value",
        include_prior_dates: bool = False,
        map_indexes: int | None = None,
        **_: Any,
    ) -> Any:
        """As Airflow's: of several runs it is a list, but for one map index the newest."""
        if include_prior_dates:
            newest = self.left[-1] if self.left else None
            return newest if map_indexes == -1 or len(self.left) < 2 else self.left
        return self.answers.get(task_ids if key == "return_value" else f"{task_ids}.{key}")

    def xcom_push(self, *, key: str, value: Any) -> None:  # noqa: ARG002 - Airflow's signature
        """Of the one task that is looked at again and again."""
        self.left.append(value)

    def get_task_states(
        self, dag_id: str, *, task_ids: list[str], run_ids: list[str], **_: Any
    ) -> Any:
        """Each task of a run is as its run is; of a row that is gone there is nothing."""
        found = {each: self.runs.get((dag_id, each)) for each in run_ids}
        return {of: dict.fromkeys(task_ids, state) for of, state in found.items() if state}

    def get_dr_count(self, dag_id: str, *, states: list[str], run_ids=None) -> int:
        found = [
            run_id
            for (of, run_id), state in self.runs.items()
            if of == dag_id and state in states and (run_ids is None or run_id in run_ids)
        ]
        return len(found)

    def get_dag(self, dag_id: str) -> Any:
        return SimpleNamespace(is_paused=dag_id in self.paused)

    def send(self, asked: Any) -> Any:
        """As the supervisor answers a task."""
        if not isinstance(asked, TriggerDagRun):
            return None
        if asked.dag_id in self.absent:
            raise server_says(404, self.absent[asked.dag_id])
        if (asked.dag_id, asked.run_id) in self.runs:
            return ErrorResponse(error=ErrorType.DAGRUN_ALREADY_EXISTS)
        self.runs[asked.dag_id, asked.run_id] = "queued"
        return None


@dataclass(frozen=True)
class Looked:
    """How a look has ended: ``green``, ``skipped`` or ``red``, why, and the runs it has started."""

    state: str
    said: str
    started: list[str]


@dataclass
class Watching:
    """The watchdog of a pipeline, whose looks find what a test says."""

    dag: DAG
    airflow: Airflow
    run: SimpleNamespace
    monkeypatch: pytest.MonkeyPatch

    def __post_init__(self) -> None:
        self.monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", self.airflow, raising=False)
        kind = type(self.dag.get_task("look"))
        for name in ("_settings", "_reach"):
            self.monkeypatch.setattr(kind, name, lambda *_: {})

    def finds(
        self,
        *,
        health: str | None = "fresh",
        works: list[dict[str, Any]] | None = (),  # type: ignore[assignment]
        alive: bool = False,
        batch: int = 7,
    ) -> None:
        def progress(*_: Any) -> PokeReturnValue:
            if health is None:
                raise KafkaUnavailableError("no broker answers")
            seen = {"alive": alive, "batch_id": batch, "health": health, "reason": "so it is"}
            return PokeReturnValue(is_done=health != "stalled", xcom_value=seen)

        def timeouts(*_: Any) -> list[dict[str, Any]]:
            if works is None:
                raise KafkaUnavailableError("no broker answers")
            return list(works)

        self.monkeypatch.setattr(CheckpointProgressSensor, "poke", progress)
        self.monkeypatch.setattr(TimeoutJudge, "look", timeouts)

    def look(self, found: dict[str, Any] = WELL, **more: Any) -> Looked:
        """Look once; each look is in a run of its own."""
        self.finds(**{**found, **more})
        return self.look_again()

    def look_again(self) -> Looked:
        """Look at what was said last, or what is there."""
        before = set(self.airflow.runs)
        if not hasattr(self.run, "run_after"):
            self.run.run_after = datetime(2026, 11, 1, tzinfo=UTC)
        state, said = "green", ""
        try:
            context = cast("Any", {"ti": self.airflow, "dag_run": self.run})
            self.dag.get_task("look").execute(context)
        except AirflowSkipException as why:
            state, said = "skipped", str(why)
        except (AirflowFailException, EosError) as why:
            state, said = "red", str(why)
        return Looked(state, said, [run_id for _, run_id in set(self.airflow.runs) - before])
