"""The placed crashes of the Kafka sink, on rows kept for an HTTP endpoint that remembers tokens.

The driver dies (SIGKILL) at each step of a batch; the next start delivers each row once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import Action, Result, execute_recovery, plan_recovery
from tests.integration.kept.app import sink_of
from tests.integration.kept.endpoint import Endpoint, running
from tests.support import pipeline as support
from tests.support.pipeline import KILLED, Pipeline

pytestmark = [pytest.mark.integration]


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    with running(tmp_path) as endpoint:
        yield endpoint


@pytest.fixture
def pipeline(
    kafka_broker: EmbeddedKafka,
    tmp_path: Path,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> Pipeline:
    monkeypatch.setattr(support, "APP", Path(__file__).parent / "app.py")
    monkeypatch.setattr("tests.support.app.FileSink", sink_of)
    return Pipeline(kafka_broker, tmp_path, settings={"folder": f"wal:{endpoint.port}"})


def kept(pipeline: Pipeline) -> list[Path]:
    return list((Path(pipeline.checkpoint) / "eos" / "kept" / "sink" / "rows").iterdir())


def assert_exactly_once(pipeline: Pipeline, endpoint: Endpoint) -> None:
    found, expected = endpoint.rows(), Counter(pipeline.expected)
    assert expected - found == Counter(), f"lost {(expected - found).total()} rows"
    assert found - expected == Counter(), f"duplicated {(found - expected).total()} rows"
    assert kept(pipeline) == []


@pytest.mark.parametrize(
    "place", ["prepared@2", "decided@2", "kept-ending@2", "kept-applied@2", "settled-some@2"]
)
def test_driver_killed(
    pipeline: Pipeline, endpoint: Endpoint, spark: SparkSession, place: str
) -> None:
    name, _, nth = place.partition("@")
    pipeline.feed(6000)
    pipeline.run(expect=KILLED, failpoints=f"{name}=kill@{nth or 1}")
    pipeline.feed(1000)
    pipeline.resume(spark)
    assert_exactly_once(pipeline, endpoint)


def test_python_worker_killed(pipeline: Pipeline, endpoint: Endpoint) -> None:
    pipeline.feed(4000)
    pipeline.run(failpoints="task-prepared=kill@2", master="local[2,3]")
    assert_exactly_once(pipeline, endpoint)


def test_recovery_delivers_what_was_decided_and_removes_what_was_not(
    pipeline: Pipeline, endpoint: Endpoint, spark: SparkSession
) -> None:
    told = {
        "wal": {
            "deliver": "tests.integration.kept.endpoint:post",
            "reach": {"port": endpoint.port},
        }
    }
    pipeline.feed(4000)
    pipeline.run(expect=KILLED, failpoints="decided=kill@2")
    plan = plan_recovery(pipeline.checkpoint, reach=told)
    assert {step.action for step in plan.steps} == {Action.COMMIT}
    report = execute_recovery(plan, reach=told, force=True)
    assert {each.result for each in report.results} == {Result.DONE}
    assert endpoint.rows().total() == 4000

    pipeline.feed(2000)
    pipeline.run(expect=KILLED, failpoints="prepared=kill@1")
    report = execute_recovery(pipeline.checkpoint, reach=told, force=True)
    assert report.count(Result.DONE) == len(report.results) > 0
    assert kept(pipeline) == []
    pipeline.resume(spark)
    assert_exactly_once(pipeline, endpoint)


def test_at_least_once_the_tasks_call(
    pipeline: Pipeline, endpoint: Endpoint, spark: SparkSession
) -> None:
    pipeline.feed(2000)
    pipeline.resume(spark, guarantee="at_least_once")
    assert endpoint.rows() == Counter(pipeline.expected)
