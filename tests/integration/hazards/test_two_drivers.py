"""Two drivers on one checkpoint, both real: started together, and one come back from the dead."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.stopping import PATIENCE_S, stopped_at, wake
from tests.support.host import Host
from tests.support.pipeline import Pipeline, finish

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, host: Host, tmp_path: Path) -> Pipeline:
    return Pipeline(kafka_broker, tmp_path, host=host)


@pytest.mark.proof
def test_two_drivers_started_together(pipeline: Pipeline, spark: SparkSession) -> None:
    """Both have recovered and sealed before either writes; only one of them can decide."""
    pipeline.feed(6000)
    with (
        stopped_at(pipeline, "sealed") as first,
        stopped_at(pipeline.elsewhere(), "before-prepare") as second,
    ):
        os.kill(first.pid, signal.SIGCONT)
        os.kill(second.pid, signal.SIGCONT)
        outputs = [finish(process, PATIENCE_S) for process in (first, second)]
        ends = [process.returncode for process in (first, second)]
    assert 0 not in ends or ends.count(0) == 1, f"{ends}: {outputs}"
    assert any("SupersededError" in output for output in outputs), outputs
    pipeline.resume(spark)
    pipeline.assert_exactly_once()
    pipeline.assert_ordered()
    assert pipeline.open_transactions() == ()


@pytest.mark.parametrize(
    "place", ["prepared@2", pytest.param("decided@2", marks=pytest.mark.proof)]
)
def test_a_driver_that_wakes_up_after_another_took_over(
    pipeline: Pipeline, spark: SparkSession, place: str
) -> None:
    pipeline.feed(6000)
    with stopped_at(pipeline, place) as zombie:
        pipeline.resume(spark)
        pipeline.assert_exactly_once()
        before = pipeline.visible()
        wake(zombie)
    assert pipeline.visible() == before, "the zombie delivered something"
    assert pipeline.open_transactions() == ()
    pipeline.feed(100)
    pipeline.resume(spark)
    pipeline.assert_exactly_once()
    pipeline.assert_ordered()
