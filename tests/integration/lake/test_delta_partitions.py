"""Rows are found under their partitions, and files are left out as by Delta's own statistics."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.delta.columns import text_of
from tests.integration.lake.kinds import KINDS
from tests.integration.lake.stage import Stage

LESS = Decimal("-0.05")
"""delta-rs writes "0.-5" for it, which nobody reads, and its reader of datasets reads it so."""
LONG = "x" * 400
"""Of it no folder can be called, from whose name alone Polars takes a value."""
INSTANT = pa.timestamp("us", "UTC")
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False, None]),
    "byte": (pa.int8(), [0, -128, 127, None]),
    "short": (pa.int16(), [0, -(2**15), None]),
    "int": (pa.int32(), [0, -1, 2**31 - 1, None]),
    "long": (pa.int64(), [0, -(2**63), 2**63 - 1, None]),
    "float": (pa.float32(), [1.5, 0.10000000149011612, -math.inf, None]),
    "double": (pa.float64(), [0.1, 1e-7, 1e300, math.inf, None]),
    "string": (
        pa.string(),
        ["a b/c=d%é:\"'#?\\[]{}^*+&", "..", "null", "x\ny", "😀" * 5, None],
    ),
    "long text": (pa.string(), ["a", LONG, None]),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.50"), LESS, None]),
    "wide": (pa.decimal128(38, 10), [Decimal("1e27"), Decimal("-1.0000000001"), None]),
    "date": (pa.date32(), [date(1, 1, 1), date(2026, 11, 28), date(9999, 12, 31), None]),
    "instant": (
        INSTANT,
        [
            datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
            datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
            None,
        ],
    ),
    "local": (pa.timestamp("us"), [datetime(2026, 3, 29, 2, 30), datetime(1, 1, 1), None]),  # noqa: DTZ001
}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(KINDS["delta"], tmp_path)


def parted(stage: Stage, schema: pa.Schema, *by: str, **how: Any) -> Stage:
    DeltaTable.create(str(stage.table), schema=schema, partition_by=list(by), **how)
    return stage.claimed()


def prepared(stage: Stage, rows: pa.Table, *, task: int = 0) -> PreparedWork:
    writer = stage.sink.opened(task, 0)
    for each in rows.to_batches():
        writer.write(each)
    work: PreparedWork | None = writer.prepare("0" * 32)
    assert work is not None
    return work


def delivered(stage: Stage, rows: pa.Table) -> DeltaTable:
    work = prepared(stage, rows)
    stage.decide(work)
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    return DeltaTable(stage.table)


def added(table: Path) -> list[dict[str, Any]]:
    lines = [
        json.loads(line)
        for commit in sorted((table / "_delta_log").glob("*.json"))
        for line in commit.read_text().splitlines()
    ]
    return [line["add"] for line in lines if "add" in line]


def pairs(rows: pa.Table, by: str) -> list[tuple[str, int]]:
    return sorted(zip(map(repr, rows[by].to_pylist()), rows["n"].to_pylist(), strict=True))


@pytest.mark.parametrize("name", COLUMNS)
def test_every_reader_finds_each_row_under_its_partition(stage: Stage, name: str):
    kind, values = COLUMNS[name]
    schema = pa.schema([("n", pa.int64()), ("p", kind)])
    rows = pa.table({"n": range(2 * len(values)), "p": pa.array(values * 2, kind)}, schema)
    table = delivered(parted(stage, schema, "p"), rows)
    assert len(added(stage.table)) == len(values), "a file for each partition"
    expected = pairs(rows, "p")
    if not pa.types.is_decimal(kind):
        assert pairs(table.to_pyarrow_table(), "p") == expected
    asked = pa.table(QueryBuilder().register("t", table).execute("SELECT n, p FROM t"))
    assert pairs(asked.cast(schema), "p") == expected
    if LONG not in values:
        seen = pl.scan_delta(str(stage.table)).select("n", "p").collect().to_arrow()
        assert pairs(seen.cast(schema), "p") == expected


@pytest.mark.parametrize("name", ["boolean", "byte", "long", "decimal", "date", "local"])
def test_the_log_has_what_another_writer_of_delta_says(stage: Stage, tmp_path: Path, name: str):
    kind, values = COLUMNS[name]
    values = [value for value in values if value != LESS]
    schema = pa.schema([("n", pa.int64()), ("p", kind)])
    rows = pa.table({"n": range(len(values)), "p": pa.array(values, kind)}, schema)
    delivered(parted(stage, schema, "p"), rows)
    write_deltalake(str(tmp_path / "theirs"), rows, partition_by="p")
    ours, theirs = (
        {each["partitionValues"]["p"] for each in added(folder)}
        for folder in (stage.table, tmp_path / "theirs")
    )
    assert ours == theirs


def test_several_columns_and_a_text_that_is_empty(stage: Stage):
    schema = pa.schema([("day", pa.date32()), ("n", pa.int64()), ("shop", pa.string())])
    rows = pa.table(
        {"day": [date(2026, 1, 1)] * 4, "n": range(4), "shop": ["a", "", None, "a"]}, schema
    )
    table = delivered(parted(stage, schema, "shop", "day"), rows)
    assert {each["path"].rpartition("/")[0] for each in added(stage.table)} == {
        "shop=a/day=2026-01-01",
        "shop=__HIVE_DEFAULT_PARTITION__/day=2026-01-01",
    }
    found = table.to_pyarrow_table().sort_by("n")
    assert found["shop"].to_pylist() == ["a", None, None, "a"], "as Delta's own writer has it"
    assert found["n"].to_pylist() == [0, 1, 2, 3]


def test_a_null_of_a_partition_does_not_fit_where_the_table_has_none(stage: Stage):
    strict = pa.schema([pa.field("p", pa.string(), nullable=False), ("n", pa.int64())])
    parted(stage, strict, "p")
    work = prepared(stage, pa.table({"p": [""], "n": [1]}, strict))
    with pytest.raises(ConfigurationError, match="p may be null"):
        stage.participant().require_decidable([work])


def test_a_date_that_no_text_can_say_is_refused_by_its_task(stage: Stage):
    schema = pa.schema([("p", pa.date32()), ("n", pa.int64())])
    parted(stage, schema, "p")
    rows = pa.table({"p": pa.array([2_932_897], pa.int32()).cast(pa.date32()), "n": [1]})
    with pytest.raises(DeliveryError, match="outside of the years 1 to 9999"):
        prepared(stage, rows)


def test_a_table_by_bytes_is_refused_by_name(stage: Stage):
    schema = pa.schema([("p", pa.binary()), ("n", pa.int64())])
    with pytest.raises(ConfigurationError, match="partitions by the binary p"):
        parted(stage, schema, "p")


def test_a_table_that_is_partitioned_anew_meanwhile_is_refused_and_nothing_dropped(stage: Stage):
    schema = pa.schema([("p", pa.string()), ("q", pa.string())])
    parted(stage, schema, "p")
    work = prepared(stage, pa.table({"p": ["a"], "q": ["b"]}, schema))
    write_deltalake(
        str(stage.table), schema.empty_table(), mode="overwrite", partition_by="q",
        schema_mode="overwrite",
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"promised to it: it is partitioned by q"):
        stage.participant().require_decidable([work])
    assert list(stage.table.rglob(f"{work.key}*.parquet"))


STATS = pa.table(
    {
        "n": pa.array([3, None, -7], pa.int64()),
        "float": [math.nan, 2.5, -1.0],
        "price": pa.array([Decimal("1.50"), Decimal("-0.05"), None], pa.decimal128(10, 2)),
        "day": [date(2026, 1, 2), date(1, 1, 1), None],
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC), None, None], INSTANT),
        "long": ["é" * 40, "b", None],
        "last": ["\U0010ffff" * 40, "a", None],
        "who": [{"a": 1, "b": "x"}, {"a": 2, "b": None}, None],
        "tags": [[1], None, [2]],
        "after": ["z", "y", None],
        "none": pa.array([None, None, None], pa.string()),
        "flag": [True, None, False],
    }
)


def test_statistics_say_what_is_in_a_file(stage: Stage):
    delivered(parted(stage, STATS.schema), STATS)
    (found,) = (json.loads(each["stats"]) for each in added(stage.table))
    assert found["numRecords"] == 3
    assert found["minValues"] == {
        "n": -7,
        "float": -1.0,
        "price": -0.05,
        "day": "0001-01-01",
        "at": "2026-01-02T03:04:05.678901Z",
        "long": "b",
        "last": "a",
        "who": {"a": 1, "b": "x"},
        "after": "y",
    }
    assert found["maxValues"] == {
        "n": 3,
        "price": 1.5,
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05.678901Z",
        "long": "é" * 32 + "\U0010ffff",
        "last": "\U0010ffff" * 40,
        "who": {"a": 2, "b": "x"},
        "after": "z",
    }, "NaN is above all, and no footer tells of it"
    assert found["nullCount"] == {
        "n": 1, "float": 0, "price": 1, "day": 1, "at": 2, "long": 1, "last": 1,
        "who": {"a": 1, "b": 2}, "after": 1, "none": 3, "flag": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"delta.dataSkippingNumIndexedCols": "2"}, {"a", "b"}),
        ({"delta.dataSkippingNumIndexedCols": "0"}, set()),
        ({"delta.dataSkippingStatsColumns": "c, `b`"}, {"b", "c"}),
    ],
)
def test_a_table_says_of_which_columns_it_wants_statistics(stage: Stage, properties, told):
    rows = pa.table({"c": [3], "b": [2], "a": [1]})
    schema = pa.schema([(name, pa.int64()) for name in "abc"])
    delivered(parted(stage, schema, configuration=properties), rows)
    (found,) = (json.loads(each["stats"]) for each in added(stage.table))
    assert set(found["nullCount"]) == set(found["minValues"]) == told


def test_readers_leave_out_files_by_partition_and_by_statistics(stage: Stage):
    schema = pa.schema([("day", pa.date32()), ("n", pa.int64()), ("name", pa.string())])
    parted(stage, schema, "day")
    for batch in range(3):
        rows = pa.table(
            {"day": [date(2026, 1, d) for d in (1, 2)], "n": [batch, 10 + batch],
             "name": [f"{batch}a", f"{batch}b"]}, schema,
        )  # fmt: skip
        work = prepared(stage, rows)
        stage.decide(work, batch=batch)
        stage.participant().commit([work])
    table = DeltaTable(stage.table)

    def files(predicate: str) -> int:
        return len(table.file_uris(file_pruning_predicate=predicate))

    assert files("n > -1") == 6
    assert files("day = '2026-01-01'") == 3
    assert files("n = 12") == 1
    assert files("name >= '2b'") == 1
    assert table.to_pyarrow_table(filters=[("n", "=", 12)])["name"].to_pylist() == ["2b"]
    assert table.to_pyarrow_dataset().count_rows() == 6


def readable(values: Sequence[Any], kind: pa.DataType) -> list[str | None]:
    return [text_of(pa.scalar(value, kind)) for value in values]


def test_values_are_texts_as_the_protocol_says():
    assert readable([True, False, None], pa.bool_()) == ["true", "false", None]
    assert readable([math.nan, math.inf, -math.inf, -0.0], pa.float64()) == [
        "NaN", "Infinity", "-Infinity", "-0.0",
    ]  # fmt: skip
    at = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    assert readable([at], pa.timestamp("us", "Europe/Berlin")) == ["2026-01-02T03:04:05.000006Z"]
    assert readable([at.replace(tzinfo=None)], pa.timestamp("us")) == ["2026-01-02 03:04:05.000006"]
    assert readable([Decimal("-0.05"), Decimal("1E+2")], pa.decimal128(10, 2)) == [
        "-0.05", "100.00",
    ]  # fmt: skip
    assert readable([0.1], pa.float32()) == ["0.1"]
    assert readable(["", "x"], pa.string()) == [None, "x"]
