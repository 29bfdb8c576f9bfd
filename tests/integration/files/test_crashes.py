"""The placed crashes of the Kafka sink, on files: the port is enough for a kind that is not Kafka.

The driver dies (SIGKILL) at each step of a batch; the next start delivers each row once.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import Action, Result, execute_recovery, plan_recovery
from tests.support.pipeline import KILLED, Pipeline

pytestmark = [pytest.mark.integration]


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, tmp_path: Path) -> Pipeline:
    return Pipeline(kafka_broker, tmp_path, settings={"folder": str(tmp_path / "out")})


def visible(pipeline: Pipeline) -> Counter[tuple[str, str]]:
    """What any reader of Parquet finds in the folder."""
    rows: Counter[tuple[str, str]] = Counter()
    for file in (pipeline.folder / "out").glob("*.parquet"):
        for row in pq.ParquetFile(file).read().to_pylist():
            rows[(row["key"].decode(), row["value"].decode())] += 1
    return rows


def prepared(pipeline: Pipeline) -> list[Path]:
    return list((pipeline.folder / "out" / "_eos" / "sink" / "work").iterdir())


def assert_exactly_once(pipeline: Pipeline) -> None:
    found, expected = visible(pipeline), Counter(pipeline.expected)
    assert expected - found == Counter(), f"lost {(expected - found).total()} rows"
    assert found - expected == Counter(), f"duplicated {(found - expected).total()} rows"
    hidden = {file.name for file in prepared(pipeline)}
    assert hidden <= {file.stem for file in (pipeline.folder / "out").glob("*.parquet")}


@pytest.mark.parametrize(
    "place", ["sealed", "prepared@2", "decided@2", "settled-some@2", "settled@2"]
)
def test_driver_killed(pipeline: Pipeline, spark: SparkSession, place: str) -> None:
    name, _, nth = place.partition("@")
    pipeline.feed(6000)
    pipeline.run(expect=KILLED, failpoints=f"{name}=kill@{nth or 1}")
    pipeline.feed(1000)
    pipeline.resume(spark)
    assert_exactly_once(pipeline)


@pytest.mark.parametrize("place", ["task-wrote", "task-prepared"])
def test_python_worker_killed(pipeline: Pipeline, place: str) -> None:
    pipeline.feed(4000)
    pipeline.run(failpoints=f"{place}=kill@2", master="local[2,3]")
    assert_exactly_once(pipeline)


def test_what_was_decided_is_committed_and_what_was_not_is_removed_by_a_recovery(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    """From the checkpoint alone: it names the folder, and nothing else is needed."""
    pipeline.feed(4000)
    pipeline.run(expect=KILLED, failpoints="decided=kill@2")
    plan = plan_recovery(pipeline.checkpoint, None)
    assert {step.action for step in plan.steps} == {Action.COMMIT}
    assert all(step.time_left_ms is None for step in plan.steps), "nothing ends a file by itself"
    report = execute_recovery(plan, None, force=True)
    assert {each.result for each in report.results} == {Result.DONE}
    assert visible(pipeline).total() == 4000

    pipeline.feed(2000)
    pipeline.run(expect=KILLED, failpoints="prepared=kill@1")
    report = execute_recovery(pipeline.checkpoint, None, force=True)
    assert report.count(Result.DONE) == len(report.results) > 0
    assert report.sealed is not None
    assert prepared(pipeline) == []
    pipeline.resume(spark)
    assert_exactly_once(pipeline)


def test_at_least_once_writes_visible_files(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.feed(2000)
    pipeline.resume(spark, guarantee="at_least_once")
    assert visible(pipeline) == Counter(pipeline.expected)
