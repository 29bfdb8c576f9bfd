"""Values are found under the columns that they were given for, whatever becomes of the names."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import LongType, StringType

from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.errors import ConfigurationError, StoreError
from tests.integration.lake.kinds import ICEBERG
from tests.integration.lake.stage import Stage

KIND = ICEBERG
SCHEMA = pa.schema(
    [
        ("a", pa.string()),
        ("b", pa.string()),
        ("n", pa.int32()),
        ("who", pa.struct([("name", pa.string()), ("age", pa.int32())])),
        ("tags", pa.list_(pa.struct([("tag", pa.string())]))),
    ]
)
ROW = {"a": "A", "b": "B", "n": 7, "who": {"name": "ann", "age": 41}, "tags": [{"tag": "x"}]}
Change = Callable[[Any], object]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(KIND, tmp_path).made(SCHEMA)


def prepare(sink: Any, row: dict[str, Any] = ROW) -> PreparedWork:
    writer = sink.opened(0, 0)
    writer.write(pa.RecordBatch.from_pylist([row], schema=SCHEMA))
    work: PreparedWork = writer.prepare("0" * 32)
    return work


def change(stage: Stage, *changes: Change) -> None:
    """Each as a schema of its own, as people change tables."""
    for each in changes:
        with (
            closing(KIND.catalog(stage.table)) as catalog,
            catalog.load_table("db.rows").update_schema(allow_incompatible_changes=True) as update,
        ):
            each(update)


def read(stage: Stage) -> list[dict[str, Any]]:
    """By pyiceberg and by Polars, which are of one mind."""
    import polars as pl

    with closing(KIND.catalog(stage.table)) as catalog:
        table = catalog.load_table("db.rows")
        rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
        assert pl.scan_iceberg(table).collect().to_dicts() == rows
        for name in ("a", "c", "n"):  # by the bounds of a column, too
            if name in table.schema().column_names and rows and rows[0][name] is not None:
                found = table.scan(row_filter=f"{name} = {rows[0][name]!r}").to_arrow()
                assert found.num_rows == len(rows)
    return rows


CHANGES: dict[str, tuple[tuple[Change, ...], dict[str, Any]]] = {
    "renamed": ((lambda t: t.rename_column("a", "c"),), {"c": "A", "b": "B"}),
    "two names for one another": (
        (
            lambda t: t.rename_column("a", "c"),
            lambda t: t.rename_column("b", "a"),
            lambda t: t.rename_column("c", "b"),
        ),
        {"b": "A", "a": "B"},
    ),
    "an old name of another": (
        (lambda t: t.rename_column("a", "c"), lambda t: t.add_column("a", StringType())),
        {"c": "A", "a": None, "b": "B"},
    ),
    "moved": ((lambda t: t.move_first("b"),), {"a": "A", "b": "B"}),
    "dropped": ((lambda t: t.delete_column("a"),), {"b": "B"}),
    "widened": ((lambda t: t.update_column("n", LongType()),), {"a": "A", "b": "B", "n": 7}),
    "renamed within": (
        (
            lambda t: t.rename_column("who.name", "called"),
            lambda t: t.rename_column("tags.tag", "label"),
        ),
        {"who": {"called": "ann", "age": 41}, "tags": [{"label": "x"}]},
    ),
    "added": ((lambda t: t.add_column("later", LongType()),), {"a": "A", "later": None}),
}


@pytest.mark.parametrize("when", ["before the commit", "after it"])
@pytest.mark.parametrize("name", CHANGES)
def test_values_stay_under_their_columns_when_the_table_is_changed(stage: Stage, name, when):
    changes, expected = CHANGES[name]
    work = prepare(stage.sink)
    stage.decide(work)
    if when == "after it":
        stage.participant().commit([work])
    change(stage, *changes)
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    (row,) = read(stage)
    assert expected.items() <= row.items()


@pytest.mark.parametrize("column", ["a", "who.name"])
def test_a_column_that_was_made_again_does_not_hide_what_was_promised(stage: Stage, column):
    """Its rows would be null in silence; renamed, the other column says that it is another."""
    work = prepare(stage.sink)
    stage.decide(work)
    path = tuple(column.split("."))
    change(stage, lambda t: t.delete_column(path), lambda t: t.add_column(path, StringType()))
    with pytest.raises(ConfigurationError, match=rf"{column} was dropped and made again"):
        stage.participant().commit([work])
    assert read(stage) == []
    change(stage, lambda t: t.rename_column(path, "anew"))
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert len(read(stage)) == 1


def test_a_column_that_was_made_again_is_seen_before_a_batch_is_promised(stage: Stage):
    """The query that runs has the ids of its start; the next one has the new ones."""
    import pyspark.sql.types as spark

    only = spark.StructType([spark.StructField("a", spark.StringType())])
    sink = stage.sink
    sink.columns(only)
    change(stage, lambda t: t.delete_column("a"), lambda t: t.add_column("a", StringType()))
    with pytest.raises(StoreError, match="made anew") as told:
        sink.columns(only)
    assert told.value.remedies[0].start
    stage.sink.columns(only)
    work = prepare(stage.sink)
    stage.decide(work)
    stage.participant().commit([work])
    (row,) = read(stage)
    assert row["a"] == "A"


def test_a_mapping_of_names_that_is_stale_hides_no_rows(stage: Stage):
    """Other engines make one and do not keep it up; readers go by it where files have no ids."""
    stale = json.dumps([{"field-id": 1, "names": ["b"]}, {"field-id": 2, "names": ["a"]}])
    with (
        closing(KIND.catalog(stage.table)) as catalog,
        catalog.load_table("db.rows").transaction() as properties,
    ):
        properties.set_properties({"schema.name-mapping.default": stale})
    work = prepare(stage.sink)
    stage.decide(work)
    stage.participant().commit([work])
    assert read(stage) == [ROW]


def test_the_table_gets_no_mapping_of_names_by_us(stage: Stage):
    work = prepare(stage.sink)
    stage.decide(work)
    stage.participant().commit([work])
    with closing(KIND.catalog(stage.table)) as catalog:
        assert "schema.name-mapping.default" not in catalog.load_table("db.rows").properties


def test_every_part_of_a_column_has_its_id_in_the_file(stage: Stage):
    import duckdb

    work = prepare(stage.sink)
    file = stage.file(work)
    found = duckdb.execute(f"SELECT name, field_id FROM parquet_schema('{file}')").fetchall()
    ids = {name: number for name, number in found if number is not None}
    with closing(KIND.catalog(stage.table)) as catalog:
        schema = catalog.load_table("db.rows").schema()
    leaves = {"a", "b", "n", "who", "tags"}
    assert {name: ids[name] for name in leaves} == {
        name: schema.find_field(name).field_id for name in leaves
    }
    for name in ("who.name", "who.age", "tags.element", "tags.element.tag"):
        assert ids[name.rpartition(".")[2]] == schema.find_field(name).field_id


def test_rows_that_no_decision_names_have_ids_too(stage: Stage):
    writer = stage.sink.opened(0, 0, transactional=False)
    writer.write(pa.RecordBatch.from_pylist([ROW], schema=SCHEMA))
    writer.prepare("0" * 32)
    change(stage, lambda t: t.rename_column("a", "c"))
    (row,) = read(stage)
    assert row["c"] == "A"


def test_the_parts_of_a_map_have_their_ids():
    """Spark cannot hash maps yet, so no query delivers one; files would have its ids."""
    from airflow_eos.kinds.iceberg.participant import with_ids

    numbered = {b"PARQUET:field_id": b"9"}
    key = pa.field("key", pa.string(), nullable=False, metadata={b"PARQUET:field_id": b"2"})
    item = pa.field("value", pa.int64(), metadata={b"PARQUET:field_id": b"3"})
    table = pa.schema([pa.field("m", pa.map_(key, item), metadata=numbered)])
    rows = pa.schema([("m", pa.map_(pa.string(), pa.int64()))])
    assert with_ids(rows, table).field("m").type.key_field.metadata == key.metadata
    assert with_ids(rows, table).field("m").type.item_field.metadata == item.metadata
