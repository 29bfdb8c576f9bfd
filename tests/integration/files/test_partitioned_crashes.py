"""The placed crashes, on lines of JSON in partitions: several files are one work of a task.

On a disk, in a bucket, and by whole batches.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from airflow_eos.kinds.files.manifest import LOG
from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import Action, Result, execute_recovery, plan_recovery
from airflow_eos.sinks import FileSink
from tests.integration.files import formed
from tests.support import app as shared_app
from tests.support import pipeline as shared_pipeline
from tests.support.pipeline import KILLED, Pipeline
from tests.support.servers.s3 import EmbeddedS3

pytestmark = pytest.mark.proof

DISK, BUCKET, BATCHES = "disk", "bucket", "batches"


@pytest.fixture
def described(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    form = getattr(request, "param", DISK)
    given: dict[str, Any] = {"format": "json", "partition_by": ["part"]}
    if form == BUCKET:
        server: EmbeddedS3 = request.getfixturevalue("s3")
        options = server.storage_options
        return {**given, "folder": f"{server.url}/{tmp_path.name}", "storage_options": options}
    publish = "manifest" if form == BATCHES else "listing"
    return {**given, "folder": str(tmp_path / "out"), "publish": publish}


@pytest.fixture
def pipeline(
    kafka_broker: EmbeddedKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    described: dict[str, Any],
) -> Pipeline:
    monkeypatch.setattr(shared_pipeline, "APP", Path(formed.__file__))
    monkeypatch.setattr(shared_app, "sink_of", formed.sink_of)
    return Pipeline(kafka_broker, tmp_path, settings={"place": described})


@pytest.fixture
def sink(described: dict[str, Any]) -> FileSink:
    return FileSink(**described)


def paths(sink: FileSink) -> list[str]:
    """What a reader finds: in the partitions, or by the log."""
    storage = sink.storage()
    if sink.publish == "listing":
        parts = [name for name in storage.names("") if name.startswith("part=")]
        return [entry.path for part in parts for entry in storage.below(part)]
    entries = [storage.read(entry.path) for entry in storage.store.list(LOG)]
    found = [msgspec.json.decode(line) for data in entries for line in data.splitlines()[1:]]
    return [each["path"].removeprefix(f"{storage.uri}/") for each in found if not each["isDir"]]


def visible(sink: FileSink) -> Counter[tuple[str, str]]:
    rows: Counter[tuple[str, str]] = Counter()
    for path in paths(sink):
        for line in sink.storage().read(path).splitlines():
            row = msgspec.json.decode(line)
            assert path.startswith(f"part={row['key'][-1]}/")
            rows[row["key"], row["value"]] += 1
    return rows


def assert_exactly_once(pipeline: Pipeline, sink: FileSink) -> None:
    found, expected = visible(sink), Counter(pipeline.expected)
    assert expected - found == Counter(), f"lost {(expected - found).total()} rows"
    assert found - expected == Counter(), f"duplicated {(found - expected).total()} rows"
    assert sink.storage().listed("_eos/orders/work") == {}


@pytest.mark.parametrize(
    ("described", "place"),
    [
        (DISK, "prepared@2"),
        (DISK, "decided@2"),
        (DISK, "settled-some@7"),
        (DISK, "settled@2"),
        (BATCHES, "prepared@2"),
        (BATCHES, "looked@2"),
        (BATCHES, "settled-some@2"),
        (BUCKET, "settled-some@7"),
    ],
    indirect=["described"],
)
def test_driver_killed(pipeline: Pipeline, spark: SparkSession, sink: FileSink, place: str) -> None:
    """``settled-some@7``: in the middle of the partitions of one task."""
    name, _, nth = place.partition("@")
    pipeline.feed(6000)
    pipeline.run(expect=KILLED, failpoints=f"{name}=kill@{nth}")
    pipeline.feed(1000)
    pipeline.resume(spark)
    assert_exactly_once(pipeline, sink)


@pytest.mark.parametrize("described", [DISK, BATCHES, BUCKET], indirect=True)
def test_a_batch_that_was_published_in_part_or_not_is_ended_by_a_recovery(
    pipeline: Pipeline, spark: SparkSession, sink: FileSink
) -> None:
    """From the checkpoint, and what a bucket's keys are."""
    place = "looked=kill@1" if sink.publish == "manifest" else "settled-some=kill@7"
    reach = {"files": {"storage_options": sink.storage_options}}
    pipeline.feed(4000)
    pipeline.run(expect=KILLED, failpoints=place)
    assert visible(sink).total() < 2000, "a batch"
    plan = plan_recovery(pipeline.checkpoint, None, reach=reach)
    assert {step.action for step in plan.steps} == {Action.COMMIT}
    report = execute_recovery(plan, None, reach=reach, force=True)
    assert {each.result for each in report.results} == {Result.DONE}
    assert visible(sink).total() == 2000
    pipeline.resume(spark)
    assert_exactly_once(pipeline, sink)
