"""RehearseOperator: a difference is never green, and who runs the pipeline is left alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.heartbeat import STARTED_BY
from airflow_eos.checkpoint.rehearsal import (
    REPORT,
    OutputComparison,
    RehearsalReport,
    RehearsalRequest,
)
from airflow_eos.errors import AppFailedError
from airflow_eos.operators import RehearseOperator
from airflow_eos.protocol.decision import encode
from airflow_eos.supervision.packaging import leave_behind, private_folder

from .conftest import FakeSpark

pytestmark = pytest.mark.unit


def finding(verdict) -> Callable[[FakeSpark], None]:
    """An app that rehearses, with this result."""

    def run(fake: FakeSpark) -> None:
        told = RehearsalRequest.told(fake.popen[-1]["env"])
        assert told is not None
        report = RehearsalReport(
            checkpoint=told.checkpoint,
            compared=(OutputComparison(4, "sink", verdict, 3, 3),),
            copied_bytes=1,
            seconds=1.0,
            error="",
        )
        CheckpointStore.open(told.scratch).put(REPORT, encode(report))

    return run


@pytest.fixture
def operator(store):
    def make(**arguments) -> RehearseOperator:
        return RehearseOperator(
            task_id="rehearse",
            application="/apps/new.py",
            checkpoint_location=store.location,
            ship_package=False,
            **arguments,
        )

    return make


def test_the_same_rows_are_green_and_the_app_is_no_driver_of_the_pipeline(operator, spark, store):
    spark.runs = [finding("same")]
    assert operator(batches=5, key=["id"]).execute({})["verdict"] == "same"
    env = spark.popen[-1]["env"]
    told = RehearsalRequest.told(env)
    assert told is not None
    assert (told.checkpoint, told.batches, told.key) == (store.location, 5, ("id",))
    assert STARTED_BY not in env
    assert spark.calls == ["submit /apps/new.py"]
    assert not Path(told.scratch).exists(), "the copy is removed"


@pytest.mark.parametrize("verdict", ["differs", "not known"])
def test_what_differs_or_is_not_known_is_not_green_and_not_retried(operator, spark, verdict):
    spark.runs = [finding(verdict)]
    with pytest.raises(AirflowFailException, match="RehearsalError"):
        operator().execute({})


def test_a_person_may_take_the_report_instead(operator, spark):
    spark.runs = [finding("differs")]
    assert operator(fail_on_difference=False).execute({})["verdict"] == "differs"


def test_an_app_that_compared_nothing_is_not_green(operator, spark):
    def ends(_fake: FakeSpark) -> None:
        raise AirflowException("Cannot execute: spark-submit. Error code is: 1.")

    spark.runs = [ends]
    with pytest.raises(AppFailedError, match="Error code is: 1"):
        operator(fail_on_difference=False).execute({})


def test_the_folder_that_the_running_driver_was_left_stays(operator, spark, store):
    with private_folder(store.location) as folder:
        leave_behind(folder)
    spark.runs = [finding("same")]
    operator().execute({})
    assert folder.exists()
    shutil.rmtree(folder)


def test_the_copy_of_a_rehearsal_that_was_killed_is_removed_and_of_one_that_runs_is_not(
    operator, spark, store
):
    """A copy of the state is large, and a worker's disk would fill up."""
    with private_folder(f"{store.location} rehearsal") as runs:
        with private_folder(f"{store.location} rehearsal") as killed:
            (killed / "checkpoint").touch()
            leave_behind(killed)
        spark.runs = [finding("same")]
        operator().execute({})
        assert not killed.exists()
        assert runs.exists()


def test_who_ends_the_wait_ends_the_rehearsal(operator, spark, monkeypatch):
    """As Ctrl-C under ``dag.test()``, where nobody calls ``on_kill``."""

    def until_killed(fake: FakeSpark) -> None:
        while not fake.killed:
            Event().wait(0.01)

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    spark.runs = [until_killed]
    monkeypatch.setattr("airflow_eos.operators.streaming.time", SimpleNamespace(sleep=interrupted))
    with pytest.raises(KeyboardInterrupt):
        operator().execute({})
    assert spark.killed


def test_a_driver_elsewhere_is_refused(operator, spark, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://yarn")
    with pytest.raises(AirflowFailException, match="on the worker"):
        operator(deploy_mode="cluster").execute({})
    assert not spark.calls
