"""Columns that rows have and the table has not: added by the commit that shows their rows."""

from __future__ import annotations

from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.sql.types as spark
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import DoubleType, LongType, StringType

from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.kinds.iceberg.participant import IcebergSnapshot
from airflow_eos.kinds.iceberg.sink import IcebergSink
from tests.integration.lake.kinds import KINDS, Iceberg
from tests.integration.lake.stage import Stage
from tests.integration.lake.test_iceberg_partitions import loaded

OLD = pa.schema(
    [("key", pa.string()), ("n", pa.int32()), ("x", pa.float32()), ("d", pa.decimal128(9, 2))]
)
WHO = pa.struct([("name", pa.string()), ("tags", pa.list_(pa.struct([("tag", pa.string())])))])
NEW = pa.schema(
    [
        ("who", WHO),
        ("key", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("d", pa.decimal128(20, 2)),
        ("later", pa.string()),
    ]
)
FIRST = {"key": "a", "n": 1, "x": 0.5, "d": Decimal("1.00")}
ROW = {
    "who": {"name": "ann", "tags": [{"tag": "t"}]},
    "key": "b",
    "n": 2**40,
    "x": 1e300,
    "d": Decimal("123456789012.00"),
    "later": "z",
}


class Adding(Iceberg):
    def sink(self, folder: Path) -> IcebergSink:
        properties = self.properties(folder)
        return IcebergSink("db.rows", properties, application_id="etl", schema_evolution="add")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(Adding(), tmp_path).made(OLD)
    commit(stage, prepare(stage.sink, FIRST, OLD), batch=0)
    return stage


def prepare(sink: Any, row: dict[str, Any] = ROW, schema: pa.Schema = NEW) -> PreparedWork:
    writer = sink.opened(0, 0)
    writer.write(pa.RecordBatch.from_pylist([row], schema=schema))
    work: PreparedWork = writer.prepare("0" * 32)
    return work


def commit(stage: Stage, work: PreparedWork, batch: int = 1) -> None:
    participant = stage.participant()
    participant.require_decidable([work])
    stage.decide(work, batch=batch)
    assert participant.commit([work]) == {work.identity: Outcome.COMMITTED}


def rows(stage: Stage) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = loaded(stage).scan().to_arrow().sort_by("key").to_pylist()
    return found


def in_spark(schema: pa.Schema) -> spark.StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def test_new_columns_and_wider_types_come_with_their_rows(stage: Stage):
    sink = stage.sink
    sink.columns(in_spark(NEW))
    work = prepare(sink)
    assert loaded(stage).schema().column_names == OLD.names, "and not before"
    snapshots = len(loaded(stage).snapshots())
    commit(stage, work)
    assert rows(stage) == [FIRST | {"who": None, "later": None}, ROW]
    table = loaded(stage)
    assert len(table.snapshots()) == snapshots + 1
    assert table.current_snapshot().schema_id == table.schema().schema_id
    assert table.scan(row_filter="later = 'z'").to_arrow().num_rows == 1


def test_the_next_batch_of_the_same_query_finds_its_columns(stage: Stage):
    sink = stage.sink
    commit(stage, prepare(sink))
    again = prepare(sink, ROW | {"key": "c"})
    sink.columns(in_spark(NEW))
    commit(stage, again, batch=2)
    assert [row["key"] for row in rows(stage)] == ["a", "b", "c"]
    assert rows(stage)[2] == ROW | {"key": "c"}
    assert len(loaded(stage).schema().fields) == len(NEW)


def test_a_column_of_ours_that_was_renamed_since_stays_the_same_column(stage: Stage):
    sink = stage.sink
    commit(stage, prepare(sink))
    with loaded(stage).update_schema() as change:
        change.rename_column("later", "late")
    work = prepare(sink, ROW | {"key": "c"})
    commit(stage, work, batch=2)
    assert [row["late"] for row in rows(stage)] == [None, "z", "z"]


def another_column(stage: Stage) -> None:
    with loaded(stage).update_schema() as change:
        change.add_column("theirs", StringType())


def test_an_id_that_somebody_else_took_hides_no_value_under_another_name(stage: Stage):
    """Found before the promise: the next start writes by other ids. Found after it: lost."""
    sink, participant = stage.sink, stage.participant()
    early, work = prepare(sink), prepare(sink)
    stage.decide(early, batch=1)
    another_column(stage)
    with pytest.raises(StoreError, match="was changed since this query started") as told:
        participant.require_decidable([work])
    assert told.value.remedies[0].start
    with pytest.raises(StoreError, match="made anew"):
        sink.columns(in_spark(NEW))
    assert participant.commit([early]) == {early.identity: Outcome.ABORTED}
    commit(stage, prepare(stage.sink), batch=2)
    assert rows(stage) == [
        FIRST | {"who": None, "later": None, "theirs": None},
        ROW | {"theirs": None},
    ]


def test_a_column_that_is_added_between_the_look_and_the_commit(stage: Stage, monkeypatch):
    work = prepare(stage.sink)
    stage.decide(work, batch=1)
    really, met = IcebergSnapshot.append, list[int]()

    def added_first(view: IcebergSnapshot, *given: Any) -> None:
        if not met:
            met.append(1)
            another_column(stage)
        really(view, *given)

    monkeypatch.setattr(IcebergSnapshot, "append", added_first)
    assert stage.participant().commit([work]) == {work.identity: Outcome.ABORTED}
    assert rows(stage) == [FIRST | {"theirs": None}]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (pa.schema([("key", pa.int64())]), "key"),
        (pa.schema([("key", pa.string()), ("n", pa.string())]), "n"),
        (pa.schema([("x", pa.int64())]), "x"),
        (pa.schema([("d", pa.decimal128(20, 4))]), "d"),
        (pa.schema([("n", pa.list_(pa.int32()))]), "n"),
    ],
)
def test_what_iceberg_cannot_widen_is_refused_with_both_schemas(stage: Stage, schema, why: str):
    with pytest.raises(ConfigurationError) as told:
        stage.sink.columns(in_spark(schema))
    assert f"The rows have {why}" in str(told.value) or f", {why} " in str(told.value)
    assert "the table has key string, n int, x float, d decimal(9, 2)" in str(told.value)


def test_without_it_a_new_column_is_refused_and_the_way_is_named(tmp_path: Path):
    stage = Stage(KINDS["iceberg"], tmp_path).made(OLD)
    with pytest.raises(ConfigurationError, match=r"no column later, who.*schema_evolution='add'"):
        stage.sink.columns(in_spark(NEW))


def test_a_column_that_the_table_says_is_required_stays_so(tmp_path: Path):
    strict = pa.schema([pa.field("key", pa.string(), nullable=False)])
    stage = Stage(Adding(), tmp_path).made(strict)
    with pytest.raises(ConfigurationError, match="required"):
        stage.sink.columns(in_spark(pa.schema([("key", pa.string()), ("later", pa.string())])))


def test_killed_after_the_decision_the_next_process_adds_the_columns(stage: Stage):
    work = prepare(stage.sink)
    stage.decide(work, batch=1)
    stage.killed("commit", "looked=kill", batch=1)
    assert loaded(stage).schema().column_names == OLD.names
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert rows(stage)[1] == ROW


def test_a_commit_that_is_refused_adds_no_column(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    from pyiceberg.catalog.sql import SqlCatalog

    commit_table, met = SqlCatalog.commit_table, list[int]()

    def refused(catalog: SqlCatalog, *change: Any) -> Any:
        if not met:
            met.append(1)
            raise CommitFailedException("overtaken")
        return commit_table(catalog, *change)

    monkeypatch.setattr(SqlCatalog, "commit_table", refused)
    commit(stage, prepare(stage.sink))
    assert met
    assert [field.name for field in loaded(stage).schema().fields] == [*OLD.names, "who", "later"]


def test_types_are_as_the_rows_have_them(stage: Stage):
    commit(stage, prepare(stage.sink))
    schema = loaded(stage).schema()
    assert schema.find_type("n") == LongType()
    assert schema.find_type("x") == DoubleType()
    assert str(schema.find_type("d")) == "decimal(20, 2)"
    with closing(KINDS["iceberg"].catalog(stage.table)) as catalog:  # type: ignore[attr-defined]
        assert catalog.load_table("db.rows").schema() == schema
