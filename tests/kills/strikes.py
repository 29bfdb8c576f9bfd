"""What is done to a pipeline that runs: a part of it killed, or its task cleared or marked."""

from __future__ import annotations

from collections.abc import Callable

import psutil

from tests.kills.stage import Pipeline, kill

Strike = Callable[[Pipeline], None]


def task_process(pipeline: Pipeline) -> None:
    """Spark-submit's parent: the process in which the operator runs."""
    kill(pipeline.parents()[1])


def worker(pipeline: Pipeline) -> None:
    """With the process that supervises it: nobody tells Airflow."""
    kill(*pipeline.parents()[1:3])


def driver(pipeline: Pipeline) -> None:
    """The python process that decides."""
    kill(pipeline.heartbeat.pid)


def machine(pipeline: Pipeline) -> None:
    """Driver, spark-submit, task and its supervisor: everything on the worker but Airflow's own."""
    kill(pipeline.heartbeat.pid, *pipeline.parents()[:3])


def executor(pipeline: Pipeline) -> None:
    """The python workers of the tasks; in local mode the JVM is the driver's own."""
    jvm = psutil.Process(pipeline.parents()[0])
    kill(*[each.pid for each in jvm.children() if each.pid != pipeline.heartbeat.pid])


def scheduler(pipeline: Pipeline) -> None:
    pipeline.stage.restart("scheduler")


def triggerer(pipeline: Pipeline) -> None:
    pipeline.stage.restart("triggerer")


def api_server(pipeline: Pipeline) -> None:
    pipeline.stage.restart("api-server")
    pipeline.until(pipeline.stage.airflow.api.healthy, "the API server")


def cleared(pipeline: Pipeline) -> None:
    assert pipeline.run is not None
    body = {"dry_run": False, "task_ids": ["run"], "dag_run_id": pipeline.run.run_id}
    body |= {"only_failed": False, "include_downstream": False}
    path = f"/api/v2/dags/{pipeline.run.dag_id}/clearTaskInstances"
    pipeline.stage.airflow.api._call("POST", path, body)


def everything(pipeline: Pipeline) -> None:
    """Airflow's processes, the task, its worker, spark-submit and the driver, at once."""
    pipeline.stage.restart_everything()
    pipeline.until(pipeline.stage.airflow.api.healthy, "all of Airflow")


def marked(state: str) -> Strike:
    def mark(pipeline: Pipeline) -> None:
        assert pipeline.run is not None
        path = f"/api/v2/dags/{pipeline.run.dag_id}/dagRuns/{pipeline.run.run_id}/taskInstances/run"
        pipeline.stage.airflow.api._call("PATCH", path, {"new_state": state})

    return mark


def deferred(strike: Strike) -> Strike:
    def once_deferred(pipeline: Pipeline) -> None:
        pipeline.until(lambda: pipeline.task["state"] == "deferred", "the task to defer")
        strike(pipeline)

    return once_deferred


def time_passes(pipeline: Pipeline) -> None:
    """Its execution_timeout does the rest."""
