"""The placed crashes of the Kafka sink, on tables.

The driver dies (SIGKILL) at each step of a batch; the next start delivers each row once.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import Action, Result, execute_recovery, plan_recovery
from tests.integration.lake.app import KIND, sink_of
from tests.integration.lake.kinds import KINDS
from tests.support import app
from tests.support import pipeline as running
from tests.support.pipeline import KILLED, Pipeline

pytestmark = [pytest.mark.integration]

ROWS = pa.schema([("key", pa.binary()), ("value", pa.binary())])


@pytest.fixture(params=sorted(KINDS))
def pipeline(
    request: pytest.FixtureRequest,
    kafka_broker: EmbeddedKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Pipeline:
    KINDS[request.param].create(tmp_path / "out", ROWS)
    monkeypatch.setenv(KIND, request.param)
    monkeypatch.setattr(running, "APP", Path(__file__).with_name("app.py"))
    monkeypatch.setattr(app, "FileSink", partial(sink_of, request.param))
    return Pipeline(kafka_broker, tmp_path, settings={"folder": str(tmp_path / "out")})


def visible(pipeline: Pipeline, kind: str) -> Counter[tuple[str, str]]:
    rows = KINDS[kind].rows(pipeline.folder / "out").to_pylist()
    return Counter((row["key"].decode(), row["value"].decode()) for row in rows)


def assert_exactly_once(pipeline: Pipeline, kind: str) -> None:
    found, expected = visible(pipeline, kind), Counter(pipeline.expected)
    assert expected - found == Counter(), f"lost {(expected - found).total()} rows"
    assert found - expected == Counter(), f"duplicated {(found - expected).total()} rows"
    works = pipeline.folder / "checkpoint" / "eos" / "works" / "sink"
    assert not works.exists() or list(works.iterdir()) == [], "what has ended leaves no note"


@pytest.fixture
def kind(request: pytest.FixtureRequest, pipeline: Pipeline) -> str:
    return str(request.node.callspec.params["pipeline"])


@pytest.mark.parametrize("place", ["prepared@2", "decided@2", "looked@2", "settled-some@2"])
def test_driver_killed(pipeline: Pipeline, kind: str, spark: SparkSession, place: str) -> None:
    name, _, nth = place.partition("@")
    pipeline.feed(6000)
    pipeline.run(expect=KILLED, failpoints=f"{name}=kill@{nth or 1}")
    pipeline.feed(1000)
    pipeline.resume(spark)
    assert_exactly_once(pipeline, kind)


@pytest.mark.parametrize("place", ["task-noted", "task-filed"])
def test_python_worker_killed(pipeline: Pipeline, kind: str, place: str) -> None:
    pipeline.feed(4000)
    pipeline.run(failpoints=f"{place}=kill@2", master="local[2,3]")
    assert_exactly_once(pipeline, kind)


def test_promised_files_that_are_lost_are_replayed(
    pipeline: Pipeline, kind: str, spark: SparkSession
) -> None:
    pipeline.feed(6000)
    pipeline.run(expect=KILLED, failpoints="decided=kill@2")
    works = pipeline.folder / "checkpoint" / "eos" / "works" / "sink"
    files = KINDS[kind].files(pipeline.folder / "out")
    next(files / f"{note.name}.parquet" for note in works.iterdir()).unlink()
    pipeline.resume(spark)
    assert_exactly_once(pipeline, kind)


def test_what_was_decided_is_committed_and_what_was_not_is_removed_by_a_recovery(
    pipeline: Pipeline, kind: str, spark: SparkSession
) -> None:
    reach = KINDS[kind].reach(pipeline.folder / "out")
    pipeline.feed(4000)
    pipeline.run(expect=KILLED, failpoints="decided=kill@2")
    plan = plan_recovery(pipeline.checkpoint, reach=reach)
    assert {step.action for step in plan.steps} == {Action.COMMIT}
    report = execute_recovery(plan, reach=reach, force=True)
    assert {each.result for each in report.results} == {Result.DONE}
    assert visible(pipeline, kind).total() == 4000

    pipeline.feed(2000)
    pipeline.run(expect=KILLED, failpoints="prepared=kill@1")
    report = execute_recovery(pipeline.checkpoint, reach=reach, force=True)
    assert report.count(Result.DONE) == len(report.results) > 0
    assert report.sealed is not None
    pipeline.resume(spark)
    assert_exactly_once(pipeline, kind)


def test_at_least_once_writes_visible_rows(
    pipeline: Pipeline, kind: str, spark: SparkSession
) -> None:
    pipeline.feed(2000)
    pipeline.resume(spark, guarantee="at_least_once")
    assert visible(pipeline, kind) == Counter(pipeline.expected)
