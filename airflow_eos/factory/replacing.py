"""Who replaces a dead driver: looked up in Airflow's own runs, so that two recoveries agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import get_current_context

if TYPE_CHECKING:
    from airflow_eos.factory.settings import Pipeline

STARTS = 20
"""In the place of one dead driver, until an app lives to give a heartbeat."""


def last_heartbeat(pipeline: Pipeline) -> Any:
    """What the pipeline's driver said last, in a task."""
    from airflow_eos.checkpoint import CheckpointStore, read_heartbeat
    from airflow_eos.hooks.store import CheckpointStoreHook

    options = CheckpointStoreHook(pipeline.storage_conn_id).options()
    return read_heartbeat(CheckpointStore.open(pipeline.checkpoint, storage_options=options))


def wanted_to_stop(heartbeat: Any) -> bool:
    """Whether the driver failed as it drained: what it left is ended, and nobody starts it again.

    One that drained in order is stopped, and left alone anyway.
    """
    return (
        heartbeat is not None and heartbeat.phase == "failed" and heartbeat.drained_by is not None
    )


def replacing(pipeline: Pipeline, *states: str) -> tuple[str, int]:
    """The last driver, and how many of the runs to replace it are in these states, in a task."""
    heartbeat, ti = last_heartbeat(pipeline), get_current_context()["ti"]
    driver = heartbeat.application_id if heartbeat else "first"
    run_ids = [f"resume__{driver}__{n}" for n in range(STARTS)]
    return driver, ti.get_dr_count(pipeline.dag_id, run_ids=run_ids, states=list(states))
