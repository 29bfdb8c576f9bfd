"""Asks Airflow, in a task, for runs of DAGs; each question is asked until there is an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_eos.hooks.answers import answered

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

UNDER_WAY = ("queued", "running")
"""The states of a run that has not ended."""


def count(
    ti: RuntimeTaskInstanceProtocol,
    dag_id: str,
    *states: str,
    run_ids: Sequence[str] | None = None,
) -> int:
    """Return how many runs of a DAG are in these states; those of ``run_ids`` where given."""
    ids = None if run_ids is None else list(run_ids)
    return answered(ti.get_dr_count, dag_id, run_ids=ids, states=list(states))


def task_state(
    ti: RuntimeTaskInstanceProtocol,
    dag_id: str,
    run_id: str,
    task_id: str,
    map_index: int | None = None,
) -> str | None:
    """Return the state of a run's task; None: it has none yet, or its row is gone."""
    mapped: dict[str, Any] = {} if map_index is None else {"map_index": map_index}
    found = answered(ti.get_task_states, dag_id, task_ids=[task_id], run_ids=[run_id], **mapped)
    return next(iter(found.get(run_id, {}).values()), None)


def why_it_stands(ti: Any, dag_id: str) -> str | None:
    """Return why no run of a DAG gets on; None: not known, as below Airflow 3.2."""
    if not hasattr(ti, "get_dag"):
        return None
    try:
        dag = answered(ti.get_dag, dag_id)
    except AirflowRuntimeError as error:
        return _refusal(dag_id, error)
    return f"{dag_id} is paused: its runs wait for ever. Unpause it" if dag.is_paused else None


def start(dag_id: str, run_id: str) -> str | None:
    """Start a run, once under its id; return why Airflow does not."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import TriggerDagRun

    asked = TriggerDagRun(dag_id=dag_id, run_id=run_id, logical_date=datetime.now(UTC))
    try:  # that a run of this id is there already is an answer, too
        answered(task_runner.SUPERVISOR_COMMS.send, asked)
    except AirflowRuntimeError as error:
        return _refusal(dag_id, error)
    return None


def _refusal(dag_id: str, error: AirflowRuntimeError) -> str:
    """Return what Airflow says of a DAG of which it starts no run."""
    said: Any = error.error.detail
    while isinstance(said, Mapping) and "detail" in said:  # what the server said is in the client's
        said = said["detail"]
    told = said.get("message") if isinstance(said, Mapping) else None
    return f"Airflow starts no run of {dag_id}: {told or error}"
