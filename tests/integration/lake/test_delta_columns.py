"""A table gets the columns that rows have more, and is made where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.kinds.delta.sink import DeltaSink
from airflow_eos.kinds.lake.new_table import NewTable
from airflow_eos.kinds.lake.upsert import LakeUpsert
from tests.integration.lake.kinds import Delta
from tests.integration.lake.stage import SCHEMA, Stage

MORE = pa.schema([*SCHEMA, ("later", pa.string())])


class Evolving(Delta):
    def __init__(self, **how: Any) -> None:
        self.how = {"schema_evolution": "add"} | how

    def sink(self, folder: Path) -> DeltaSink:
        return replace(super().sink(folder), **self.how)


@pytest.fixture(params=["append", "upsert"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    how = {"upsert": LakeUpsert(["key"])} if request.param == "upsert" else {}
    return Stage(Evolving(**how), tmp_path).made()


def prepared(stage: Stage, schema: pa.Schema = MORE, **row: Any) -> PreparedWork:
    writer = stage.sink.opened(0, 0)
    writer.write(pa.RecordBatch.from_pylist([row], schema=schema))
    work: PreparedWork | None = writer.prepare("0" * 32)
    assert work is not None
    return work


def spark_schema(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def found(stage: Stage) -> list[Mapping[str, Any]]:
    return sorted(DeltaTable(stage.table).to_pyarrow_table().to_pylist(), key=lambda r: r["key"])


def test_a_column_that_rows_have_more_is_added_with_them(stage: Stage):
    stage.delivered(1)
    rows = spark_schema(key=StringType(), value=LongType(), later=StringType())
    assert stage.sink.columns(rows)
    work = prepared(stage, key="k2", value=2, later="x")
    stage.participant().require_decidable([work])
    assert DeltaTable(stage.table).version() == 1, "nothing of it before the decision"
    stage.decide(work, batch=1)
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert found(stage) == [
        {"key": "k1", "value": 1, "later": None},
        {"key": "k2", "value": 2, "later": "x"},
    ]


def test_who_finds_the_column_there_adds_only_the_rows(stage: Stage):
    """Killed between the two commits, or another writer was first."""
    work = prepared(stage, key="k2", value=2, later="x")
    stage.decide(work)
    DeltaTable(stage.table).alter.add_columns([Field("later", PrimitiveType("string"))])
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert DeltaTable(stage.table).version() == 2
    assert found(stage) == [{"key": "k2", "value": 2, "later": "x"}]


def test_a_column_that_became_another_meanwhile_asks_a_person(stage: Stage):
    work = prepared(stage, key="k2", value=2, later="x")
    DeltaTable(stage.table).alter.add_columns([Field("later", PrimitiveType("long"))])
    with pytest.raises(ConfigurationError, match="column later is string, and long in the table"):
        stage.participant().require_decidable([work])


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"key": StringType(), "value": IntegerType()}, "value is integer, and long"),
        ({"key": LongType(), "value": LongType()}, "key is long, and string"),
        ({"key": StringType(), "value": LongType(), "Key": LongType()}, "not only by case"),
        (
            {"key": StringType(), "value": LongType(), "a b": LongType()},
            "cannot get a column 'a b'",
        ),
    ],
)
def test_anything_else_is_refused_before_the_first_row_with_both_schemas(
    tmp_path: Path, columns: dict[str, Any], why: str
):
    stage = Stage(Evolving(), tmp_path).made()
    with pytest.raises(ConfigurationError, match=why) as refused:
        stage.sink.columns(spark_schema(**columns))
    assert "the table has key string, value long" in str(refused.value)


def test_without_evolution_a_new_column_is_refused(tmp_path: Path):
    stage = Stage(Evolving(schema_evolution="none"), tmp_path).made()
    rows = spark_schema(key=StringType(), value=LongType(), later=StringType())
    with pytest.raises(ConfigurationError, match="no column later"):
        stage.sink.columns(rows)


def new_table(monkeypatch: pytest.MonkeyPatch, **how: Any) -> NewTable:
    """Spark parses DDL by its JVM, which these tests do without."""
    of = spark_schema(key=StringType(), value=LongType(), day=StringType())
    monkeypatch.setattr(StructType, "fromDDL", classmethod(lambda _cls, _text: of))
    return NewTable("key STRING, value BIGINT, day STRING", **how)


def test_a_table_that_is_not_there_is_made_once(tmp_path: Path, monkeypatch):
    properties = {"delta.logRetentionDuration": "interval 60 days"}
    new = new_table(monkeypatch, partition_by=("day",), properties=properties)
    stage = Stage(Evolving(create=new), tmp_path)
    stage.claimed()
    table = DeltaTable(stage.table)
    assert table.metadata().partition_columns == ["day"]
    assert table.metadata().configuration == properties
    schema = pa.schema([*SCHEMA, ("day", pa.string())])
    work = prepared(stage, schema, key="k", value=1, day="monday")
    stage.decide(work)
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert DeltaTable(stage.table).version() == 1
    assert found(stage) == [{"key": "k", "value": 1, "day": "monday"}]


def test_a_table_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch):
    new = new_table(monkeypatch, partition_by=("day(at)",))
    with pytest.raises(ConfigurationError, match=r"partitioned by columns alone.*to_date"):
        _ = Stage(Evolving(create=new), tmp_path).sink
    new = new_table(monkeypatch, properties={"delta.noSuchProperty": "x"})
    with pytest.raises(StoreError, match="was not made of columns"):
        _ = Stage(Evolving(create=new), tmp_path).sink
