"""Two drivers on one checkpoint, both real: started together, and one come back from the dead."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from tests.support.pipeline import Pipeline, finish, kill, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PATIENCE_S = 240  # on a busy machine an app takes minutes


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, tmp_path: Path) -> Pipeline:
    return Pipeline(kafka_broker, tmp_path)


@contextmanager
def stopped_at(pipeline: Pipeline, place: str) -> Iterator[subprocess.Popen[str]]:
    """A driver that SIGSTOPs itself there and is left lying; ``name`` or ``name@N``."""
    name, _, nth = place.partition("@")
    process = pipeline.start(failpoints=f"{name}=stop@{nth or 1}")
    try:
        hit = pipeline.folder / f"{name}.hit"
        wait_until(
            lambda: hit.exists() or process.poll() is not None, timeout=PATIENCE_S, what=place
        )
        assert process.poll() is None, finish(process, 5)[-3000:]
        yield process
    finally:
        kill(process)


def wake(process: subprocess.Popen[str]) -> str:
    """Let it go on, to its end; an error, or it would have gone on delivering."""
    os.kill(process.pid, signal.SIGCONT)
    output = finish(process, PATIENCE_S)
    assert process.returncode not in (0, None), output[-3000:]
    return output


def test_two_drivers_started_together(pipeline: Pipeline, spark: SparkSession) -> None:
    """Both have recovered and sealed before either writes; only one of them can decide."""
    pipeline.feed(6000)
    with (
        stopped_at(pipeline, "sealed") as first,
        stopped_at(pipeline, "before-prepare") as second,
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


@pytest.mark.parametrize("place", ["prepared@2", "decided@2"])
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
