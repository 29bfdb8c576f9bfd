"""Rows of a partition are put together by Spark, so that each has one file in a batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestamptzType
from pyspark.sql import DataFrame, SparkSession

from airflow_eos.core.delivery.outputs import OneSink, Output, Outputs
from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.iceberg.sink import IcebergSink
from airflow_eos.kinds.lake.participant import files_of
from airflow_eos.sinks import start_exactly_once
from tests.integration.lake.kinds import KINDS
from tests.integration.lake.stage import Stage
from tests.integration.lake.test_iceberg_partitions import loaded, parted

SCHEMA = Schema(
    NestedField(1, "n", LongType()),
    NestedField(2, "at", TimestamptzType()),
    NestedField(3, "day", DateType()),
    NestedField(4, "key", StringType()),
)
SPECS = {
    "identity": (("day", "identity"), ("key", "identity")),
    "transforms": (("at", "day"), ("n", "bucket[4]")),
}


@pytest.fixture(params=SPECS)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return parted(Stage(KINDS["iceberg"], tmp_path), *SPECS[request.param], schema=SCHEMA)


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 600, 1, 3).selectExpr(
        "id AS n",
        "timestamp_seconds(id * 700) AS at",
        "date_add(date'2026-11-28', cast(id % 3 AS int)) AS day",
        "if(id % 7 = 0, NULL, concat('k', id % 4)) AS key",
    )


def sink_of(stage: Stage, **how: Any) -> IcebergSink:
    properties = KINDS["iceberg"].properties(stage.table)  # type: ignore[attr-defined]
    return IcebergSink("db.rows", properties, application_id="etl", distribute="hash", **how)


def test_a_partition_has_one_file_in_a_batch_and_a_replay_cuts_tasks_alike(
    stage: Stage, spark: SparkSession
):
    one = OneSink(sink_of(stage).bound(stage.claimed().store))
    typed = one.rows(rows(spark)).persist()
    drained = one.prepare(typed, only=())
    reports = one.prepare(typed)
    typed.unpersist()
    assert [each.content for each in reports] == [each.content for each in drained]
    assert sum(each.rows for each in reports) == 600
    works = [each.work for each in reports if each.work is not None]
    assert len(works) > 1, "or nothing was put apart"
    partitions = Counter(file.partition for work in works for file in files_of(work, "data/"))
    assert set(partitions.values()) == {1}


def test_a_query_whose_sink_distributes_delivers_each_row_once(
    stage: Stage, spark: SparkSession, tmp_path: Path
):
    rows(spark).write.parquet(str(tmp_path / "input"))
    df = spark.readStream.schema(rows(spark).schema).parquet(str(tmp_path / "input"))
    query = start_exactly_once(
        df,
        sink_of(stage),
        checkpoint_location=str(tmp_path / "checkpoint"),
        trigger={"availableNow": True},
    )
    assert query.awaitTermination(300)
    table = loaded(stage)
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == list(range(600))
    partitions = [repr(task.file.partition) for task in table.scan().plan_files()]
    assert len(partitions) == len(set(partitions))


def test_an_output_beside_others_cannot_move_rows(stage: Stage):
    with pytest.raises(ConfigurationError, match="given alone"):
        Outputs((Output("a", sink_of(stage)),))


def test_another_way_to_distribute_is_refused():
    with pytest.raises(ConfigurationError, match="one of 'none', 'hash'"):
        IcebergSink("db.rows", {}, application_id="a", distribute="range")  # type: ignore[arg-type]
