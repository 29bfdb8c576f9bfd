"""Which task of Airflow this is, as the heartbeat of an app names it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from airflow_eos.checkpoint import StartedBy

if TYPE_CHECKING:
    from airflow.sdk import Context


def task_of(context: Context) -> StartedBy:
    """The task instance, without a submission yet.

    Outside of Airflow there is none: then no two calls are the same task, and none adopts an app.
    """
    ti = context.get("ti")
    if ti is None:
        run_id = f"outside-of-airflow-{uuid.uuid4().hex}"
        return StartedBy(dag_id="", task_id="", run_id=run_id, map_index=-1, submission="")
    return StartedBy(
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        run_id=ti.run_id,
        map_index=ti.map_index if ti.map_index is not None else -1,
        submission="",
    )
