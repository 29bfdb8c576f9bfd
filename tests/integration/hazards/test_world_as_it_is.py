"""Real Spark in an unkind world: long sleep, two plans of a batch, older copies, a prefix twice.

Each of these delivered rows twice, or ended what was promised, before *Terms*, *Offsets* and
*Ownership* were rules (docs/protocol.md).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_eos.errors import OwnershipError
from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.stopping import stopped_at, wake
from tests.support.host import Host
from tests.support.pipeline import KILLED, Pipeline, finish

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

RETAIN_TWO: Mapping[str, Any] = {
    "spark_conf": {"spark.sql.streaming.minBatchesToRetain": "2"},
    "max_offsets_per_trigger": 300,
}


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, host: Host, tmp_path: Path) -> Pipeline:
    return Pipeline(kafka_broker, tmp_path, host=host)


@pytest.mark.parametrize(
    "place", ["settled@2", pytest.param("before-prepare@2", marks=pytest.mark.proof)]
)
def test_a_sleeper_plans_a_batch_again_that_spark_and_we_have_purged(
    pipeline: Pipeline, spark: SparkSession, place: str
) -> None:
    """Hole 1: of 2,700 rows 1,800 came twice, and the sleeper went on."""
    pipeline.feed(2700)
    with stopped_at(pipeline, place, **RETAIN_TWO) as sleeper:
        pipeline.resume(spark, **RETAIN_TWO)
        assert not (Path(pipeline.checkpoint) / "offsets" / "2").exists(), "nothing was purged"
        pipeline.assert_exactly_once()
        before = pipeline.visible()
        output = wake(sleeper)
    assert "Superseded" in output or "CONCURRENT_STREAM_LOG_UPDATE" in output, output[-3000:]
    assert pipeline.visible() == before, "the sleeper delivered something"
    pipeline.feed(300)
    pipeline.resume(spark, **RETAIN_TWO)
    pipeline.assert_exactly_once()
    assert pipeline.open_transactions() == ()


@pytest.mark.parametrize(
    "rows", [pytest.param(-150, id="fewer", marks=pytest.mark.proof), pytest.param(150, id="more")]
)
def test_sparks_log_is_overwritten_by_a_driver_that_planned_the_batch_too(
    pipeline: Pipeline, spark: SparkSession, rows: int
) -> None:
    """Hole 2: both adders won, the later rename stands; the restart read another range."""
    pipeline.feed(1200)
    few = {"max_offsets_per_trigger": 300}
    with stopped_at(pipeline, "settled@2", **few) as driver:
        overwrite(pipeline, batch=1, rows=rows)
        os.kill(driver.pid, signal.SIGKILL)
        finish(driver, 30)
    pipeline.resume(spark, **few)
    pipeline.assert_exactly_once()
    overwrite(pipeline, batch=max(planned(pipeline)), rows=-rows)  # also after its commits/N
    pipeline.feed(100)
    pipeline.resume(spark, **few)
    pipeline.assert_exactly_once()


def planned(pipeline: Pipeline) -> list[int]:
    offsets = Path(pipeline.checkpoint) / "offsets"
    return [int(path.name) for path in offsets.iterdir() if path.name.isdigit()]


def overwrite(pipeline: Pipeline, *, batch: int, rows: int) -> None:
    """What a late rename of Spark's leaves: another plan of the batch, and no checksum of ours."""
    file = Path(pipeline.checkpoint) / "offsets" / str(batch)
    version, stamp, ends = file.read_text().split("\n")
    planned_at = json.loads(stamp)
    planned_at["batchTimestampMs"] += 5
    [(topic, partitions)] = json.loads(ends).items()
    partitions["0"] = max(0, partitions["0"] + rows // 3)
    file.with_name(f".{batch}.crc").unlink(missing_ok=True)
    file.write_text("\n".join((version, json.dumps(planned_at), json.dumps({topic: partitions}))))


def test_a_copy_of_the_checkpoint_that_lags_by_just_the_batch_in_flight(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    """Hole 3: 300 of 900 rows came twice."""
    pipeline.feed(900)
    copy = pipeline.folder / "copy"
    with stopped_at(pipeline, "before-prepare@2", max_offsets_per_trigger=300) as driver:
        shutil.copytree(pipeline.checkpoint, copy)
        os.kill(driver.pid, signal.SIGCONT)
        assert finish(driver, 240) is not None
        assert driver.returncode == 0
    pipeline.assert_exactly_once()
    newest = pipeline.folder / "newest"
    shutil.move(pipeline.checkpoint, newest)
    shutil.copytree(copy, pipeline.checkpoint)
    with pytest.raises(OwnershipError, match="restored from an older copy"):
        pipeline.resume(spark)
    pipeline.assert_exactly_once()
    shutil.rmtree(pipeline.checkpoint)
    shutil.move(newest, pipeline.checkpoint)
    pipeline.feed(100)
    pipeline.resume(spark)
    pipeline.assert_exactly_once()


def test_an_app_that_was_copied_with_its_prefix_is_refused_and_ends_nothing_of_the_first(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    """Hole 4: with a topic of its own it was let in, and aborted three decided transactions."""
    pipeline.feed(900)
    pipeline.run(expect=KILLED, failpoints="decided=kill@1")
    promised = pipeline.open_transactions()
    assert promised
    second = Pipeline(pipeline.broker, pipeline.folder / "second")
    second.feed(30)
    with pytest.raises(OwnershipError, match=f"belongs to the checkpoint {pipeline.checkpoint}"):
        second.resume(spark, prefix=pipeline.name)
    assert pipeline.open_transactions() == promised
    pipeline.resume(spark)
    pipeline.assert_exactly_once()
