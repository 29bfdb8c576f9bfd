"""A task that writes a file for each partition: what it holds, notes, promises and leaves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionSpec

from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.protocol.decision import PreparedWork
from airflow_eos.errors import CheckpointFormatError, DeliveryError
from airflow_eos.kinds.grouping import grouped
from airflow_eos.kinds.iceberg.participant import _in_iceberg
from airflow_eos.kinds.iceberg.partitions import of_any_year
from airflow_eos.kinds.lake import task
from airflow_eos.kinds.lake.participant import DataFile, Partition, WorkNotes, files_of
from airflow_eos.kinds.lake.task import ParquetOfTask, TaskFileSpec

SCHEMA = pa.schema([("day", pa.string()), ("n", pa.int64())])


class ByDay:
    """Rows by their column ``day``, whose folder is for people."""

    columns = ("day",)

    def keys(self, rows: pa.RecordBatch) -> Sequence[pa.Array]:
        return [rows.column("day")]

    def partition(self, values: Sequence[pa.Scalar]) -> Partition:
        day = values[0].as_py()
        return Partition(f"day={day}/", (day,))


def rows(*pairs: tuple[str | None, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"day": d, "n": n} for d, n in pairs], schema=SCHEMA)


def writer(folder: Path, **how: Any) -> ParquetOfTask:
    (folder / "table").mkdir(exist_ok=True)
    spec = TaskFileSpec(
        "lake", "sink", str(folder / "table"), "data/", "", "zstd", 0, partitions=ByDay(), **how
    )
    store = CheckpointStore.open(folder / "checkpoint")
    return ParquetOfTask(spec, 0, 0, store=store, publish=lambda _files: None)


def prepared(of: ParquetOfTask, *batches: pa.RecordBatch) -> list[DataFile]:
    for each in batches:
        of.write(each)
    work = of.prepare("0" * 32)
    assert work is not None
    assert work.rows == sum(len(each) for each in batches)
    return files_of(msgspec.json.decode(msgspec.json.encode(work), type=PreparedWork), "data/")


def found(folder: Path, files: Sequence[DataFile]) -> dict[str, list[int]]:
    """Values of each file, by the partition that was promised for it."""
    told: dict[str, list[int]] = {}
    for file in files:
        table = pq.read_table(folder / "table" / file.path, partitioning=None)
        assert table.num_rows == file.rows
        assert set(table["day"].to_pylist()) == {*file.partition.values}
        assert file.path.startswith(f"data/{file.partition.folder}")
        told.setdefault(file.partition.folder, []).extend(table["n"].to_pylist())
    return told


def test_each_partition_has_a_file_with_its_rows_in_their_order(tmp_path: Path):
    files = prepared(
        writer(tmp_path), rows(("b", 1), ("a", 2), (None, 3), ("b", 4)), rows(("c", 5), ("a", 6))
    )
    told = {"day=a/": [2, 6], "day=b/": [1, 4], "day=None/": [3], "day=c/": [5]}
    assert found(tmp_path, files) == told
    assert len(files) == len({file.name for file in files}) == 4


def test_two_partitions_of_one_folder_are_two_files(tmp_path: Path):
    """A null and the text that stands for it."""
    files = prepared(writer(tmp_path), rows(("None", 1), (None, 2)))
    assert [file.partition.values for file in files] == [("None",), (None,)] or [
        file.partition.values for file in files
    ] == [(None,), ("None",)]
    assert len({file.path for file in files}) == 2


def test_a_row_group_is_not_as_small_as_what_spark_hands_over(tmp_path: Path):
    many = [rows(*[(day, n) for n, day in enumerate("ab" * 50)]) for _ in range(20)]
    for file in prepared(writer(tmp_path), *many):
        assert pq.read_metadata(tmp_path / "table" / file.path).num_row_groups == 1


def test_what_is_held_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task, "HELD_BYTES", 100)
    of = writer(tmp_path)
    of.write(rows(*[("a", n) for n in range(50)], ("b", 1)))
    assert sum(file.held for file in of._open.values()) <= 100
    work = of.prepare("0" * 32)
    assert work is not None
    files = files_of(work, "data/")
    assert found(tmp_path, files) == {"day=a/": list(range(50)), "day=b/": [1]}


def test_a_file_that_is_large_enough_is_followed_by_another(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(task, "ROW_GROUP_BYTES", 1)
    many = [rows(("a", n), ("b", n)) for n in range(3)]
    files = prepared(writer(tmp_path, file_bytes=1), *many)
    assert found(tmp_path, files) == {"day=a/": [0, 1, 2], "day=b/": [0, 1, 2]}
    assert len(files) == len({file.path for file in files}) == 6


def test_a_file_is_sorted_as_a_whole_however_its_rows_come(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(task, "HELD_BYTES", 200)
    many = [rows(*[("a", n * 37 % 50) for n in range(at, at + 5)]) for at in range(0, 50, 5)]
    files = prepared(writer(tmp_path, order=lambda table: table.sort_by("n")), *many)
    assert len(files) > 1
    for file in files:
        held = pq.read_table(tmp_path / "table" / file.path, partitioning=None)["n"].to_pylist()
        assert held == sorted(held)
    assert sorted(itertools.chain(*found(tmp_path, files).values())) == list(range(50))


def test_a_task_with_too_many_partitions_is_told_to_repartition_and_leaves_nothing(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(task, "OPEN_AT_MOST", 2)
    of = writer(tmp_path)
    of.write(rows(("a", 1), ("b", 2)))
    with pytest.raises(DeliveryError, match=r"more than 2 partitions by day.*distribute='hash'"):
        of.write(rows(("c", 3)))
    of.abort()
    assert list((tmp_path / "table").rglob("*.parquet")) == []
    assert WorkNotes(CheckpointStore.open(tmp_path / "checkpoint"), "sink").listed() == []


def test_every_file_is_noted_before_it_is_there(tmp_path: Path):
    """A task that is killed leaves files that only its note can name."""
    of, notes = writer(tmp_path), WorkNotes(CheckpointStore.open(tmp_path / "checkpoint"), "sink")
    for day in "abc":
        of.write(rows((day, 1), ("a", 2)))
        ((key, _at),) = notes.listed()
        there = {str(file) for file in (tmp_path / "table").rglob("*.parquet")}
        assert there == set(notes.files(key))


def test_a_task_that_was_aborted_begins_no_file_for_a_new_partition(tmp_path: Path):
    of, store = writer(tmp_path), CheckpointStore.open(tmp_path / "checkpoint")
    of.write(rows(("a", 1)))
    ((key, _at),) = WorkNotes(store, "sink").listed()
    WorkNotes(store, "sink").forget([key])
    with pytest.raises(DeliveryError, match="was aborted while it was written"):
        of.write(rows(("b", 1)))
    assert WorkNotes(store, "sink").listed() == []


def test_a_table_is_asked_for_the_columns_of_a_file_once_however_many_partitions(tmp_path: Path):
    asked: list[pa.Schema] = []

    def columns(schema: pa.Schema) -> pa.Schema:
        asked.append(schema)
        return schema

    of = writer(tmp_path, columns=columns)
    assert len(prepared(of, *(rows((day, 1)) for day in "abc"))) == 3
    assert asked == [SCHEMA]


def test_a_column_of_values_that_do_not_repeat_is_written_without_a_dictionary(tmp_path: Path):
    """It is longer than the values: files were a third larger, and took more CPU."""
    (file,) = prepared(writer(tmp_path), rows(*(("a", n) for n in range(5000))))
    group = pq.read_metadata(tmp_path / "table" / file.path).row_group(0)
    encoded = {group.column(at).path_in_schema: group.column(at) for at in range(2)}
    assert [encoded[name].has_dictionary_page for name in ("day", "n")] == [True, False]


@pytest.mark.parametrize("folder", ["../", "/etc/", "a/../../b/", "a//"])
def test_a_folder_never_leaves_the_table(tmp_path: Path, folder: str):
    of = writer(tmp_path)
    of.write(rows(("a", 1)))
    work = of.prepare("0" * 32)
    assert work is not None
    work.detail["files"][0]["folder"] = folder
    with pytest.raises(CheckpointFormatError, match="does not say which files"):
        files_of(work, "data/")


def test_files_of_a_former_release_are_read():
    work = PreparedWork(
        kind="iceberg",
        participant="sink",
        key="0-0-a",
        rows=7,
        fingerprint="",
        opened_at_ms=0,
        timeout_ms=None,
        detail={"bytes": 5, "tail": 9},
    )
    assert files_of(work, "data/") == [DataFile("data/0-0-a.parquet", 5, 7, 0, 9)]


def test_groups_tell_all_values_apart_and_nothing_else():
    floats = pa.array([0.0, -0.0, math.nan, None, float("nan"), 0.0])
    batch = pa.RecordBatch.from_arrays([pa.array(range(6))], ["at"])
    assert [part["at"].to_pylist() for _, part in grouped(batch, [floats])] == [
        [0, 5],
        [1],
        [2, 4],
        [3],
    ]
    assert [first for first, _ in grouped(batch, [floats, pa.nulls(6)])] == [0, 1, 2, 3]


def test_the_class_of_a_spec_is_made_once_and_not_for_each_partition():
    """pydantic takes 3 ms to make one: a third of what a task with 32 partitions cost."""
    first, second = (of_any_year(PartitionSpec(spec_id=number)) for number in range(2))
    assert type(first) is type(second)
    assert (first.spec_id, second.spec_id) == (0, 1)


def test_many_columns_of_many_values_do_not_overflow():
    count = 5_000
    batch = pa.RecordBatch.from_arrays([pa.array(range(count))], ["at"])
    keys = [pa.array([n * 7 % count for n in range(count)]) for _ in range(7)]
    assert sum(1 for _ in grouped(batch, keys)) == count


def test_rows_of_more_partitions_than_16_bits_count_stay_apart():
    keys = [pa.array([*range(300), more]) for more in (218, 136)]  # 218 * 300 + 136 is 2**16
    batch = pa.RecordBatch.from_arrays([pa.array(range(301))], ["at"])
    assert sorted(len(part) for _, part in grouped(batch, keys)) == [1] * 301


def test_columns_that_were_made_anew_are_not_taken_for_those_of_another_file():
    """Arrow calls schemas equal that differ in ids alone."""
    of = [
        pa.schema([pa.field("n", pa.int64(), metadata={b"PARQUET:field_id": each})])
        for each in (b"1", b"2", b"1")
    ]
    assert [_in_iceberg(each).find_field("n").field_id for each in of] == [1, 2, 1]
