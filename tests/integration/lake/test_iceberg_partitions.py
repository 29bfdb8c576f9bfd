"""Rows are found under their partitions: all transforms of all types, by readers of other hands."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import closing
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import Transform, parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from tests.integration.lake.kinds import ICEBERG
from tests.integration.lake.stage import Stage
from tests.support.kinds.iceberg_java import NULL, planned, texts

KIND = ICEBERG
EQUAL: Any = EqualTo  # takes a name as well, which its types do not say
IS_NULL: Any = IsNull
DAY_US = 86_400_000_000
WIDE = Context(prec=38)
LAST = 253_402_318_799_000_000  # a quarter to 5 of the year 10000
COLUMNS: dict[str, tuple[PrimitiveType, list[Any], list[str]]] = {
    "boolean": (BooleanType(), [True, False, None], []),
    "int": (
        IntegerType(),
        [0, -1, 9, 10, 2**31 - 1, -(2**31) + 8, None],
        ["bucket[16]", "truncate[10]"],
    ),
    "long": (
        LongType(),
        [0, -1, 34, 2**63 - 1, -(2**63) + 8, None],
        ["bucket[16]", "truncate[10]"],
    ),
    "float": (FloatType(), [0.0, 1.5, -math.inf, None], []),
    "double": (DoubleType(), [0.0, -0.0, math.nan, 1.5, math.inf, None], []),
    "string": (
        StringType(),
        ["", "iceberg", "a/b=c d%é+", "null", "..", "😀" * 5, "x" * 400, None],
        ["bucket[16]", "truncate[2]"],
    ),
    "binary": (BinaryType(), [b"", b"abc", bytes(range(5)), None], ["bucket[16]", "truncate[2]"]),
    "decimal": (
        DecimalType(9, 2),
        [Decimal("14.20"), Decimal("-0.05"), Decimal("9999999.99"), None],
        ["bucket[16]", "truncate[50]"],
    ),
    "wide": (
        DecimalType(38, 10),
        [Decimal(10**27).quantize(Decimal("1e-10"), context=WIDE), Decimal("-0.0000000001"), None],
        ["bucket[7]", "truncate[50]"],
    ),
    "date": (
        DateType(),
        [0, -1, 17_486, -719_162, 2_932_896, None],
        ["bucket[16]", "year", "month", "day"],
    ),
    "local": (
        TimestampType(),
        [0, -1, 1_512_151_975_038_194, -DAY_US * 365, DAY_US - 1, LAST, None],
        ["bucket[16]", "year", "month", "day", "hour"],
    ),
    "instant": (
        TimestamptzType(),
        [0, -1, 1_512_151_975_038_194, DAY_US - 1, DAY_US, LAST, None],
        ["bucket[16]", "year", "month", "day", "hour"],
    ),
}
CASES = [
    (name, how) for name, (_, _, hows) in COLUMNS.items() for how in ["identity", "void", *hows]
]
SCHEMA = Schema(
    NestedField(1, "n", LongType()),
    *(NestedField(2 + at, name, kind) for at, (name, (kind, *_)) in enumerate(COLUMNS.items())),
)


def parted(stage: Stage, *fields: tuple[str, str], schema: Schema = SCHEMA, **how: Any) -> Stage:
    """A table by these (column, transform) in a catalog of its own."""
    spec = PartitionSpec(
        *(
            PartitionField(
                schema.find_field(name).field_id, 1000 + at, parse_transform(how), f"{name}_p{at}"
            )
            for at, (name, how) in enumerate(fields)
        )
    )
    at = KIND.uri(stage.table)
    with closing(KIND.catalog(stage.table)) as catalog:
        catalog.create_namespace_if_not_exists("db")
        catalog.create_table("db.rows", schema, at, partition_spec=spec, **how)
    return stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(KIND, tmp_path)


def loaded(stage: Stage) -> Table:
    with closing(KIND.catalog(stage.table)) as catalog:
        table: Table = catalog.load_table("db.rows")
    return table


def in_arrow(kind: PrimitiveType, values: list[Any]) -> pa.Array:
    wanted = Schema(NestedField(1, "x", kind)).as_arrow().field("x").type
    if pa.types.is_temporal(wanted):
        whole = pa.int32() if pa.types.is_date32(wanted) else pa.int64()
        return pa.array(values, whole).cast(wanted)
    return pa.array(values, wanted)


def rows_of(name: str) -> pa.RecordBatch:
    kind, values, _ = COLUMNS[name]
    many = [*values, *values]
    columns = {"n": pa.array(range(len(many))), name: in_arrow(kind, many)}
    return pa.RecordBatch.from_pydict(columns)


def delivered(stage: Stage, *batches: pa.RecordBatch, batch: int = 0) -> PreparedWork:
    writer = stage.sink.opened(0, 0)
    for each in batches:
        writer.write(each)
    work: PreparedWork = writer.prepare("0" * 32)
    stage.decide(work, batch=batch)
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    return work


def one_by_one(how: str, kind: PrimitiveType, value: Any) -> Any:
    """The transform of one value, by other code than ours runs: numpy's calendar, and Python."""
    if value is not None and how in UNITS:
        since = instant(kind, value)
        return int(since.astype(f"datetime64[{UNITS[how]}]").astype(np.int64))
    transform: Transform[Any, Any] = parse_transform(how)
    return transform.transform(kind)(value)


def instant(kind: PrimitiveType, value: int) -> Any:
    """Days or microseconds since 1970, in numpy's calendar."""
    return np.datetime64(value, "D") if isinstance(kind, DateType) else np.datetime64(value, "us")


UNITS = {"year": "Y", "month": "M", "day": "D", "hour": "h"}


def same(ours: Any, theirs: Any) -> bool:
    return bool(ours == theirs or (ours != ours and theirs != theirs))


def files(table: Table, **how: Any) -> Iterator[tuple[Any, list[int]]]:
    """Each planned file with the numbers of its rows."""
    import pyarrow.parquet as pq

    for task in table.scan(**how).plan_files():
        held = pq.read_table(task.file.file_path.removeprefix("file://"), partitioning=None)
        yield task.file, held["n"].to_pylist()


@pytest.mark.parametrize(("name", "how"), CASES)
def test_each_row_is_under_its_partition(stage: Stage, name: str, how: str):
    parted(stage, (name, how)).claimed()
    given = rows_of(name)
    delivered(stage, given)
    table = loaded(stage)
    kind, values, _ = COLUMNS[name]
    many = [*values, *values]
    found = dict[int, Any]()
    for file, numbers in files(table):
        found |= dict.fromkeys(numbers, file.partition[0])
        parts = file.file_path.removeprefix(f"{table.location()}/data/").split("/")
        assert len(parts) == 2
        assert parts[0].startswith(f"{name}_p0=") or len(parts[0]) <= 200
        assert file.spec_id == table.spec().spec_id
    for number, value in enumerate(many):
        assert same(found[number], one_by_one(how, kind, value)), (value, found[number])
    scanned = table.scan().to_arrow().sort_by("n")
    read = scanned.column(name).combine_chunks().cast(given.column(name).type)
    assert [repr(each) for each in read] == [repr(each) for each in given.column(name)]
    distinct = {repr(one_by_one(how, kind, value)) for value in values}
    assert len(list(table.scan().plan_files())) == len(distinct)


@pytest.mark.parametrize(("name", "how"), CASES)
def test_a_filter_reads_fewer_files_and_finds_all(stage: Stage, name: str, how: str):
    parted(stage, (name, how)).claimed()
    delivered(stage, rows_of(name))
    table, (kind, values, _) = loaded(stage), COLUMNS[name]
    every = len(list(table.scan().plan_files()))
    for number, value in enumerate(values):
        if value is None or isinstance(value, float):
            asked: Any = IS_NULL(name) if value is None else None
        elif isinstance(kind, DateType | TimestampType | TimestamptzType):
            asked = (
                None
                if value == LAST
                else EQUAL(name, in_arrow(kind, [value])[0].as_py().isoformat())
            )
        else:
            asked = EQUAL(name, value)
        if asked is None:
            continue
        planned = list(table.scan(row_filter=asked).plan_files())
        found = table.scan(row_filter=asked).to_arrow()["n"].to_pylist()
        assert sorted(found) == [number, number + len(values)], (name, how, value)
        if every > 1:
            assert len(planned) < every, (name, how, value)


def in_java(name: str) -> list[str]:
    """The values of a column as Java reads texts."""
    kind, values, _ = COLUMNS[name]
    if isinstance(kind, DateType | TimestampType | TimestamptzType):
        zone = "+00:00" if isinstance(kind, TimestamptzType) else ""
        return [NULL if value is None else f"{instant(kind, value)}{zone}" for value in values]
    return texts(values)


@pytest.mark.long
def test_apache_iceberg_itself_finds_each_row_and_names_folders_alike(tmp_path: Path):
    """Its planner, in Java, of all transforms of all types.

    But -0.0 beside 0.0: pyiceberg gives a manifest the bound 0.0 for both, as by its own writer.
    """
    with closing(KIND.catalog(tmp_path / "all")) as catalog:
        catalog.create_namespace("db")
        held: dict[str, dict[str, list[int]]] = {}
        for number, (name, how) in enumerate(CASES):
            folder = tmp_path / str(number)
            folder.mkdir()
            stage = parted(Stage(KIND, folder), (name, how)).claimed()
            delivered(stage, rows_of(name))
            table = catalog.register_table(f"db.t{number}", loaded(stage).metadata_location)
            held[f"db.t{number}"] = {file.file_path: found for file, found in files(table)}
    scans = [(f"db.t{number}", "*", "") for number in range(len(CASES))]
    asked = [
        (f"db.t{number}", name, value, at)
        for number, (name, _) in enumerate(CASES)
        for at, value in enumerate(in_java(name))
        if value not in {"NaN", "-0.0"} and "10000-" not in value
    ]
    told = planned(
        KIND.database(tmp_path / "all"), f"file://{tmp_path}", *scans, *[each[:3] for each in asked]
    )
    for (name, _, _), found in zip(scans, told, strict=False):
        assert {each.path for each in found} == held[name].keys()
        for each in found:
            ours = each.path.rpartition("/")[0].rpartition("/data/")[2]
            # Python writes inf and nan, and no year beyond 9999.
            named_otherwise = re.search("10000|Infinity|NaN", each.folder)
            assert ours == each.folder[:200] or named_otherwise
    for (table_name, name, value, at), found in zip(asked, told[len(scans) :], strict=True):
        reads = {number for each in found for number in held[table_name][each.path]}
        assert {at, at + len(COLUMNS[name][1])} <= reads, (table_name, name, value)
        if len(held[table_name]) > 1:
            assert len(found) < len(held[table_name]), (table_name, name, value)
