"""Two streams are joined, or a stream with a table: each pair once, through deaths of a driver."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_eos.errors import NonDeterministicReplayError
from airflow_eos.local import EmbeddedKafka
from airflow_eos.sinks.source import stateful_spark_conf
from tests.support.host import Host
from tests.support.pipeline import KILLED, Pipeline
from tests.support.topics import produce

pytestmark = pytest.mark.proof

BEGIN, ORDERS, HOUR = 1_790_000_000, 1200, 3600
KEYS = 50


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, host: Host, tmp_path: Path) -> Pipeline:
    return Pipeline(kafka_broker, tmp_path, host=host)


@pytest.fixture
def joined(pipeline: Pipeline) -> Pipeline:
    """An order a second; every other one is paid half a minute later, and each tenth too late."""
    payments = f"{pipeline.name}-payments"
    pipeline.broker.create_topic(payments, 2)
    pipeline.settings = {
        "kind": "join",
        "joined": payments,
        "max_offsets_per_trigger": 300,
        "spark_conf": stateful_spark_conf(),
    }
    orders = [(f"{number}", f"{BEGIN + number}") for number in range(ORDERS)]
    paid = [
        (f"{number}", f"{BEGIN + number + (2 * HOUR if number % 10 == 0 else 30)}")
        for number in range(0, ORDERS, 2)
    ]
    produce(pipeline.bootstrap, f"{pipeline.name}-in", orders)
    produce(pipeline.bootstrap, payments, paid)
    pipeline.expected = [pair for pair in paid if int(pair[0]) % 10]
    return pipeline


@pytest.mark.parametrize(
    "place", ["prepared@2", pytest.param("decided@2", marks=pytest.mark.proof)]
)
def test_each_pair_of_two_topics_comes_once(
    joined: Pipeline, spark: SparkSession, place: str
) -> None:
    """A batch has orders whose payments came before: the pair needs the state of that one."""
    joined.run(failpoints=place.replace("@", "=kill@"), expect=KILLED)
    before = len(joined.visible())
    assert 0 < before < len(joined.expected)
    joined.resume(spark)
    joined.assert_exactly_once()


@pytest.fixture
def labels(pipeline: Pipeline) -> Path:
    """A table with a label for each key, of which readers have a part of a batch."""
    folder = pipeline.folder / "labels"
    write(folder, "old")
    pipeline.settings = {"kind": "lookup", "joined": str(folder)}
    pipeline.feed(6000, KEYS)
    pipeline.run(failpoints="settled-some=kill@2", expect=KILLED)
    pipeline.lose_what_is_open()
    return folder


def write(folder: Path, label: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = [json.dumps({"key": f"k{number}", "label": label}) for number in range(KEYS)]
    (folder / "labels.json").write_text("\n".join(rows))


def test_a_table_that_changes_before_a_replay_is_noticed_and_one_that_does_not_is_exact(
    pipeline: Pipeline, labels: Path, spark: SparkSession
) -> None:
    there = pipeline.visible()
    write(labels, "new")
    with pytest.raises(NonDeterministicReplayError):
        pipeline.resume(spark)
    assert pipeline.visible() == there, "nothing of the changed table was written"

    write(labels, "old")  # as the error says: once the table is what it was, it goes on
    pipeline.resume(spark)
    expected = Counter((key, f"old {value}") for key, value in pipeline.expected)
    assert Counter(pipeline.visible()) == expected
