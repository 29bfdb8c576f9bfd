"""A table whose partitions, order, snapshots or branch change between any two steps of ours."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, StructType

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.kinds.iceberg.participant import IcebergSnapshot
from airflow_eos.kinds.lake.participant import files_of
from tests.integration.lake.kinds import KINDS
from tests.integration.lake.stage import Stage, batch
from tests.integration.lake.test_iceberg_partitions import delivered, files, loaded, parted

KIND: Any = KINDS["iceberg-parted"]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(KIND, tmp_path).made()


def by_key(table: Table) -> None:
    with table.update_spec() as spec:
        spec.remove_field("value_bucket_4").remove_field("key_trunc_1").add_identity("key")


def by_nothing(table: Table) -> None:
    with table.update_spec() as spec:
        spec.remove_field("value_bucket_4").remove_field("key_trunc_1")


def finer(table: Table) -> None:
    with table.update_spec() as spec:
        spec.add_field("value", TruncateTransform(2))


def append(table: Table) -> None:
    table.append(pa.table({"key": ["k9"], "value": [9]}))


def compact(table: Table) -> None:
    """As an engine does that knows nothing of us: all rows in new files."""
    table.overwrite(table.scan().to_arrow())


def delete(table: Table) -> None:
    table.delete("value = 9")


CHANGES: dict[str, tuple[Callable[[Table], None], ...]] = {
    "another spec": (by_key,),
    "no partitions": (by_nothing,),
    "one field more": (finer,),
    "rows of others, and another spec": (append, by_key, append),
    "a compaction": (append, compact, delete),
}


def change(stage: Stage, *changes: Callable[[Table], None]) -> None:
    for each in changes:
        each(loaded(stage))


def require_found(stage: Stage, *values: int) -> None:
    """Each row is there once, under what the spec of its file says, and found by a filter."""
    table = loaded(stage)
    nines = sum(value == 9 for value in table.scan().to_arrow()["value"].to_pylist())
    assert stage.values() == {**dict.fromkeys(values, 1), **({9: nines} if nines else {})}
    for file, _rows in files_with_rows(table):
        spec, schema = table.specs()[file.spec_id], table.schema()
        held = pq.read_table(file.file_path.removeprefix("file://"), partitioning=None).to_pylist()
        for at, field in enumerate(spec.fields):
            source = schema.find_field(field.source_id)
            made = field.transform.transform(source.field_type)
            assert {made(row[source.name]) for row in held} == {file.partition[at]}
    for value in values:
        assert table.scan(row_filter=f"value = {value}").to_arrow().num_rows == 1
        assert table.scan(row_filter=f"key = 'k{value}'").to_arrow().num_rows == 1


def files_with_rows(table: Table) -> list[Any]:
    return [(task.file, task.file.record_count) for task in table.scan().plan_files()]


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("when", ["before the task", "before the decision", "after it", "after"])
def test_rows_are_found_under_the_spec_that_they_were_written_by(stage: Stage, when, changes):
    """A query keeps the spec of its start; the table may have had three others since."""
    sink, participant = stage.sink, stage.participant()
    if when == "before the task":
        change(stage, *changes)
    writer = sink.opened(0, 0)
    writer.write(batch(1, 2, 3))
    work = writer.prepare("0" * 32)
    if when == "before the decision":
        change(stage, *changes)
    participant.require_decidable([work])
    stage.decide(work)
    if when == "after it":
        change(stage, *changes)
    assert participant.commit([work]) == {work.identity: Outcome.COMMITTED}
    if when == "after":
        change(stage, *changes)
    require_found(stage, 1, 2, 3)
    spec = loaded(stage).spec().spec_id
    later = stage.prepare(4, 5)
    stage.decide(later, batch=1)
    participant.commit([later])
    require_found(stage, 1, 2, 3, 4, 5)
    assert later.detail["table"]["spec"] == spec == loaded(stage).spec().spec_id


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_change_between_the_look_and_the_commit_makes_no_row_twice(
    stage: Stage, changes, monkeypatch: pytest.MonkeyPatch
):
    work = stage.promised(1, 2, 3)
    really, met = IcebergSnapshot.append, list[int]()

    def changed_first(view: IcebergSnapshot, *given: Any) -> None:
        if not met:
            met.append(1)
            change(stage, *changes)
        really(view, *given)

    monkeypatch.setattr(IcebergSnapshot, "append", changed_first)
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert met
    require_found(stage, 1, 2, 3)


def test_one_decision_of_two_specs_is_one_commit(stage: Stage):
    """Of a task that began before, on an executor that was slow, and of one that began after."""
    before = stage.prepare(1, 2)
    change(stage, by_key)
    after = stage.prepare(3, 4, task=1)
    stage.decide(before, after)
    lately = loaded(stage).metadata.last_updated_ms
    assert set(stage.participant().commit([before, after]).values()) == {Outcome.COMMITTED}
    require_found(stage, 1, 2, 3, 4)
    assert loaded(stage).metadata.metadata_log[-1].timestamp_ms == lately


def test_a_spec_that_the_table_has_forgotten_loses_the_batch_which_is_written_again(stage: Stage):
    """As after remove_unused_specs: nobody can say any more which partition its files are of."""
    work = stage.promised(1, 2)
    forget_all_specs(stage)
    participant = stage.participant()
    assert participant.commit([work]) == {work.identity: Outcome.ABORTED}
    assert stage.data_files() == set()
    again = stage.prepare(1, 2)
    participant.require_decidable([again])
    stage.decide(again, attempt=2)
    assert participant.commit([again]) == {again.identity: Outcome.COMMITTED}
    require_found(stage, 1, 2)


def forget_all_specs(stage: Stage) -> None:
    """The library has no call for it, other engines do: they keep the spec that is newest."""
    import json

    change(stage, by_nothing)
    at = Path(loaded(stage).metadata_location.removeprefix("file://"))
    told = json.loads(at.read_text())
    newest = told["default-spec-id"]
    told["partition-specs"] = [s for s in told["partition-specs"] if s["spec-id"] == newest]
    at.write_text(json.dumps(told))
    assert [each.spec_id for each in loaded(stage).specs().values()] == [newest]


def test_a_column_of_a_former_spec_that_was_dropped_loses_the_batch(stage: Stage):
    work = stage.promised(1)
    change(stage, by_nothing)
    with loaded(stage).update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("key")
    assert stage.participant().commit([work]) == {work.identity: Outcome.ABORTED}
    assert loaded(stage).scan().to_arrow().num_rows == 0


def test_a_widened_column_is_partitioned_as_before(tmp_path: Path):
    from pyiceberg.types import IntegerType

    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "v", IntegerType()))
    stage = parted(Stage(KINDS["iceberg"], tmp_path), ("v", "identity"), schema=schema).claimed()
    rows = pa.RecordBatch.from_pydict(
        {"n": [1, 2], "v": [3, -4]}, schema=pa.schema([("n", pa.int64()), ("v", pa.int32())])
    )
    writer = stage.sink.opened(0, 0)
    writer.write(rows)
    work = writer.prepare("0" * 32)
    stage.decide(work)
    with loaded(stage).update_schema() as change_of:
        change_of.update_column("v", LongType())
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    found = {tuple(numbers): file.partition[0] for file, numbers in files(loaded(stage))}
    assert found == {(1,): 3, (2,): -4}
    assert loaded(stage).scan(row_filter="v = -4").to_arrow()["n"].to_pylist() == [2]


def test_a_v1_table_with_a_field_that_was_removed(tmp_path: Path):
    """Its spec has a void field for it, whose column may be gone."""
    schema = Schema(
        NestedField(1, "n", LongType()),
        NestedField(2, "a", StringType()),
        NestedField(3, "b", StringType()),
    )
    stage = Stage(KINDS["iceberg"], tmp_path)
    parted(
        stage,
        ("a", "identity"),
        ("b", "identity"),
        schema=schema,
        properties={"format-version": "1"},
    )
    with loaded(stage).update_spec() as spec:
        spec.remove_field("a_p0")
    stage.claimed()
    assert str(loaded(stage).spec().fields[0].transform) == "void"
    rows = pa.RecordBatch.from_pylist([{"n": 1, "a": "x", "b": "y"}, {"n": 2, "a": "z", "b": "y"}])
    delivered(stage, rows)
    ((file, numbers),) = files(loaded(stage))
    assert (list(file.partition), numbers) == ([None, "y"], [1, 2])
    assert stage.sink.cut.columns == ["b"]


def test_a_field_within_a_struct_cuts_rows(tmp_path: Path):
    who = StructType(NestedField(3, "name", StringType()), NestedField(4, "age", LongType()))
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "who", who))
    stage = parted(
        Stage(KINDS["iceberg"], tmp_path), ("who.name", "truncate[1]"), schema=schema
    ).claimed()
    given = [
        {"n": 1, "who": {"name": "ann", "age": 4}},
        {"n": 2, "who": None},
        {"n": 3, "who": {"name": None, "age": 1}},
        {"n": 4, "who": {"name": "abe", "age": 4}},
    ]
    delivered(stage, pa.RecordBatch.from_pylist(given))
    found = {tuple(numbers): file.partition[0] for file, numbers in files(loaded(stage))}
    assert found == {(1, 4): "a", (2, 3): None}
    assert stage.sink.cut.columns == ["who.name"]


ORDER_VALUES = [3.0, None, float("nan"), -0.0, 0.0, float("-inf"), None, 1.5, float("inf")]


@pytest.mark.parametrize("way", SortDirection)
@pytest.mark.parametrize("nulls", NullOrder)
def test_rows_of_a_file_are_in_the_order_of_the_table(tmp_path: Path, way, nulls):
    schema = Schema(
        NestedField(1, "n", LongType()),
        NestedField(2, "s", StringType()),
        NestedField(3, "v", DoubleType()),
    )
    stage = parted(Stage(KINDS["iceberg"], tmp_path), ("s", "identity"), schema=schema)
    with loaded(stage).update_sort_order() as order:
        step = order.asc if way == SortDirection.ASC else order.desc
        step("v", IdentityTransform(), nulls)
        order.asc("n", BucketTransform(4), NullOrder.NULLS_LAST)
    stage.claimed()
    rows = [{"n": n, "s": "ab"[n % 2], "v": v} for n, v in enumerate(ORDER_VALUES * 2)]
    delivered(stage, pa.RecordBatch.from_pylist(rows[:9]), pa.RecordBatch.from_pylist(rows[9:]))
    rank = ["-inf", "-0.0", "0.0", "1.5", "3.0", "inf", "nan"]
    if way == SortDirection.DESC:
        rank.reverse()
    rank = ["None", *rank] if nulls == NullOrder.NULLS_FIRST else [*rank, "None"]
    bucket = BucketTransform(4).transform(LongType())
    table = loaded(stage)
    for task in table.scan().plan_files():
        held = pq.read_table(task.file.file_path.removeprefix("file://"), partitioning=None)
        got = [(rank.index(str(row["v"])), bucket(row["n"])) for row in held.to_pylist()]
        assert got == sorted(got)
        assert task.file.sort_order_id == table.sort_order().order_id


def test_a_table_without_an_order_says_so_in_its_files(stage: Stage):
    stage.delivered(1)
    ((file, _),) = files_with_rows(loaded(stage))
    assert file.sort_order_id is None


def test_the_second_commit_after_snapshots_expired_adds_nothing(stage: Stage):
    work = stage.delivered(1, 2)
    change(stage, append, compact)
    table = loaded(stage)
    keep = table.metadata.current_snapshot_id
    old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != keep]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    for path in {file.path for file in files_of(work, "data/")}:
        (stage.table / path).unlink()
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert stage.values() == {1: 1, 2: 1, 9: 1}


def test_files_at_once_are_under_their_partitions(stage: Stage):
    writer = stage.sink.opened(0, 0, transactional=False)
    writer.write(batch(1, 2, 3))
    assert writer.prepare("0" * 32) is None
    require_found(stage, 1, 2, 3)


def test_what_was_promised_by_a_former_release_is_committed_to_a_table_that_has_partitions_since(
    tmp_path: Path,
):
    """Its detail has no files; they are without partitions, as all were."""
    import msgspec

    stage = Stage(KINDS["iceberg"], tmp_path).made()
    work = stage.prepare(1)
    (file,) = files_of(work, "data/")
    told = msgspec.structs.replace(work, detail={"bytes": file.size, "tail": file.tail})
    stage.decide(told)
    with loaded(stage).update_spec() as spec:
        spec.add_identity("key")
    assert stage.participant().commit([told]) == {told.identity: Outcome.COMMITTED}
    ((entry, _),) = files_with_rows(loaded(stage))
    assert loaded(stage).specs()[entry.spec_id] == UNPARTITIONED_PARTITION_SPEC
    assert stage.values() == {1: 1}


def test_a_recovery_elsewhere_commits_by_the_decision_alone(stage: Stage):
    from airflow_eos.kinds.iceberg.participant import connect

    work = stage.prepare(1, 2, 3)
    assert len(work.detail["files"]) > 1
    stage.decide(work)
    (member,) = stage.participant().members
    with closing(connect(member, KIND.properties(stage.table), store=stage.store)) as elsewhere:
        assert elsewhere.commit([work]) == {work.identity: Outcome.COMMITTED}
    require_found(stage, 1, 2, 3)


def test_bounds_prune_as_those_of_the_librarys_own_writer(stage: Stage):
    """Values, nulls and cut texts of each column, beside pyiceberg's own append of these rows."""
    rows = pa.table({"key": ["k" * 40, None], "value": pa.array([1, 1])})
    work = delivered(stage, rows.to_batches()[0])
    loaded(stage).append(rows)
    told: dict[bool, list[Any]] = {True: [], False: []}
    for file, count in files_with_rows(loaded(stage)):
        nulls, lower, upper = file.null_value_counts, file.lower_bounds, file.upper_bounds
        entry = (repr(file.partition), count, file.value_counts, nulls, lower, upper)
        told[work.key in file.file_path].append(entry)
    assert len(told[True]) == 2
    assert sorted(told[True], key=repr) == sorted(told[False], key=repr)
