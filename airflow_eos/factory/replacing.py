"""Who replaces a dead driver, and when nobody is to.

Airflow's own runs say by whom one is replaced, so that two recoveries agree. The checkpoint says
whether it is to be at all: asked where a resumption is decided, and again where it begins, since
its run may have waited for hours behind another.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow.sdk import get_current_context

from airflow_eos.factory.rendering import rendered

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore
    from airflow_eos.factory.settings import Pipeline

STARTS = 20
"""In the place of one dead driver, until an app lives to give a heartbeat."""
ASKED_BY = "eos_asked_by"
"""In the configuration of a run: the person who wants the app to run, whoever wanted it to stop."""

_RESUME = "resume__"
_LOOK_S = 1.0


def last_heartbeat(pipeline: Pipeline) -> Any:
    """What the pipeline's driver said last, in a task."""
    from airflow_eos.checkpoint import read_heartbeat

    return read_heartbeat(store_of(pipeline))


def replacing(pipeline: Pipeline, *states: str) -> tuple[str, int]:
    """The last driver, and how many of the runs to replace it are in these states, in a task."""
    driver, ti = _driver(last_heartbeat(pipeline)), get_current_context()["ti"]
    run_ids = [f"{_RESUME}{driver}__{n}" for n in range(STARTS)]
    return driver, ti.get_dr_count(pipeline.dag_id, run_ids=run_ids, states=list(states))


def stays_down(pipeline: Pipeline) -> str | None:
    """Why the last driver is not to be replaced, in a task; None where it is, should it be dead.

    What no restart heals is for a person. One who asked it to stop wants that, however it ended.
    Airflow asks in the name of a task that ended: was it cleared or marked, that was a wish too;
    where its run failed (a worker that was shut down, an API server that was away) nobody has
    wished for anything.
    """
    from airflow_eos.checkpoint import drain_of
    from airflow_eos.checkpoint.liveness import BY_AIRFLOW

    last = last_heartbeat(pipeline)
    if last is None:
        return None
    request = drain_of(store_of(pipeline), last)
    asked_by = {last.drained_by, request.requested_by if request is not None else None}
    people = asked_by - {None, BY_AIRFLOW}
    if people:
        how = "stopped" if last.phase == "stopped" else "died"
        return f"{people.pop()} asked the app to stop, and it {how}"
    if last.drained_by == BY_AIRFLOW:
        return (
            None if _its_run_failed(pipeline, last) else "its task was stopped, and has not failed"
        )
    if last.phase == "failed" and last.restart_heals is False:
        return f"no restart heals what it ended with: {last.reason}"
    return "it ended in order" if last.phase == "stopped" else None


def is_alive(pipeline: Pipeline) -> str | None:
    """How the last driver was seen to live, in a task; None where it is dead.

    Waits until it shows: for three of its intervals where it is dead.
    """
    from airflow_eos.checkpoint import StartedBy
    from airflow_eos.supervision.adoption import Action, choose
    from airflow_eos.supervision.pulse import Pulse

    nobody = StartedBy(dag_id="", task_id="", run_id="", map_index=-1, submission="")
    pulse = Pulse(store_of(pipeline), every_s=_LOOK_S)
    while True:
        seen = pulse.look_if_it_answers(refused=True)
        choice = None if seen is None else choose(seen, nobody, None)
        if choice is not None and choice.action is not Action.LOOK:
            return choice.reason if choice.action is Action.REFUSE else None
        time.sleep(_LOOK_S)


def overtaken(pipeline: Pipeline) -> str | None:
    """Why this run, which is to replace a driver, has nothing to replace any more, in a task."""
    run = get_current_context()["dag_run"]
    if not run.run_id.startswith(_RESUME):
        return None
    driver, last = run.run_id.removeprefix(_RESUME).rpartition("__")[0], last_heartbeat(pipeline)
    if last is not None and last.started_by is not None and last.started_by.run_id == run.run_id:
        return None  # its own: somebody has cleared this run
    if _driver(last) != driver:
        return f"driver {_driver(last)} has come since"
    return None if (run.conf or {}).get(ASKED_BY) else stays_down(pipeline)


def _its_run_failed(pipeline: Pipeline, last: Any) -> bool:
    us = last.started_by
    if us is None or us.dag_id != pipeline.dag_id:
        return False
    count = get_current_context()["ti"].get_dr_count
    return bool(count(pipeline.dag_id, run_ids=[us.run_id], states=["failed"]))


def _driver(heartbeat: Any) -> str:
    return heartbeat.application_id if heartbeat is not None else "first"


def store_of(pipeline: Pipeline) -> CheckpointStore:
    """The pipeline's checkpoint, in a task."""
    from airflow_eos.hooks.store import CheckpointStoreHook

    here = rendered(pipeline)
    return CheckpointStoreHook(here.storage_conn_id).open(here.checkpoint)
