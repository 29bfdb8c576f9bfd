"""The placed crashes, on lines of JSON in partitions: several files are one work of a task."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import Action, Result, execute_recovery, plan_recovery
from tests.integration.files import formed
from tests.support import app as shared_app
from tests.support import pipeline as shared_pipeline
from tests.support.pipeline import KILLED, Pipeline

pytestmark = [pytest.mark.integration]


@pytest.fixture
def pipeline(
    kafka_broker: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Pipeline:
    monkeypatch.setattr(shared_pipeline, "APP", Path(formed.__file__))
    monkeypatch.setattr(shared_app, "sink_of", formed.sink_of)
    sink = {"folder": str(tmp_path / "out"), "format": "json", "partition_by": ["part"]}
    return Pipeline(kafka_broker, tmp_path, settings={"folder": msgspec.json.encode(sink).decode()})


def visible(pipeline: Pipeline) -> Counter[tuple[str, str]]:
    """What any reader of lines finds in the partitions."""
    rows: Counter[tuple[str, str]] = Counter()
    for file in (pipeline.folder / "out").glob("part=*/*.json"):
        for line in file.read_bytes().splitlines():
            row = msgspec.json.decode(line)
            assert file.parent.name == f"part={row['key'][-1]}"
            rows[row["key"], row["value"]] += 1
    return rows


def assert_exactly_once(pipeline: Pipeline) -> None:
    found, expected = visible(pipeline), Counter(pipeline.expected)
    assert expected - found == Counter(), f"lost {(expected - found).total()} rows"
    assert found - expected == Counter(), f"duplicated {(found - expected).total()} rows"
    assert not list((pipeline.folder / "out" / "_eos" / "orders" / "work").iterdir())


@pytest.mark.parametrize("place", ["prepared@2", "decided@2", "settled-some@7", "settled@2"])
def test_driver_killed(pipeline: Pipeline, spark: SparkSession, place: str) -> None:
    """``settled-some@7``: in the middle of the partitions of one task."""
    name, _, nth = place.partition("@")
    pipeline.feed(6000)
    pipeline.run(expect=KILLED, failpoints=f"{name}=kill@{nth}")
    pipeline.feed(1000)
    pipeline.resume(spark)
    assert_exactly_once(pipeline)


def test_a_partly_published_batch_is_ended_by_a_recovery(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.feed(4000)
    pipeline.run(expect=KILLED, failpoints="settled-some=kill@7")
    assert 0 < visible(pipeline).total() < 4000
    plan = plan_recovery(pipeline.checkpoint, None)
    assert {step.action for step in plan.steps} == {Action.COMMIT}
    report = execute_recovery(plan, None, force=True)
    assert {each.result for each in report.results} == {Result.DONE}
    assert visible(pipeline).total() == 4000
    pipeline.resume(spark)
    assert_exactly_once(pipeline)
