"""One try of a task in a process of its own, to be killed: ``python -m … '{"ti": …, …}'``."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from airflow_eos.operators import SparkStreamingOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


def task_instance(**other: Any) -> Context:
    """A context that names a task, as Airflow's does."""
    told = {"dag_id": "orders", "task_id": "etl", "run_id": "r1", "map_index": -1, **other}
    return cast("Context", {"ti": SimpleNamespace(**told)})


def operator(arguments: dict[str, Any]) -> SparkStreamingOperator:
    """From JSON; times are in seconds."""
    times = {"patience", "drain_timeout", "restart_delay", "submit_timeout"}
    made: dict[str, Any] = {
        name: timedelta(seconds=value) if name in times else value
        for name, value in arguments.items()
    }
    return SparkStreamingOperator(task_id="etl", **made)


if __name__ == "__main__":
    operator(json.loads(sys.argv[1])).execute(task_instance())
