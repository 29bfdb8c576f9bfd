"""Kafka and files behind one decision, under the placed crashes: both have all rows, or neither.

Each row of the input goes to the topic once and to the files twice.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.client.wire import Wire
from airflow_eos.kafka.transactions.ending import end_transactions
from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import Action, Result, execute_recovery, plan_recovery
from tests.support.pipeline import KILLED, Pipeline

pytestmark = [pytest.mark.integration]


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, tmp_path: Path) -> Pipeline:
    settings = {"folder": str(tmp_path / "out"), "several": True}
    return Pipeline(kafka_broker, tmp_path, settings=settings)


def in_files(pipeline: Pipeline) -> Counter[tuple[str, str, str]]:
    rows: Counter[tuple[str, str, str]] = Counter()
    for file in (pipeline.folder / "out").glob("*.parquet"):
        for row in pq.ParquetFile(file).read().to_pylist():
            rows[(row["key"].decode(), row["value"].decode(), row["side"])] += 1
    return rows


def assert_exactly_once(pipeline: Pipeline) -> None:
    pipeline.assert_exactly_once()
    assert in_files(pipeline) == Counter(
        (*row, side) for row in pipeline.expected for side in ("from", "to")
    )
    assert pipeline.open_transactions() == ()


def kafka(pipeline: Pipeline) -> dict[str, str]:
    return {"bootstrap.servers": pipeline.bootstrap}


@pytest.mark.parametrize("place", ["prepared@2", "decided@2", "settled-some@2", "settled@2"])
def test_driver_killed(pipeline: Pipeline, spark: SparkSession, place: str) -> None:
    name, _, nth = place.partition("@")
    pipeline.feed(6000)
    pipeline.run(expect=KILLED, failpoints=f"{name}=kill@{nth or 1}")
    pipeline.feed(1000)
    pipeline.resume(spark)
    assert_exactly_once(pipeline)


@pytest.mark.parametrize("place", ["task-wrote@2", "task-prepared@2"])
def test_python_worker_killed(pipeline: Pipeline, place: str) -> None:
    name, _, nth = place.partition("@")
    pipeline.feed(4000)
    pipeline.run(failpoints=f"{name}=kill@{nth}", master="local[2,3]")
    assert_exactly_once(pipeline)


def test_a_promise_that_only_kafka_lost_is_replayed_to_kafka_alone(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.feed(4000)
    pipeline.run(expect=KILLED, failpoints="decided=kill@2")
    with Wire(KafkaSettings.from_librdkafka(kafka(pipeline))) as wire:
        open_there = [each.identity for each in pipeline.open_transactions()]
        end_transactions(wire, open_there, commit=False)
    plan = plan_recovery(pipeline.checkpoint, kafka(pipeline))
    assert {(step.action, step.work and step.work.participant) for step in plan.steps} == {
        (Action.COMMIT, "postings"),
        (Action.REPLAY, None),
    }
    assert [each.participant for each in plan.steps if each.action is Action.REPLAY] == ["orders"]
    pipeline.feed(500)
    pipeline.resume(spark)
    assert_exactly_once(pipeline)


def test_recovery_ends_the_work_of_each_kind_and_refuses_where_one_cannot_be_reached(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.feed(4000)
    pipeline.run(expect=KILLED, failpoints="decided=kill@2")
    with pytest.raises(ConfigurationError, match="kafka 'orders'"):
        plan_recovery(pipeline.checkpoint)
    plan = plan_recovery(pipeline.checkpoint, kafka(pipeline))
    found = Counter(step.work.participant for step in plan.steps)
    assert found.keys() == {"orders", "postings"}
    assert {step.action for step in plan.steps} == {Action.COMMIT}
    report = execute_recovery(plan, kafka(pipeline), force=True)
    assert {each.result for each in report.results} == {Result.DONE}
    assert in_files(pipeline).total() == 2 * len(pipeline.visible()) == 8000
    pipeline.resume(spark)
    assert_exactly_once(pipeline)
