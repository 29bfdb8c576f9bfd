"""Rows of an Iceberg table replace those of their key exactly once; see ``test_delta_upserts``."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType as IcebergLong
from pyspark.sql.types import BooleanType, LongType, StringType

from airflow_eos.core.checkpoint import Decision
from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.iceberg import merge
from airflow_eos.kinds.iceberg.merge import Overwriting
from airflow_eos.kinds.lake.upsert import LakeUpsert
from tests.integration.lake.kinds import KINDS, Iceberg
from tests.integration.lake.stage import Stage
from tests.integration.lake.test_delta_upserts import KEYS
from tests.integration.lake.upserts import *  # noqa: F403 - the tests of both kinds
from tests.integration.lake.upserts import (
    COMMITTED,
    DAYS,
    ROWS,
    SCHEMA,
    Upserting,
    decided,
    delivered,
    found,
    prepared,
    settled,
    spark_schema,
    theirs,
    waiting,
)


class UpsertingIceberg(Upserting, Iceberg):
    def paths(self, folder: Path) -> set[str]:
        with closing(self.catalog(folder)) as catalog:
            tasks = catalog.load_table("db.rows").scan().plan_files()
            return {task.file.file_path for task in tasks}

    def append(self, folder: Path, rows: pa.Table) -> None:
        self.change(folder, lambda table: table.append(rows))

    def compact(self, folder: Path) -> None:
        self.change(folder, lambda table: table.overwrite(table.scan().to_arrow()))

    def delete(self, folder: Path, condition: str) -> None:
        self.change(folder, lambda table: table.delete(condition))

    def parted(self, folder: Path, schema: pa.Schema, column: str) -> None:
        self.create(folder, schema)
        with (
            closing(self.catalog(folder)) as catalog,
            catalog.load_table("db.rows").update_spec() as spec,
        ):
            spec.add_identity(column)

    def change(self, folder: Path, act: Callable[[Table], object]) -> object:
        """Another program changes the table."""
        with closing(self.catalog(folder)) as catalog:
            return act(catalog.load_table("db.rows"))

    def between(self, act: Callable[[int], object]) -> Any:
        rewrite, seen = Overwriting.rewritten, []

        def rewritten(look: Overwriting, doing: Any) -> Any:
            seen.append(rewrite(look, doing))
            act(len(seen))
            return seen[-1]

        return patch.object(Overwriting, "rewritten", rewritten), seen


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(UpsertingIceberg(), tmp_path).made(SCHEMA)


def changed(stage: Any, change: Callable[[Table], object]) -> object:
    return stage.kind.change(stage.table, change)


def table_of(stage: Stage) -> Table:
    with closing(Iceberg().catalog(stage.table)) as catalog:
        found: Table = catalog.load_table("db.rows")
    return found


@pytest.fixture
def one_key(tmp_path: Path) -> Stage:
    """A table in which each batch replaces the one row."""
    return Stage(KINDS["iceberg-upsert"], tmp_path).made()


def parted(stage: Stage, *fields: tuple[str, str]) -> Stage:
    def part(table: Table) -> None:
        with table.update_spec() as spec:
            for name, transform in fields:
                spec.add_field(name, transform)

    changed(stage, part)
    return stage


def test_a_batch_that_leaves_no_row_is_an_overwrite_by_which_other_writers_see_a_conflict(
    stage: Stage,
):
    delivered(stage, (1, "a"), (2, "b"), batch=0)
    delivered(stage, (1, None, True), (2, None, True), batch=1)
    head = table_of(stage).current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary.operation is Operation.OVERWRITE
    assert head.summary["total-records"] == "0"


def test_a_file_written_anew_is_in_the_folder_of_its_partition(tmp_path: Path):
    stage: Any = Stage(UpsertingIceberg(LakeUpsert(["id"])), tmp_path)
    stage.kind.parted(stage.table, DAYS, "day")
    stage.claimed()
    delivered(stage, (1, "a/é", "x"), (2, "a/é", "x"), (3, None, "x"), batch=0, schema=DAYS)
    delivered(stage, (1, "b", "y"), batch=1, schema=DAYS)
    assert {Path(each).parent.name for each in stage.kind.paths(stage.table)} == {
        "day=a%2F%C3%A9", "day=null", "day=b",
    }  # fmt: skip


def test_files_of_other_buckets_are_not_even_read(tmp_path: Path):
    """A key has no order there that bounds could tell."""
    stage = Stage(UpsertingIceberg(LakeUpsert(["day"])), tmp_path)
    stage.kind.create(stage.table, DAYS)
    parted(stage, ("day", "bucket[16]")).claimed()
    delivered(stage, *[(n, f"key {n}", "x") for n in range(200)], batch=0, schema=DAYS)
    read: list[str] = []
    without = Overwriting._without

    def counted(look: Overwriting, task: Any, keys: Any) -> Any:
        read.append(task.file.file_path)
        return without(look, task, keys)

    with patch.object(Overwriting, "_without", counted):
        delivered(stage, (7, "key 7", "y"), batch=1, schema=DAYS)
    assert len(read) == 1
    assert stage.kind.rows(stage.table)["v"].to_pylist().count("y") == 1
    assert len(stage.kind.rows(stage.table)) == 200


TRANSFORMS = {
    "byte": ["identity", "bucket[3]", "truncate[10]"],
    "long": ["identity", "bucket[3]", "truncate[10]"],
    "text": ["identity", "bucket[3]", "truncate[41]"],
    "bytes": ["identity", "bucket[3]", "truncate[1]"],
    "day": ["identity", "year", "month", "day", "bucket[3]"],
    "at": ["identity", "hour", "bucket[3]"],
    "price": ["identity", "bucket[3]", "truncate[10]"],
    "flag": ["identity"],
}
CUTS = [(name, cut) for name, each in TRANSFORMS.items() for cut in ("", "second", *each)]
_VALUES: dict[str, Any] = KEYS | {
    "byte": (pa.int32(), [-128, 0, 127]),  # Iceberg has no smaller one
    "flag": (pa.bool_(), [False, True]),
    "at": (pa.timestamp("us", "UTC"), [datetime(2026, 1, 1, each, tzinfo=UTC) for each in (0, 1)]),
    "day": (pa.date32(), [date(1, 1, 1), date(2026, 1, 1), date(9999, 12, 31)]),
    "price": (pa.decimal128(10, 2), [Decimal("-0.05"), Decimal("0.00"), Decimal("1.50")]),
}


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_a_key_of_each_type_replaces_its_row_and_no_other(tmp_path: Path, name: str, cut: str):
    kind, values = _VALUES[name]
    schema = pa.schema([("name", kind), ("second", pa.int32()), ("v", pa.string())])
    stage = Stage(UpsertingIceberg(LakeUpsert(["name", "second"])), tmp_path)
    stage.kind.create(stage.table, schema)
    if cut:
        parted(stage, ("second", "identity") if cut == "second" else ("name", cut))
    stage.claimed()
    for batch in range(len(values) + 1):
        chosen = values if not batch else values[batch - 1 : batch]
        rows = [(each, 1, f"b{batch}") for each in chosen]
        delivered(stage, *rows, batch=batch, schema=schema)
        left = sorted(stage.kind.rows(stage.table)["v"].to_pylist())
        assert left == ["b0"] * (len(values) - batch) + [f"b{n + 1}" for n in range(batch)]


def test_rows_of_a_partition_that_is_no_number_are_replaced(tmp_path: Path):
    """The library looks for manifests of equal values, and NaN equals none."""
    schema = pa.schema([("id", pa.int64()), ("p", pa.float64()), ("v", pa.string())])
    stage = Stage(UpsertingIceberg(LakeUpsert(["id"])), tmp_path)
    stage.kind.create(stage.table, schema)
    parted(stage, ("p", "identity")).claimed()
    delivered(stage, (1, float("nan"), "x"), (2, -0.0, "x"), (3, None, "x"), batch=0, schema=schema)
    delivered(stage, (1, 0.5, "y"), (2, 0.5, "y"), (3, 0.5, "y"), batch=1, schema=schema)
    assert stage.kind.rows(stage.table)["v"].to_pylist() == ["y"] * 3


def test_what_is_left_of_a_file_of_a_former_spec_goes_by_the_newest(tmp_path: Path):
    stage = Stage(UpsertingIceberg(LakeUpsert(["id"])), tmp_path).made(DAYS)
    delivered(stage, (1, "a", "x"), (2, "b", "x"), (3, "c", "x"), batch=0, schema=DAYS)
    parted(stage, ("day", "identity"))
    delivered(stage, (2, "d", "y"), batch=1, schema=DAYS)
    assert sorted(
        (task.file.spec_id, task.file.partition[0]) for task in table_of(stage).scan().plan_files()
    ) == [(1, "a"), (1, "c"), (1, "d")]
    assert len(stage.kind.rows(stage.table)) == 3


def test_a_table_that_is_partitioned_anew_during_a_commit_gets_files_of_its_new_partitions(
    tmp_path: Path,
):
    stage: Any = Stage(UpsertingIceberg(LakeUpsert(["id"])), tmp_path).made(DAYS)
    delivered(stage, (1, "a", "x"), (2, "b", "x"), batch=0, schema=DAYS)
    work = prepared(stage, (2, "d", "y"), schema=DAYS)
    stage.decide(work, batch=1)

    def anew(tries: int) -> None:
        if tries == 1:
            parted(stage, ("day", "identity"))
            changed(stage, lambda table: table.append(pa.table([[9], ["z"], ["t"]], DAYS)))

    racing, seen = stage.kind.between(anew)
    with racing:
        assert stage.participant().commit([work]) == {work.identity: COMMITTED}
    assert len(seen) == 2
    assert {row["id"]: row["v"] for row in stage.kind.rows(stage.table).to_pylist()} == {
        1: "x", 2: "y", 9: "t",
    }  # fmt: skip
    specs = {task.file.spec_id for task in table_of(stage).scan(row_filter="id = 2").plan_files()}
    assert specs == {1}


def test_the_order_of_a_table_is_kept_in_what_is_written_anew(tmp_path: Path):
    stage = Stage(UpsertingIceberg(LakeUpsert(["id"])), tmp_path)
    stage.kind.create(stage.table, DAYS)

    def order(table: Table) -> None:
        with table.update_sort_order() as update:
            update.asc("v", IdentityTransform())

    changed(stage, order)
    stage.claimed()
    delivered(stage, *[(n, "d", f"{9 - n}") for n in range(9)], batch=0, schema=DAYS)
    delivered(stage, (3, "d", "z"), (4, "d", "a"), batch=1, schema=DAYS)
    tasks = list(table_of(stage).scan().plan_files())
    assert {task.file.sort_order_id for task in tasks} == {1}
    for task in tasks:
        values = pq.read_table(task.file.file_path.removeprefix("file://"))["v"].to_pylist()
        assert values == sorted(values)
    assert sum(task.file.record_count for task in tasks) == 9


def deletes(table: Table, content: DataFileContent, rows: pa.Table) -> None:
    """Another engine deletes rows without writing a file of data anew."""
    place = f"{table.location()}/data/{uuid.uuid4().hex}.parquet"
    pq.write_table(rows, place.removeprefix("file://"))
    file = DataFile.from_args(
        content=content,
        file_path=place,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(rows),
        file_size_in_bytes=Path(place.removeprefix("file://")).stat().st_size,
        equality_ids=[1] if content is DataFileContent.EQUALITY_DELETES else None,
    )
    file.spec_id = 0
    from pyiceberg.manifest import ManifestContent, ManifestWriterV2

    class OfDeletes(_FastAppendFiles):
        def new_manifest_writer(self, spec: PartitionSpec) -> Any:
            writer: Any = super().new_manifest_writer(spec)
            writer.content = lambda: ManifestContent.DELETES
            return writer

    with patch.object(ManifestWriterV2, "content", lambda _: ManifestContent.DELETES):
        change = table.transaction()
        with OfDeletes(Operation.DELETE, change, table.io) as snapshot:
            snapshot.append_data_file(file)
        change.commit_transaction()


_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
)


def test_rows_that_position_deletes_took_do_not_come_back(stage: Any, monkeypatch):
    monkeypatch.setattr(merge, "ROWS_AT_ONCE", 2)
    delivered(stage, (1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e"), batch=0)
    (path,) = stage.kind.paths(stage.table)
    told = pq.read_table(path.removeprefix("file://"))["id"].to_pylist()

    def take(number: int) -> object:
        at = {"file_path": [path], "pos": [told.index(number)]}
        rows = pa.table(at, _POSITIONS)
        content = DataFileContent.POSITION_DELETES
        return changed(stage, lambda table: deletes(table, content, rows))

    take(4)
    assert found(stage) == {1: "a", 2: "b", 3: "c", 5: "e"}
    work = decided(stage, (3, "C"), batch=1)
    racing, seen = stage.kind.between(lambda tries: tries == 1 and take(1))
    with racing:
        assert settled(stage, work) is COMMITTED
    assert len(seen) == 2
    assert found(stage) == {2: "b", 3: "C", 5: "e"}


def test_a_file_is_read_as_the_library_reads_it(stage: Any):
    """Columns that were renamed, moved, widened, dropped, or added within others since."""
    name = "db.older"
    inner = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
    schema = pa.schema(
        [
            ("id", pa.int32()),
            ("gone", pa.string()),
            ("s", inner),
            ("m", pa.map_(pa.string(), inner)),
            ("l", pa.list_(inner)),
            ("at", pa.timestamp("us", "UTC")),
            ("price", pa.decimal128(9, 2)),
            ("a.b", pa.float32()),
        ]
    )
    value = {"a": 1, "b": ["x", None]}
    row = {"id": 1, "gone": "g", "s": value, "m": [("k", value)], "l": [value, None], "a.b": 0.5}
    row |= {"at": datetime(1, 1, 1, tzinfo=UTC), "price": Decimal("-1.05")}
    with closing(stage.kind.catalog(stage.table)) as catalog:
        table = catalog.create_table(name, schema)
        table.append(pa.Table.from_pylist([row, dict.fromkeys(row)] * 20_000, schema))
        with table.update_schema() as change:
            change.rename_column("id", "number")
            change.update_column("id", IcebergLong())
            change.delete_column("gone")
            change.add_column(("s", "c"), IcebergLong())
            change.add_column("later", IcebergLong())
            change.move_first("price")
        (task,) = table.scan().plan_files()
        wanted = table.schema()
        ours = merge.read_slowly(task, table.metadata, table.io, wanted)
        theirs = ArrowScan(table.metadata, table.io, wanted, AlwaysTrue()).to_table([task])
        read = pa.Table.from_batches(ours)
        assert read.cast(theirs.schema) == theirs
        assert read["price"].null_count == len(read) // 2 == 20_000


def test_a_table_with_equality_deletes_is_refused_by_name(stage: Stage):
    delivered(stage, (1, "a"), (2, "b"), batch=0)
    work = decided(stage, (2, "B"), batch=1)
    ids = pa.schema([pa.field("id", pa.int64(), True, {"PARQUET:field_id": "1"})])
    rows = pa.table({"id": [1]}, ids)
    changed(stage, lambda table: deletes(table, DataFileContent.EQUALITY_DELETES, rows))
    with pytest.raises(ConfigurationError, match="equality deletes"):
        settled(stage, work)
    with pytest.raises(ConfigurationError, match="equality deletes"):
        stage.sink.columns(spark_schema(id=LongType(), v=StringType(), gone=BooleanType()))
    assert waiting(stage), "what was promised stays"


def test_columns_that_are_renamed_before_the_commit_keep_their_rows(stage: Stage):
    """Values go by ids, the key as well."""
    delivered(stage, (1, "a"), (2, "b"), batch=0)
    work = decided(stage, (2, "B"), (3, "c"), batch=1)

    def rename(table: Table) -> None:
        with table.update_schema() as update:
            update.rename_column("id", "number").rename_column("v", "word")

    changed(stage, rename)
    assert settled(stage, work) is COMMITTED
    rows = stage.kind.rows(stage.table).to_pylist()
    assert {row["number"]: row["word"] for row in rows} == {1: "a", 2: "B", 3: "c"}


def test_a_key_that_the_table_dropped_is_waited_for(stage: Stage):
    delivered(stage, (1, "a"), batch=0)
    work = decided(stage, (1, "b"), batch=1)

    def drop(table: Table) -> None:
        with table.update_schema() as update:
            update.delete_column("id")

    changed(stage, drop)
    with pytest.raises(ConfigurationError, match="no column id, of the key"):
        settled(stage, work)
    assert waiting(stage)


def test_new_columns_come_in_the_commit_of_their_rows(tmp_path: Path):
    stage = Stage(UpsertingIceberg(schema_evolution="add"), tmp_path).made(SCHEMA)
    delivered(stage, (1, "a"), (2, "b"), batch=0)
    wider = pa.schema([*ROWS, ("w", pa.int32())])
    delivered(stage, (2, "B", False, 7), (3, "c", None, 8), batch=1, schema=wider)
    rows = stage.kind.rows(stage.table).sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, "a", None), (2, "B", 7), (3, "c", 8)]


def test_a_required_key_is_one_and_a_column_of_deletes_may_be_kept(tmp_path: Path):
    strict = pa.schema(
        [pa.field("id", pa.int64(), False), ("v", pa.string()), ("gone", pa.bool_())]
    )
    stage = Stage(UpsertingIceberg(), tmp_path).made(strict)
    assert stage.sink.columns(spark_schema(id=LongType(), v=StringType(), gone=BooleanType()))
    delivered(stage, (1, "a", False), (2, "b"), batch=0)
    delivered(stage, (1, "b", False), (2, "b", True), batch=1)
    assert stage.kind.rows(stage.table).to_pylist() == [{"id": 1, "v": "b", "gone": False}]


def test_a_branch_gets_upserts_and_main_stays(tmp_path: Path):
    stage = Stage(UpsertingIceberg(branch="audit"), tmp_path).made(SCHEMA)
    theirs(stage, 1)
    delivered(stage, (1, "ours"), (2, "b"), batch=0)
    assert found(stage) == {1: "theirs"}
    head = table_of(stage).snapshot_by_name("audit")
    assert head is not None
    rows = table_of(stage).scan(snapshot_id=head.snapshot_id).to_arrow().to_pylist()
    assert {row["id"]: row["v"] for row in rows} == {1: "ours", 2: "b"}


def test_manifests_are_merged_and_none_is_of_removed_files_alone(tmp_path: Path):
    """Else a batch would cost more with each that was before."""
    stage = Stage(UpsertingIceberg(LakeUpsert(["id"])), tmp_path)
    stage.kind.create(stage.table, DAYS)
    parted(stage, ("day", "identity")).claimed()
    told = {"commit.manifest.min-count-to-merge": "4"}
    changed(stage, lambda table: table.transaction().set_properties(told).commit_transaction())
    for batch in range(12):
        rows = [(0, "newest", f"{batch}"), (1 + batch, f"of {batch}", "stays")]
        delivered(stage, *rows, batch=batch, schema=DAYS)
    table = table_of(stage)
    head = table.current_snapshot()
    assert head is not None
    manifests = head.manifests(table.io)
    assert len(manifests) <= 6
    assert sum(not (each.has_added_files() or each.has_existing_files()) for each in manifests) <= 1
    assert len(stage.kind.rows(stage.table)) == 13


def test_rows_at_once_replace_others_and_leave_nothing_that_waits(stage: Stage):
    delivered(stage, (1, "a"), (2, "b"), batch=0)
    writer = stage.sink.opened(0, 0, transactional=False)
    writer.write(pa.RecordBatch.from_pylist([{"id": 2, "v": "B", "gone": None}], ROWS))
    assert writer.prepare("0" * 32) is None
    assert found(stage) == {1: "a", 2: "B"}
    assert waiting(stage) == []


def test_a_decision_of_another_key_is_told_before_rows_are_written_otherwise(stage: Stage):
    work = prepared(stage, (1, "a"))
    assert stage.sink.elsewhere([work], []) == ""
    other = replace(stage.sink, upsert=LakeUpsert(["v"]))
    assert "LakeUpsert(key=('v',)" in other.elsewhere([work], [])
    assert isinstance(stage.decide(work), Decision)


def test_files_of_a_partition_whose_column_was_dropped_are_refused_by_name(tmp_path: Path):
    """The library cannot write their manifests anew; files without the keys hinder nobody."""
    stage = Stage(UpsertingIceberg(LakeUpsert(["id"])), tmp_path)
    stage.kind.create(stage.table, DAYS)
    parted(stage, ("day", "identity")).claimed()
    delivered(stage, (1, "a", "x"), (50, "b", "x"), batch=0, schema=DAYS)

    def forget(table: Table) -> None:
        with table.update_spec() as spec:
            spec.remove_field("day")
        with table.update_schema() as columns:
            columns.delete_column("day")

    changed(stage, forget)
    rows = pa.schema([("id", pa.int64()), ("v", pa.string())])
    delivered(stage, (99, "y"), batch=1, schema=rows)
    work = prepared(stage, (1, "y"), schema=rows)
    stage.decide(work, batch=2)
    with pytest.raises(
        ConfigurationError, match=r"cannot be replaced: .*rewrite the table's files"
    ):
        stage.participant().commit([work])
    assert waiting(stage)
