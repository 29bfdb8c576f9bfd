"""A disk is full under a driver of real Spark, and has room again: each row comes once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from airflow_eos.core import failpoints
from airflow_eos.core.delivery.causes import cause_of
from airflow_eos.local import EmbeddedKafka
from tests.support.app import configured, deliver
from tests.support.kinds import Place, kind_called
from tests.support.pipeline import Pipeline
from tests.support.stores import disk_of

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

PLACES = ("sealed", "before-prepare@2", "prepared@2", "decided@2", "settled-some@2", "settled@2")
ROWS, BATCH = 900, 300


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of("3m", tmp_path / "disk") as folder:
        yield folder


class Filled:
    """A disk that is filled when the driver comes to the place, until it is freed."""

    def __init__(self, disk: Path, place: str, patch: pytest.MonkeyPatch) -> None:
        self._file = disk / "ballast"
        name, _, nth = place.partition("@")
        failpoints._passes.clear()
        patch.setattr(failpoints, "_act", lambda *_: self._fill())
        patch.setenv("EOS_FAILPOINTS", f"{name}=raise@{nth or 1}")
        self._patch = patch

    def _fill(self) -> None:
        for piece in (4096, 64):  # to the last byte
            with suppress(OSError), self._file.open("ab", buffering=0) as out:
                while True:
                    out.write(bytes(piece))

    def freed(self) -> None:
        self._file.unlink()
        self._patch.delenv("EOS_FAILPOINTS")


def run(pipeline: Pipeline, spark: SparkSession) -> None:
    """A driver of this process, to its end."""
    settings = pipeline.app(max_offsets_per_trigger=BATCH)
    query = deliver(configured(spark.newSession(), settings), settings)
    try:
        assert query.awaitTermination(400)
    finally:
        query.stop()


def refused(pipeline: Pipeline, spark: SparkSession) -> None:
    """A driver ends, and says that a disk is full."""
    with pytest.raises(Exception, match=r"(?s)No space left on device") as error:
        run(pipeline, spark)
    assert cause_of(error.value).restart_heals is None, "once there is room, a restart does"


@pytest.mark.parametrize("kind", ["map", "count"])
@pytest.mark.parametrize("place", PLACES)
def test_the_disk_of_the_checkpoint(
    kafka_broker: EmbeddedKafka, spark: SparkSession, tmp_path, disk, monkeypatch, place, kind
):
    settings = {"checkpoint": str(disk / "checkpoint"), "kind": kind}
    pipeline = Pipeline(kafka_broker, tmp_path / "pipeline", settings=settings)
    pipeline.feed(ROWS)
    filled = Filled(disk, place, monkeypatch)
    refused(pipeline, spark)
    refused(pipeline, spark)
    filled.freed()
    run(pipeline, spark)
    pipeline.assert_counts() if kind == "count" else pipeline.assert_exactly_once()
    assert pipeline.open_transactions() == ()


@pytest.mark.parametrize("place", PLACES)
def test_the_disk_of_the_data(
    kafka_broker: EmbeddedKafka, spark: SparkSession, tmp_path, disk, monkeypatch, place
):
    pipeline = Pipeline(kafka_broker, tmp_path / "pipeline")
    at, kind = Place("files", pipeline.name, str(disk), {}), kind_called("files")
    settings: dict[str, Any] = {"place": msgspec.to_builtins(at), "kind": kind.query}
    pipeline.settings = settings
    pipeline.feed(ROWS)
    filled = Filled(disk, place, monkeypatch)
    refused(pipeline, spark)
    refused(pipeline, spark)
    filled.freed()
    run(pipeline, spark)
    assert kind.read(at) == kind.expected(pipeline.expected)
    assert kind.left(at) == 0
