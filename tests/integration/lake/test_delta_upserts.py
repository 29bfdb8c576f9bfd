"""Rows replace those of their key exactly once, whoever dies, commits or cleans up in between."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.sql.types import BooleanType, LongType, StringType

from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.delta import merge
from airflow_eos.kinds.delta import participant as of_delta
from airflow_eos.kinds.lake.upsert import LakeUpsert
from tests.integration.lake.kinds import KINDS, Delta
from tests.integration.lake.stage import Stage
from tests.integration.lake.upserts import *  # noqa: F403 - the tests of both kinds
from tests.integration.lake.upserts import (
    COMMITTED,
    SCHEMA,
    Upserting,
    decided,
    delivered,
    found,
    prepared,
    settled,
    spark_schema,
    waiting,
)


class UpsertingDelta(Upserting, Delta):
    def paths(self, folder: Path) -> set[str]:
        return set(self.at(folder).file_uris())

    def append(self, folder: Path, rows: pa.Table) -> None:
        write_deltalake(folder, rows, mode="append")

    def compact(self, folder: Path) -> None:
        self.at(folder).optimize.compact()

    def delete(self, folder: Path, condition: str) -> None:
        self.at(folder).delete(condition)

    def parted(self, folder: Path, schema: pa.Schema, column: str) -> None:
        DeltaTable.create(str(folder), schema=schema, partition_by=[column])

    def between(self, act: Callable[[int], object]) -> Any:
        rewrite, seen = merge.rewritten, []

        def rewritten(*given: Any) -> Any:
            seen.append(rewrite(*given))
            act(len(seen))
            return seen[-1]

        return patch.object(of_delta, "rewritten", rewritten), seen


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(UpsertingDelta(), tmp_path).made(SCHEMA)


def test_vacuum_takes_no_waiting_row_and_no_row_is_lost(stage: Stage):
    delivered(stage, (1, "a"), batch=0)
    work = decided(stage, (1, "b"), batch=1)
    DeltaTable(stage.table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert settled(stage, work) is COMMITTED
    assert found(stage) == {1: "b"}


def test_a_table_that_is_partitioned_anew_during_a_commit_gets_files_of_its_new_partitions(
    stage: Any,
):
    """What was written for the old ones has no column of theirs, and would be named by others."""
    schema = pa.schema([*SCHEMA, ("p", pa.string())])
    empty = schema.empty_table()

    def partitioned(by: str) -> Any:
        new: Any = {"mode": "overwrite", "schema_mode": "overwrite", "partition_by": [by]}
        return write_deltalake(stage.table, empty, **new)

    partitioned("p")
    rows = pa.schema([*schema, ("gone", pa.bool_())])
    work = decided(stage, (1, "value", "part"), batch=0, schema=rows)
    racing, seen = stage.kind.between(lambda tries: tries == 1 and partitioned("v"))
    with racing:
        assert settled(stage, work) is COMMITTED
    assert len(seen) == 2
    left = DeltaTable(stage.table).to_pyarrow_table().to_pylist()
    assert left == [{"id": 1, "v": "value", "p": "part"}]


@pytest.fixture
def one_key(tmp_path: Path) -> Stage:
    """A table in which each batch replaces the one row."""
    return Stage(KINDS["delta-upsert"], tmp_path).made()


def test_a_key_of_several_columns_and_of_a_partition(tmp_path: Path):
    schema = pa.schema([("shop", pa.string()), ("id", pa.int32()), ("v", pa.string())])
    stage = Stage(UpsertingDelta(LakeUpsert(["shop", "id"])), tmp_path)
    DeltaTable.create(str(stage.table), schema=schema, partition_by=["shop"])
    stage.claimed()
    for batch, rows in enumerate(
        [[("a", 1, "x"), ("b", 1, "x"), ("b", 2, "x")], [("b", 1, "y"), ("c", 1, "y")]]
    ):
        delivered(stage, *rows, batch=batch, schema=schema)
    rows = DeltaTable(stage.table).to_pyarrow_table().to_pylist()
    assert sorted((row["shop"], row["id"], row["v"]) for row in rows) == [
        ("a", 1, "x"), ("b", 1, "y"), ("b", 2, "x"), ("c", 1, "y"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("property_", "why"),
    [
        ("delta.appendOnly", "may only be appended to"),
        ("delta.enableChangeDataFeed", "has a change data feed"),
    ],
)
def test_a_table_whose_rows_cannot_be_replaced_is_refused_before_the_first_row(
    tmp_path: Path, property_: str, why: str
):
    stage = Stage(UpsertingDelta(), tmp_path)
    DeltaTable.create(str(stage.table), schema=SCHEMA, configuration={property_: "true"})
    with pytest.raises(ConfigurationError, match=why):
        stage.sink.columns(spark_schema(id=LongType(), v=StringType(), gone=BooleanType()))


def test_a_file_that_the_library_would_not_take_away_is_refused_and_nothing_is_twice(stage: Stage):
    """Spark leaves letters in a path that delta-rs escapes, which looks for the text it wrote."""
    delivered(stage, (1, "a"), batch=0)
    (commit,) = (stage.table / "_delta_log").glob("*1.json")
    (file,) = stage.table.glob("*.parquet")
    shutil.move(file, stage.table / "é.parquet")
    commit.write_text(commit.read_text().replace(file.name, "é.parquet"))
    work = decided(stage, (1, "b"), batch=1)
    with pytest.raises(ConfigurationError, match=r"would not take it away"):
        settled(stage, work)
    assert DeltaTable(stage.table).version() == 1
    assert waiting(stage)


def test_files_of_spark_are_written_anew_with_their_instants(tmp_path: Path):
    """It may keep instants in 96 bits, and columns in another order, or not at all."""
    at = pa.timestamp("us", "UTC")
    schema = pa.schema([("id", pa.int64()), ("at", at), ("late", pa.string())])
    stage = Stage(UpsertingDelta(LakeUpsert(["id"])), tmp_path)
    DeltaTable.create(str(stage.table), schema=schema)
    stage.claimed()
    far = -62_135_596_800_000_000  # the year 1, which 96 bits in nanoseconds do not hold
    theirs = pa.table({"at": pa.array([far, 5], at), "id": pa.array([1, 2])})
    pq.write_table(theirs, stage.table / "theirs.parquet", use_deprecated_int96_timestamps=True)
    size = (stage.table / "theirs.parquet").stat().st_size
    add = {"path": "theirs.parquet", "partitionValues": {}, "size": size, "modificationTime": 0}
    log = stage.table / "_delta_log" / f"{1:020d}.json"
    log.write_text(json.dumps({"add": add | {"dataChange": True}}))
    delivered(stage, (2, 7, "z"), batch=0, schema=schema)
    rows = DeltaTable(stage.table).to_pyarrow_table().sort_by("id")
    assert rows["at"].cast(pa.int64()).to_pylist() == [far, 7]
    assert rows["late"].to_pylist() == [None, "z"]


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "byte": (pa.int8(), [-128, 0, 127]),
    "long": (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    "text": (pa.string(), ["", "é" * 40 + "a", "é" * 40 + "b"]),
    "bytes": (pa.binary(), [b"", b"\x00", b"\xff" * 40]),
    "day": (pa.date32(), [date(1, 1, 1), date(2026, 1, 1), date(9999, 12, 31)]),
    "at": (
        pa.timestamp("us", "UTC"),
        [datetime(2026, 1, 1, microsecond=each, tzinfo=UTC) for each in (0, 1, 999_999)],
    ),
    "price": (pa.decimal128(10, 2), [Decimal("-0.05"), Decimal("0.00"), Decimal("1.50")]),
    "flag": (pa.bool_(), [False, True]),
}


CUTS = [
    (name, cut)
    for name in KEYS
    for cut in ([], ["name"], ["second"])
    if (name, cut) != ("bytes", ["name"])  # no table is partitioned by bytes
]


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_a_key_of_each_type_replaces_its_row_and_no_other(
    tmp_path: Path, name: str, cut: list[str]
):
    kind, values = KEYS[name]
    if cut == ["name"]:
        values = [each for each in values if each != ""]  # see below
    schema = pa.schema([("name", kind), ("second", pa.int32()), ("v", pa.string())])
    stage = Stage(UpsertingDelta(LakeUpsert(["name", "second"] if cut else ["name"])), tmp_path)
    DeltaTable.create(str(stage.table), schema=schema, partition_by=cut)
    stage.claimed()
    for batch in range(len(values) + 1):
        chosen = values if not batch else values[batch - 1 : batch]
        delivered(stage, *[(each, 1, f"b{batch}") for each in chosen], batch=batch, schema=schema)
        asked = QueryBuilder().register("t", DeltaTable(stage.table)).execute("SELECT v FROM t")
        left = sorted(pa.table(asked)["v"].to_pylist())
        assert left == ["b0"] * (len(values) - batch) + [f"b{n + 1}" for n in range(batch)]


def test_an_empty_key_of_a_partition_is_refused_by_its_task(tmp_path: Path):
    """Delta keeps it as null: the next batch would not find it, and leave it there twice."""
    schema = pa.schema([("shop", pa.string()), ("v", pa.string())])
    stage = Stage(UpsertingDelta(LakeUpsert(["shop"])), tmp_path)
    DeltaTable.create(str(stage.table), schema=schema, partition_by=["shop"])
    stage.claimed()
    with pytest.raises(DeliveryError, match=r"no shop \(an empty text"):
        prepared(stage, ("a", "x"), ("", "y"), schema=schema)


def test_a_file_with_columns_that_the_table_has_not_loses_none(stage: Stage):
    delivered(stage, (1, "a"), batch=0)
    (file,) = stage.table.glob("*.parquet")
    pq.write_table(pa.table({"id": [1], "V": ["a"]}), file)
    work = decided(stage, (1, "b"), batch=1)
    with pytest.raises(ConfigurationError, match="has the columns V"):
        settled(stage, work)
    assert waiting(stage)


def test_a_column_within_a_column_that_is_newer_than_a_file_is_null_in_it(tmp_path: Path):
    schema = pa.schema([("id", pa.int64()), ("who", pa.struct([("a", pa.int64())]))])
    stage = Stage(UpsertingDelta(LakeUpsert(["id"])), tmp_path).made(schema)
    old = [{"id": 1, "who": {"a": 1}}, {"id": 2, "who": {"a": 2}}]
    delivered(stage, *[tuple(each.values()) for each in old], batch=0, schema=schema)
    wider = pa.schema(
        [("id", pa.int64()), ("who", pa.struct([("a", pa.int64()), ("b", pa.string())]))]
    )
    more = pa.Table.from_pylist([{"id": 3, "who": {"a": 3, "b": "x"}}], wider)
    write_deltalake(stage.table, more, mode="append", schema_mode="merge")
    delivered(stage, (1, {"a": 9, "b": "y"}), batch=1, schema=wider)
    rows = DeltaTable(stage.table).to_pyarrow_table().sort_by("id").to_pylist()
    assert [row["who"] for row in rows] == [
        {"a": 9, "b": "y"}, {"a": 2, "b": None}, {"a": 3, "b": "x"},
    ]  # fmt: skip
