"""Promises that the broker's timeout broke: the next start replays what is missing, no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from tests.support.app import without_decisions
from tests.support.host import Host
from tests.support.pipeline import KILLED, Pipeline, wait_until

pytestmark = pytest.mark.proof


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, host: Host, tmp_path: Path) -> Pipeline:
    return Pipeline(kafka_broker, tmp_path, host=host)


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.proof) for kind in ("map", "shuffle")), "count"]
)
def test_promised_rows_whose_transactions_timed_out_are_replayed(
    pipeline: Pipeline, spark: SparkSession, kind: str
) -> None:
    pipeline.feed(6000)
    pipeline.run_in_time(kind=kind, timeout_s=2, failpoints="settled-some=kill@2")
    wait_until(lambda: pipeline.open_transactions() == (), what="the broker's own abort")
    pipeline.resume(spark, kind=kind, timeout_s=30)
    if kind == "count":
        pipeline.assert_counts()
    else:
        pipeline.assert_exactly_once()


def test_a_replay_under_another_parallelism_writes_the_difference(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.feed(4000)
    pipeline.run(kind="shuffle", expect=KILLED, failpoints="settled-some=kill")
    pipeline.lose_what_is_open()
    assert 0 < len(pipeline.visible()) < 2000, "a part of the batch must be there already"
    pipeline.resume(spark, kind="shuffle", shuffle_partitions=5)
    pipeline.assert_exactly_once()


def test_negative_control_without_the_decision_rows_come_twice(
    pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With decisions switched off (in the app, not in the product) a crash duplicates rows."""
    pipeline.feed(4000)
    pipeline.run(without_decisions=True, expect=KILLED, failpoints="settled=kill")
    without_decisions(monkeypatch.setattr)
    pipeline.resume(spark)
    with pytest.raises(AssertionError, match="duplicated"):
        pipeline.assert_exactly_once()
