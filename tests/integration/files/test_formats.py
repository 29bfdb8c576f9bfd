"""Formats and partitions beside Spark's own writers, and read back by others."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DayTimeIntervalType, LongType, StructField, StructType

from airflow_eos.core.delivery.outputs import OneSink
from airflow_eos.core.delivery.replay import undelivered
from airflow_eos.errors import ConfigurationError, DeliveryError, StoreError
from airflow_eos.kinds.files.names import works_of
from airflow_eos.sinks import FileSink

VALUES = ("2026-11-23", "a/b=c", "", "100%", "ä b", "[x]\\n{y}^'\"*?#:\\\\", "q")


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    array = ", ".join(f"'{value}'".replace("^'", "^\\'") for value in VALUES)
    return spark.range(0, 3000, 1, 3).selectExpr(
        "id",
        "IF(id % 7 = 0, NULL, concat('k\\n\\'\"', id % 5)) AS name",
        "timestamp_micros(id * 1000003) AS at",
        "CAST(id / 3 AS DECIMAL(20, 4)) AS amount",
        "array(id, NULL) AS many",
        "struct(id AS a, CAST(NULL AS STRING) AS b) AS one",
        f"IF(id % 11 = 0, NULL, element_at(array({array}), CAST(id % 7 AS INT) + 1)) AS day",
        "id % 2 = 0 AS even",
    )


def delivered(sink: FileSink, rows: DataFrame) -> list[Any]:
    """Prepare, decide, commit: what a batch does."""
    batch = OneSink(sink)
    reports = batch.prepare(batch.rows(rows))
    works = [report.work for report in reports if report.work is not None]
    participant = sink.connect(None)  # type: ignore[arg-type]
    assert participant.commit(works)
    return works


def tree(folder: Path) -> set[str]:
    found = (path.parent.relative_to(folder).as_posix() for path in folder.glob("*/*/*.*"))
    return {path for path in found if not path.startswith(("_", "."))}


def lines(folder: Path) -> Counter[tuple[str, str]]:
    return Counter(
        (path.parent.relative_to(folder).as_posix(), line)
        for path in folder.glob("*=*/*=*/*.json")
        for line in path.read_text(encoding="utf-8").split("\n")
        if line
    )


@pytest.mark.long
def test_lines_and_folders_are_those_of_spark_s_own_writer(rows, tmp_path):
    delivered(FileSink(f"{tmp_path}/ours", format="json", partition_by=("day", "even")), rows)
    rows.write.partitionBy("day", "even").options(
        timeZone="UTC", timestampFormat="yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
    ).json(f"{tmp_path}/spark")
    assert lines(tmp_path / "ours") == lines(tmp_path / "spark")
    assert len(tree(tmp_path / "ours")) == 14


@pytest.mark.long
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_spark_reads_what_was_given(spark, rows, tmp_path, form):
    schema = rows.schema
    given = rows.selectExpr("* except (day)", "nullif(day, '') AS day").select(rows.columns)
    compression = "gzip" if form == "json" else None
    sink = FileSink(
        str(tmp_path), format=form, partition_by=["day", "even"], compression=compression
    )
    delivered(sink, rows)
    read = spark.read.schema(schema).format(form).load(str(tmp_path)).select(rows.columns)
    assert read.exceptAll(given).count() == 0
    assert given.exceptAll(read).count() == 0


def test_pyarrow_reads_what_was_given(spark, rows, tmp_path):
    delivered(FileSink(str(tmp_path), partition_by="even"), rows)
    found = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    assert found.num_rows == 3000
    assert set(found["even"].to_pylist()) == {"true", "false"}
    assert sorted(found["id"].to_pylist()) == list(range(3000))


@pytest.mark.long
def test_a_line_is_a_row_whatever_its_text_holds(rows, tmp_path):
    delivered(FileSink(str(tmp_path), format="json"), rows)
    read = [
        json.loads(line)
        for path in tmp_path.glob("*.json")
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]
    ]
    assert sorted(row["id"] for row in read) == list(range(3000))
    assert next(row for row in read if row["id"] == 1)["at"] == "1970-01-01T00:00:01.000003Z"


@pytest.mark.long
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_what_was_delivered_is_read_back_as_it_was_given_to_the_tasks(spark, rows, tmp_path, form):
    """Where a replay does not pair, rows are compared one by one."""
    sink = FileSink(str(tmp_path), format=form, partition_by=["day"], compression="gzip")
    works = delivered(sink, rows)
    batch = OneSink(sink)
    again = batch.rows(rows).repartition(2)
    assert undelivered(again, sink.delivered(spark, works), tasks=2).count() == 0
    some = sink.delivered(spark, works[:1])
    assert undelivered(again, some, tasks=2).count() == 3000 - some.count() == 2000


def test_local_times_are_read_back_as_local_times_in_any_zone(spark, tmp_path):
    """Taken for instants they would be others in the session's zone: delivered rows came twice."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        local = spark.sql("SELECT timestamp_ntz'2026-03-29 02:30:00' AS at, current_date() AS day")
        sink = FileSink(str(tmp_path))
        works = delivered(sink, local)
        assert undelivered(local, sink.delivered(spark, works), tasks=1).count() == 0
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.parametrize("nested", [False, True])
def test_an_interval_is_no_number_that_readers_find_in_its_place(tmp_path, nested: bool):
    kind = ArrayType(DayTimeIntervalType()) if nested else DayTimeIntervalType()
    rows = StructType([StructField("interval", LongType()), StructField("took", kind)])
    with pytest.raises(ConfigurationError, match="Columns took hold intervals"):
        FileSink(str(tmp_path)).columns(rows)
    FileSink(str(tmp_path), format="json").columns(rows)
    FileSink(str(tmp_path)).columns(StructType(rows.fields[:1]))


@pytest.mark.parametrize("nested", [False, True])
def test_a_struct_without_fields_is_refused_by_its_column(tmp_path, nested: bool):
    """The first task failed of it, behind the term that stops the running driver."""
    empty = StructType([])
    kind = StructType([StructField("within", ArrayType(empty))]) if nested else empty
    rows = StructType([StructField("id", LongType()), StructField("none", kind)])
    with pytest.raises(ConfigurationError, match="Columns none hold structs without fields"):
        FileSink(str(tmp_path)).columns(rows)


def test_maps_can_be_lines_and_no_parquet(spark, tmp_path):
    maps = spark.range(10).selectExpr("id", "map('a', id) AS m")
    delivered(FileSink(str(tmp_path), format="json"), maps)
    assert spark.read.json(str(tmp_path)).selectExpr("sum(m.a)").first()[0] == 45
    with pytest.raises(ConfigurationError, match="cannot hash"):
        FileSink(str(tmp_path)).columns(maps.schema)


def test_the_content_of_a_line_does_not_depend_on_the_session_s_zone(spark, rows, tmp_path):
    """A replay in a session of another zone would never pair with what was promised."""
    sink = OneSink(FileSink(str(tmp_path), format="json"))
    contents = []
    for zone in ("UTC", "Asia/Tokyo"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        contents.append([r.content for r in sink.prepare(sink.rows(rows), only=())])
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"partition_by": ["_day"]}, "begins with"),
        ({"partition_by": ["day", "DAY"]}, "each column once"),
        ({"format": "csv"}, "one of 'parquet', 'json'"),
        ({"format": "json", "compression": "zstd"}, "none, gzip, bz2"),
        ({"compression": "bz2"}, "snappy"),
        ({"folder": "relative/path"}, "absolute path"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given, says):
    with pytest.raises(ConfigurationError, match=says):
        FileSink(**({"folder": "/data"} | given))


@pytest.mark.parametrize("columns", [["nope"], ["many"], ["id", "name"]])
def test_a_partition_that_cannot_be_a_folder_is_refused(rows, columns):
    chosen = rows.select("id", "name") if "name" in columns else rows
    with pytest.raises(ConfigurationError, match="partition_by"):
        FileSink("/data", partition_by=columns).columns(chosen.schema)


def test_too_many_partitions_of_a_task_are_refused_and_nothing_is_left(spark, tmp_path):
    sink = OneSink(FileSink(str(tmp_path), partition_by=["id"]))
    many = spark.range(0, 1500, 1, 1).selectExpr("id", "1 AS one")
    with pytest.raises(Exception, match="more than 1000 partitions") as caught:
        sink.prepare(sink.rows(many))
    assert DeliveryError.__name__ in str(caught.value)
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_task_that_may_not_write_says_so_by_name(spark, tmp_path):
    sink = FileSink(str(tmp_path))
    sink.connect(None)  # type: ignore[arg-type]
    storage = sink.storage()
    work = storage.disk / storage._at(works_of("sink"))  # type: ignore[operator]
    work.rmdir()
    work.write_text("in the way")
    batch = OneSink(sink)
    with pytest.raises(Exception, match="The disk refused while") as caught:
        batch.prepare(batch.rows(spark.range(100)))
    assert StoreError.__name__ in str(caught.value)


@pytest.mark.parametrize(
    "value",
    ["v", "array(v)", "struct(1 AS a, v AS b)", "map(v, 1)", "map('a', array(v))"],
)
def test_a_text_that_is_no_utf8_is_refused_before_spark_replaces_it_in_a_line(
    spark, tmp_path, value: str
):
    """``to_json`` replaces its bytes in silence, at any depth."""
    sink = FileSink(str(tmp_path), format="json")
    bad = spark.sql("SELECT CAST(X'636166E9' AS STRING) AS v, X'FF' AS bytes")
    with pytest.raises(Exception, match="is not UTF-8"):
        delivered(sink, bad.selectExpr(f"{value} AS v", "bytes"))
    good = spark.sql("SELECT 'caf\u00e9 \ufffd' AS v, X'FF' AS bytes")
    delivered(sink, good.selectExpr(f"{value} AS v", "bytes"))
    [line] = [path.read_text("utf-8") for path in tmp_path.glob("*.json")]
    assert "caf\u00e9" in line
