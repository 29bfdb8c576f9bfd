"""Rows replace those of their key exactly once, whoever dies, commits or cleans up in between."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType, StructField, StructType

from airflow_eos.core.checkpoint import Decision
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.errors import ConfigurationError, DeliveryError, StoreError
from airflow_eos.kinds.delta import merge
from airflow_eos.kinds.delta import participant as of_delta
from airflow_eos.kinds.delta.sink import DeltaSink
from airflow_eos.kinds.lake.upsert import LakeUpsert
from tests.integration.lake.kinds import KINDS, Delta
from tests.integration.lake.stage import Stage, stopped

COMMITTED, ABORTED = Outcome.COMMITTED, Outcome.ABORTED
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
ROWS = pa.schema([*SCHEMA, ("gone", pa.bool_())])
UPSERT = LakeUpsert(key=["id"], deleted="gone")


class Upserting(Delta):
    def __init__(self, upsert: LakeUpsert = UPSERT, application: str = "etl") -> None:
        self.upsert = upsert
        self.application = application

    def sink(self, folder: Path) -> DeltaSink:
        sink = super().sink(folder)
        return replace(sink, upsert=self.upsert, application_id=self.application)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(Upserting(), tmp_path).made(SCHEMA)


def prepared(
    stage: Stage, *rows: tuple[Any, ...], task: int = 0, schema: pa.Schema = ROWS
) -> PreparedWork:
    writer = stage.sink.opened(task, 0)
    named = [dict(zip(schema.names, row, strict=False)) for row in rows]
    writer.write(pa.RecordBatch.from_pylist(named, schema=schema))
    work: PreparedWork | None = writer.prepare("0" * 32)
    assert work is not None
    return work


def decided(stage: Stage, *rows: tuple[Any, ...], batch: int, attempt: int = 1) -> Decision:
    return stage.decide(prepared(stage, *rows), batch=batch, attempt=attempt)


def settled(stage: Stage, decision: Decision) -> Outcome:
    (outcome,) = set(stage.participant().commit(decision.works).values())
    return outcome


def delivered(stage: Stage, *rows: tuple[Any, ...], batch: int) -> None:
    assert settled(stage, decided(stage, *rows, batch=batch)) is COMMITTED


def found(stage: Stage) -> dict[int, str]:
    rows = DeltaTable(stage.table).to_pyarrow_table()
    ids = rows["id"].to_pylist()
    assert len(set(ids)) == len(ids), "a row for each key"
    assert sorted(ids) == sorted(stage.kind.by_hand(stage.table)["id"].to_pylist())
    return dict(zip(ids, rows["v"].to_pylist(), strict=True))


def waiting(stage: Stage) -> list[Path]:
    return list((stage.table / "_eos").rglob("*.parquet"))


def test_a_row_replaces_that_of_its_key_and_deletes_take_it_away(stage: Stage):
    delivered(stage, (1, "a"), (2, "b"), (3, "c"), batch=0)
    delivered(stage, (2, "B"), (3, None, True), (4, "d"), (9, None, True), batch=1)
    assert found(stage) == {1: "a", 2: "B", 4: "d"}
    assert waiting(stage) == []
    assert stage.noted() == set()


def test_within_a_batch_the_last_row_of_a_key_stays(stage: Stage):
    first = prepared(stage, (1, "first"), (1, "later"), (2, "x", True), (2, "back"), task=2)
    second = prepared(stage, (1, "of a higher task"), (3, "y"), (3, None, True), task=10)
    stage.decide(second, first)
    assert set(stage.participant().commit([first, second]).values()) == {COMMITTED}
    assert found(stage) == {1: "of a higher task", 2: "back"}


def test_nothing_is_seen_before_the_decision_and_what_is_aborted_leaves_nothing(stage: Stage):
    delivered(stage, (1, "a"), batch=0)
    work = prepared(stage, (1, "b"))
    assert len(waiting(stage)) == 1
    assert found(stage) == {1: "a"}
    assert stage.participant().abort([work.identity]) == {work.identity: True}
    assert waiting(stage) == []
    stage.decide(work, batch=1)
    assert stage.participant().commit([work]) == {work.identity: ABORTED}
    assert found(stage) == {1: "a"}


def test_a_commit_again_changes_nothing_twice(stage: Stage):
    first = decided(stage, (1, "a"), batch=0)
    assert settled(stage, first) is COMMITTED
    delivered(stage, (1, "b"), (2, "c"), batch=1)
    version = DeltaTable(stage.table).version()
    assert settled(stage, first) is Outcome.UNKNOWN, "a later batch stands"
    assert DeltaTable(stage.table).version() == version
    assert found(stage) == {1: "b", 2: "c"}


def test_waiting_rows_that_are_gone_are_a_replay_and_no_silence(stage: Stage):
    delivered(stage, (1, "a"), batch=0)
    lost = decided(stage, (1, "b"), batch=1)
    waiting(stage)[0].unlink()
    assert settled(stage, lost) is ABORTED
    again = decided(stage, (1, "b"), batch=1, attempt=2)
    assert settled(stage, again) is COMMITTED
    assert found(stage) == {1: "b"}


def test_vacuum_takes_no_waiting_row_and_no_row_is_lost(stage: Stage):
    delivered(stage, (1, "a"), batch=0)
    work = decided(stage, (1, "b"), batch=1)
    DeltaTable(stage.table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert settled(stage, work) is COMMITTED
    assert found(stage) == {1: "b"}


def appended(table: Path, number: int) -> None:
    write_deltalake(table, pa.table({"id": [number], "v": ["theirs"]}, SCHEMA), mode="append")


@pytest.mark.parametrize(
    "between",
    [
        lambda table: appended(table, 7),
        lambda table: appended(table, 2),
        lambda table: DeltaTable(table).optimize.compact(),
        lambda table: DeltaTable(table).delete("id = 1"),
    ],
    ids=["an append", "an append of the same key", "a compaction", "a delete"],
)  # fmt: skip
def test_what_another_engine_commits_in_between_is_seen(stage: Stage, monkeypatch, between):
    """On the version that was read the commit would bring rows back, or leave a key twice."""
    for batch in range(3):
        delivered(stage, (1 + batch, "a"), batch=batch)
    work = decided(stage, (2, "b"), (4, "d"), batch=3)
    once = [lambda: between(stage.table)]
    written: list[int] = []
    rewrite = merge.rewritten

    def rewritten(*given: Any) -> Any:
        result = rewrite(*given)
        written.append(len(list(stage.table.glob("*.parquet"))))
        if once:
            once.pop()()
        return result

    monkeypatch.setattr(of_delta, "rewritten", rewritten)
    assert settled(stage, work) is COMMITTED
    assert len(written) == 2
    left = found(stage)
    assert (left.pop(1, None) is None) == ("delete" in str(between.__code__.co_names))
    assert left == {2: "b", 3: "a", 4: "d"} | ({7: "theirs"} if 7 in left else {})


def test_a_table_that_is_partitioned_anew_during_a_commit_gets_files_of_its_new_partitions(
    stage: Stage, monkeypatch
):
    """What was written for the old ones has no column of theirs, and would be named by others."""
    schema = pa.schema([*SCHEMA, ("p", pa.string())])
    empty = schema.empty_table()

    def partitioned(by: str) -> None:
        new: Any = {"mode": "overwrite", "schema_mode": "overwrite", "partition_by": [by]}
        write_deltalake(stage.table, empty, **new)

    partitioned("p")
    rows = pa.schema([*schema, ("gone", pa.bool_())])
    work = stage.decide(prepared(stage, (1, "value", "part"), schema=rows))
    rewrite, seen = merge.rewritten, []

    def rewritten(*given: Any) -> Any:
        seen.append(rewrite(*given))
        if len(seen) == 1:
            partitioned("v")
        return seen[-1]

    monkeypatch.setattr(of_delta, "rewritten", rewritten)
    assert settled(stage, work) is COMMITTED
    assert len(seen) == 2
    left = DeltaTable(stage.table).to_pyarrow_table().to_pylist()
    assert left == [{"id": 1, "v": "value", "p": "part"}]


def test_a_lost_race_writes_nothing_again(stage: Stage, monkeypatch):
    delivered(stage, (1, "a"), (2, "b"), batch=0)
    work = decided(stage, (1, "c"), batch=1)
    rewrite, seen = merge.rewritten, []

    def rewritten(*given: Any) -> Any:
        result = rewrite(*given)
        seen.append(result)
        if len(seen) < 3:
            appended(stage.table, 100 + len(seen))
        return result

    monkeypatch.setattr(of_delta, "rewritten", rewritten)
    assert settled(stage, work) is COMMITTED
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2], "the same files, of which none was written again"
    assert found(stage) == {1: "c", 2: "b", 101: "theirs", 102: "theirs"}


def test_what_a_cleaner_took_between_two_tries_is_written_again(stage: Stage, monkeypatch):
    delivered(stage, (1, "a"), (2, "b"), batch=0)
    work = decided(stage, (1, "c"), batch=1)
    rewrite, seen = merge.rewritten, []

    def rewritten(*given: Any) -> Any:
        result = rewrite(*given)
        seen.append(result)
        if len(seen) == 1:
            appended(stage.table, 7)
            table = DeltaTable(stage.table)
            table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        return result

    monkeypatch.setattr(of_delta, "rewritten", rewritten)
    assert settled(stage, work) is COMMITTED
    assert found(stage) == {1: "c", 2: "b", 7: "theirs"}


def test_two_processes_at_once_commit_a_decision_once(stage: Stage, monkeypatch):
    delivered(stage, (1, "a"), batch=0)
    work = decided(stage, (1, "b"), (2, "c"), batch=1)
    rewrite, other = merge.rewritten, [stage.participant()]

    def rewritten(*given: Any) -> Any:
        result = rewrite(*given)
        if other:
            assert set(other.pop().commit(work.works).values()) == {COMMITTED}
        return result

    monkeypatch.setattr(of_delta, "rewritten", rewritten)
    assert settled(stage, work) is COMMITTED
    assert DeltaTable(stage.table).version() == 2
    assert found(stage) == {1: "b", 2: "c"}


def test_two_streams_that_insert_one_key_leave_one_row(stage: Stage, monkeypatch):
    """delta-rs' own check of conflicts takes such a commit for a blind append."""
    other = _Second(stage)
    ours = decided(stage, (1, "ours"), batch=0)
    theirs = decided(other, (1, "theirs"), batch=0)
    rewrite, once = merge.rewritten, [True]

    def rewritten(*given: Any) -> Any:
        result = rewrite(*given)
        if once:
            once.pop()
            assert settled(other, theirs) is COMMITTED
        return result

    monkeypatch.setattr(of_delta, "rewritten", rewritten)
    assert settled(stage, ours) is COMMITTED
    assert found(stage) == {1: "ours"}, "the later commit stays"


class _Second(Stage):
    """Another pipeline into the table of ``stage``."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(Upserting(application="second"), stage.folder / "second")
        self._at = stage.table
        self.claimed()

    @property
    def table(self) -> Path:
        return self._at


@pytest.fixture
def one_key(tmp_path: Path) -> Stage:
    """A table in which each batch replaces the one row."""
    return Stage(KINDS["delta-upsert"], tmp_path).made()


def replacing(stage: Stage, value: int, *, batch: int) -> Decision:
    writer = stage.sink.opened(0, 0)
    writer.write(pa.RecordBatch.from_pydict({"key": ["k"], "value": [value]}))
    return stage.decide(writer.prepare("0" * 32), batch=batch)


@pytest.mark.parametrize("place", ["looked", "rewritten", "settled-some"])
def test_who_is_killed_within_a_commit_leaves_each_key_once(one_key: Stage, place: str):
    for batch in range(2):
        assert settled(one_key, replacing(one_key, batch, batch=batch)) is COMMITTED
    work = replacing(one_key, 7, batch=2)
    one_key.killed("commit", f"{place}=kill", batch=2)
    assert one_key.values() == ({7: 1} if place == "settled-some" else {1: 1})
    assert settled(one_key, work) is COMMITTED
    assert one_key.values() == {7: 1}
    assert waiting(one_key) == []
    assert one_key.noted() == set()


def test_a_driver_that_slept_over_two_batches_changes_nothing_when_it_wakes(one_key: Stage):
    assert settled(one_key, replacing(one_key, 0, batch=0)) is COMMITTED
    work = replacing(one_key, 1, batch=1)
    child = one_key.start("commit", failpoints="rewritten=stop", batch=1)
    stopped(child)
    assert settled(one_key, work) is COMMITTED
    assert settled(one_key, replacing(one_key, 2, batch=2)) is COMMITTED
    version = DeltaTable(one_key.table).version()
    child.send_signal(signal.SIGCONT)
    told, error = child.communicate(timeout=300)
    assert told.split() == ["unknown"], error
    assert DeltaTable(one_key.table).version() == version
    assert one_key.values() == {2: 1}


def test_rows_move_between_partitions_and_only_files_with_a_key_are_written(tmp_path: Path):
    schema = pa.schema([("id", pa.int64()), ("day", pa.string()), ("v", pa.string())])
    stage = Stage(Upserting(LakeUpsert(["id"])), tmp_path)
    DeltaTable.create(str(stage.table), schema=schema, partition_by=["day"])
    stage.claimed()

    def put(batch: int, *rows: tuple[Any, ...]) -> None:
        work = prepared(stage, *rows, schema=schema)
        stage.decide(work, batch=batch)
        assert stage.participant().commit([work]) == {work.identity: COMMITTED}

    put(0, (1, "a/é", "x"), (2, "a/é", "x"), (3, None, "x"), (100, "c", "x"))
    before = set(DeltaTable(stage.table).file_uris())
    put(1, (1, "b", "y"), (3, "b", "y"))
    left = before & set(DeltaTable(stage.table).file_uris())
    assert [Path(each).parent.name for each in left] == ["day=c"]
    rows = DeltaTable(stage.table).to_pyarrow_table().sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (1, "b", "y"), (2, "a/é", "x"), (3, "b", "y"), (100, "c", "x"),
    ]  # fmt: skip


def test_a_key_of_several_columns_and_of_a_partition(tmp_path: Path):
    schema = pa.schema([("shop", pa.string()), ("id", pa.int32()), ("v", pa.string())])
    stage = Stage(Upserting(LakeUpsert(["shop", "id"])), tmp_path)
    DeltaTable.create(str(stage.table), schema=schema, partition_by=["shop"])
    stage.claimed()
    for batch, rows in enumerate(
        [[("a", 1, "x"), ("b", 1, "x"), ("b", 2, "x")], [("b", 1, "y"), ("c", 1, "y")]]
    ):
        work = prepared(stage, *rows, schema=schema)
        stage.decide(work, batch=batch)
        stage.participant().commit([work])
    rows = DeltaTable(stage.table).to_pyarrow_table().to_pylist()
    assert sorted((row["shop"], row["id"], row["v"]) for row in rows) == [
        ("a", 1, "x"), ("b", 1, "y"), ("b", 2, "x"), ("c", 1, "y"),
    ]  # fmt: skip


def test_a_row_without_a_key_is_refused_by_its_task(stage: Stage):
    with pytest.raises(DeliveryError, match="A row has no id"):
        prepared(stage, (1, "a"), (None, "b"))


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
    stage = Stage(Upserting(), tmp_path)
    DeltaTable.create(str(stage.table), schema=SCHEMA, configuration={property_: "true"})
    with pytest.raises(ConfigurationError, match=why):
        stage.sink.columns(spark_schema(id=LongType(), v=StringType(), gone=BooleanType()))


def spark_schema(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"v": StringType(), "gone": BooleanType()}, "no column id"),
        ({"id": DoubleType(), "v": StringType(), "gone": BooleanType()}, "floating point"),
        ({"id": LongType(), "gone": StringType()}, "expected boolean"),
        ({"id": LongType(), "w": StringType(), "gone": BooleanType()}, "no column w"),
    ],
)
def test_rows_that_cannot_replace_others_are_refused_before_the_first(stage: Stage, columns, why):
    with pytest.raises(ConfigurationError, match=why):
        stage.sink.columns(spark_schema(**columns))
    assert stage.sink.columns(spark_schema(id=LongType(), v=StringType(), gone=BooleanType()))


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


def test_a_file_that_goes_while_it_is_read_is_looked_for_again_and_then_named(
    stage: Stage, monkeypatch
):
    delivered(stage, (1, "a"), batch=0)
    work = decided(stage, (1, "b"), batch=1)
    (file,) = stage.table.glob("*.parquet")
    file.unlink()
    monkeypatch.setattr("airflow_eos.kinds.lake.participant._PAUSES_S", (0.0, 0.0))
    with pytest.raises(StoreError, match=r"in 2 tries: a file that was to be read is gone"):
        settled(stage, work)
    assert waiting(stage), "what was promised stays"


def test_files_of_spark_are_written_anew_with_their_instants(tmp_path: Path):
    """It may keep instants in 96 bits, and columns in another order, or not at all."""
    at = pa.timestamp("us", "UTC")
    schema = pa.schema([("id", pa.int64()), ("at", at), ("late", pa.string())])
    stage = Stage(Upserting(LakeUpsert(["id"])), tmp_path)
    DeltaTable.create(str(stage.table), schema=schema)
    stage.claimed()
    far = -62_135_596_800_000_000  # the year 1, which 96 bits in nanoseconds do not hold
    theirs = pa.table({"at": pa.array([far, 5], at), "id": pa.array([1, 2])})
    pq.write_table(theirs, stage.table / "theirs.parquet", use_deprecated_int96_timestamps=True)
    size = (stage.table / "theirs.parquet").stat().st_size
    add = {"path": "theirs.parquet", "partitionValues": {}, "size": size, "modificationTime": 0}
    log = stage.table / "_delta_log" / f"{1:020d}.json"
    log.write_text(json.dumps({"add": add | {"dataChange": True}}))
    work = prepared(stage, (2, 7, "z"), schema=schema)
    stage.decide(work)
    assert stage.participant().commit([work]) == {work.identity: COMMITTED}
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
    stage = Stage(Upserting(LakeUpsert(["name", "second"] if cut else ["name"])), tmp_path)
    DeltaTable.create(str(stage.table), schema=schema, partition_by=cut)
    stage.claimed()
    for batch in range(len(values) + 1):
        chosen = values if not batch else values[batch - 1 : batch]
        work = prepared(stage, *[(each, 1, f"b{batch}") for each in chosen], schema=schema)
        stage.decide(work, batch=batch)
        assert stage.participant().commit([work]) == {work.identity: COMMITTED}
        asked = QueryBuilder().register("t", DeltaTable(stage.table)).execute("SELECT v FROM t")
        left = sorted(pa.table(asked)["v"].to_pylist())
        assert left == ["b0"] * (len(values) - batch) + [f"b{n + 1}" for n in range(batch)]


def test_an_empty_key_of_a_partition_is_refused_by_its_task(tmp_path: Path):
    """Delta keeps it as null: the next batch would not find it, and leave it there twice."""
    schema = pa.schema([("shop", pa.string()), ("v", pa.string())])
    stage = Stage(Upserting(LakeUpsert(["shop"])), tmp_path)
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
    stage = Stage(Upserting(LakeUpsert(["id"])), tmp_path).made(schema)
    old = [{"id": 1, "who": {"a": 1}}, {"id": 2, "who": {"a": 2}}]
    work = prepared(stage, *[tuple(each.values()) for each in old], schema=schema)
    stage.decide(work)
    stage.participant().commit([work])
    wider = pa.schema(
        [("id", pa.int64()), ("who", pa.struct([("a", pa.int64()), ("b", pa.string())]))]
    )
    more = pa.Table.from_pylist([{"id": 3, "who": {"a": 3, "b": "x"}}], wider)
    write_deltalake(stage.table, more, mode="append", schema_mode="merge")
    work = prepared(stage, (1, {"a": 9, "b": "y"}), schema=wider)
    stage.decide(work, batch=1)
    assert stage.participant().commit([work]) == {work.identity: COMMITTED}
    rows = DeltaTable(stage.table).to_pyarrow_table().sort_by("id").to_pylist()
    assert [row["who"] for row in rows] == [
        {"a": 9, "b": "y"}, {"a": 2, "b": None}, {"a": 3, "b": "x"},
    ]  # fmt: skip
