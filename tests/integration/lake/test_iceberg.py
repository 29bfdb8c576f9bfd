"""What is Iceberg's own: its retries, its maintenance, its catalog."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql.types import ArrayType, StructType, TimestampType

from airflow_eos.core.checkpoint import PipelineIdentity, claim
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.kinds.iceberg import participant as iceberg
from airflow_eos.kinds.iceberg.participant import connect, misfit
from airflow_eos.kinds.iceberg.sink import IcebergSink
from airflow_eos.kinds.lake.participant import LostRaceError
from tests.integration.lake.kinds import ICEBERG
from tests.integration.lake.stage import SCHEMA, Stage, batch

KIND = ICEBERG


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(KIND, tmp_path).made()


def test_the_librarys_own_retries_are_off(stage: Stage):
    """With them, two commits from one snapshot both added the same file."""
    stage.decide(stage.prepare(1))
    participant = stage.participant()
    first, second = participant._table.look(), participant._table.look()
    first.append([], "etl/p/1", 1)
    commits = KIND.commits(stage.table)
    with pytest.raises(LostRaceError, match="CommitFailedException"):
        second.append([], "etl/p/1", 1)
    assert KIND.commits(stage.table) == commits
    with closing(KIND.catalog(stage.table)) as catalog:
        assert "commit.retry.num-retries" not in catalog.load_table("db.rows").properties


def expire_the_first_snapshot(stage: Stage) -> None:
    writer = stage.sink.opened(9, 0, transactional=False)
    writer.write(batch(9))
    writer.prepare("0" * 32)
    with closing(KIND.catalog(stage.table)) as catalog:
        table = catalog.load_table("db.rows")
        oldest = table.snapshots()[0].snapshot_id
        table.maintenance.expire_snapshots().by_id(oldest).commit()


def test_a_commit_that_was_done_and_is_told_as_refused_is_there_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """A proxy sent it twice, and the second answer says so: the library removed its manifests."""
    commit = SqlCatalog.commit_table
    told: list[Any] = []

    def twice(catalog: SqlCatalog, *change: Any) -> Any:
        answer = commit(catalog, *change)
        if told:
            return answer
        told.append(answer)
        return commit(catalog, *change)

    monkeypatch.setattr(SqlCatalog, "commit_table", twice)
    work = stage.promised(1)
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert len(told) == 1
    assert stage.values() == {1: 1}
    assert KIND.commits(stage.table) == 1


def test_the_witness_outlives_its_snapshot(stage: Stage):
    work = stage.delivered(1)
    expire_the_first_snapshot(stage)
    assert KIND.commits(stage.table) == 1
    assert stage.participant().outcome([work]) == {work.identity: Outcome.COMMITTED}
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert stage.values() == {1: 1, 9: 1}


def unset(stage: Stage) -> str:
    """Somebody tidies up the table's properties."""
    with closing(KIND.catalog(stage.table)) as catalog:
        table = catalog.load_table("db.rows")
        (slot,) = (key for key in table.properties if key.startswith("eos."))
        with table.transaction() as change:
            change.remove_properties(slot)
    return str(slot)


def test_a_property_that_was_unset_is_told_by_its_snapshot(stage: Stage):
    work = stage.delivered(1)
    unset(stage)
    assert stage.participant().outcome([work]) == {work.identity: Outcome.COMMITTED}
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert stage.values() == {1: 1}


def test_rows_that_the_table_has_are_not_added_again_where_no_witness_is_left(stage: Stage):
    work = stage.delivered(1)
    expire_the_first_snapshot(stage)
    slot = unset(stage)
    with pytest.raises(StoreError, match=rf"no property {slot} .* Set it to 1") as refused:
        stage.participant().commit([work])
    assert work.key in str(refused.value)
    assert stage.values() == {1: 1, 9: 1}
    with closing(KIND.catalog(stage.table)) as catalog:
        catalog.load_table("db.rows").transaction().set_properties({slot: "1"}).commit_transaction()
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert stage.values() == {1: 1, 9: 1}


def test_a_witness_that_was_changed_by_hand_concludes_nothing(stage: Stage):
    work = stage.delivered(1)
    with closing(KIND.catalog(stage.table)) as catalog:
        table = catalog.load_table("db.rows")
        (slot,) = (key for key in table.properties if key.startswith("eos."))
        with table.transaction() as change:
            change.set_properties({slot: "done"})
    with pytest.raises(StoreError, match="expected a number"):
        stage.participant().outcome([work])


def test_a_table_made_anew_is_another_one(stage: Stage):
    work = stage.promised(1)
    participant = stage.participant()
    with closing(KIND.catalog(stage.table)) as catalog:
        catalog.drop_table("db.rows")
        catalog.create_table("db.rows", schema=SCHEMA, location=f"file://{stage.table}")
    with pytest.raises(StoreError, match="is not the table of this pipeline"):
        participant.outcome([work])


def test_a_table_whose_partitions_the_library_does_not_know_is_refused(stage: Stage):
    with closing(KIND.catalog(stage.table)) as catalog:
        at = Path(catalog.load_table("db.rows").metadata_location.removeprefix("file://"))
    metadata = msgspec.json.decode(at.read_bytes())
    field = {"name": "zone", "transform": "zorder[3]", "source-id": 1, "field-id": 1000}
    metadata["partition-specs"] = [{"spec-id": 0, "fields": [field]}]
    at.write_bytes(msgspec.json.encode(metadata))
    with pytest.raises(ConfigurationError, match="which this pyiceberg does not know"):
        stage.participant()


def test_a_table_that_is_not_there_is_said_by_name(stage: Stage):
    sink = IcebergSink("db.none", KIND.properties(stage.table), application_id="etl")
    with pytest.raises(StoreError, match=r"no Iceberg table db\.none"):
        sink.bound(stage.store)


def test_recovery_is_given_the_catalog_and_nothing_of_it_is_told(stage: Stage):
    (member,) = stage.participant().members
    how = KIND.properties(stage.table)
    assert connect(member, how, store=stage.store).members == (member,)
    assert "sqlite" not in str(member)
    assert "sqlite" not in repr(stage.sink)
    with pytest.raises(ConfigurationError, match="give the checkpoint"):
        connect(member, how)
    with pytest.raises(ConfigurationError, match="give the catalog's properties"):
        connect(member, None, store=stage.store)
    with pytest.raises(ConfigurationError, match="has no table"):
        connect(Member("orders", "iceberg", {}), how, store=stage.store)


@pytest.mark.parametrize("type_", ["nonsense", "sql"])
def test_a_catalog_that_does_not_answer_is_said_without_its_password(stage: Stage, type_: str):
    (member,) = stage.participant().members
    how = {"type": type_, "uri": "postgresql://me:geheim@127.0.0.1:1/db"}
    with pytest.raises((ConfigurationError, StoreError), match="'default'") as refused:
        connect(member, how, store=stage.store)
    assert "geheim" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_columns_fit_by_name_and_type():
    required = pa.field("key", pa.large_string(), nullable=False)
    table = pa.schema([required, ("value", pa.int64())])
    assert misfit(pa.schema([pa.field("key", pa.string(), nullable=False)]), table) is None
    assert "required" in str(misfit(pa.schema([("key", pa.string())]), table))
    assert "required" in str(misfit(pa.schema([("value", pa.int64())]), table))
    assert "no column other" in str(misfit(pa.schema([("other", pa.int64())]), table))
    narrow = pa.schema([required, ("value", pa.int32())])
    assert misfit(narrow, table) == "column value is int32, and int64 in the table"


def test_a_table_that_the_library_cannot_write_is_refused_before_the_first_row(stage: Stage):
    """It can be read: only the commit of what was decided failed, for ever."""
    work = stage.promised(1)
    running = stage.participant()
    with closing(KIND.catalog(stage.table)) as catalog:
        at = Path(catalog.load_table("db.rows").metadata_location.removeprefix("file://"))
    metadata = msgspec.json.decode(at.read_bytes()) | {"format-version": 3, "next-row-id": 0}
    at.write_bytes(msgspec.json.encode(metadata))
    rows = StructType().add("key", "string").add("value", "long")
    asks = (stage.participant, lambda: running.commit([work]), lambda: stage.sink.columns(rows))
    for asked in asks:
        with pytest.raises(ConfigurationError, match="has format version 3"):
            asked()
    assert stage.file(work).exists(), "nothing of it is dropped"


def test_what_may_be_null_within_does_not_fit_what_is_required():
    """It was found out once the rows were decided: each start of the pipeline failed, for ever."""

    def table(*, nullable: bool) -> pa.Schema:
        inner = pa.struct([pa.field("b", pa.int64(), nullable=nullable)])
        return pa.schema([("a", pa.list_(pa.field("element", inner)))])

    strict, loose = table(nullable=False), table(nullable=True)
    assert "a may be null within" in str(misfit(loose, strict))
    assert misfit(strict, loose) is None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.timestamp("us", "UTC"), 253_402_318_799_000_000),  # a quarter to 5 of the year 10000
        (pa.timestamp("us"), -(10**17)),
        (pa.string(), "x" * 15 + "\ud7ff" + "z"),
    ],
    ids=["beyond 9999", "before 1", "the last character before the surrogates"],
)
def test_a_value_whose_bounds_the_library_cannot_tell_is_committed_all_the_same(
    tmp_path: Path, kind: pa.DataType, value: object
):
    """It was found out once the rows were decided: each start of the pipeline failed, for ever."""
    schema = pa.schema([("at", kind), ("n", pa.int64())])
    stage = Stage(ICEBERG, tmp_path)
    ICEBERG.create(stage.table, schema)
    members = stage.participant().members
    claim(
        stage.store,
        PipelineIdentity(id="a", participants=members, created_at_ms=0, created_by="test"),
    )
    writer = stage.sink.opened(0, 0)
    held = pa.array([value], pa.int64() if isinstance(value, int) else kind).cast(kind)
    writer.write(pa.RecordBatch.from_arrays([held, pa.array([1], pa.int64())], schema=schema))
    work = writer.prepare("0" * 32)
    stage.decide(work)
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert ICEBERG.rows(stage.table)["at"].combine_chunks().cast(kind) == held
    with closing(ICEBERG.catalog(stage.table)) as catalog:
        table = catalog.load_table("db.rows")
        assert not [key for key in table.properties if key.startswith("write.metadata")]
        assert table.scan(row_filter="n = 1").to_arrow().num_rows == 1


def test_a_column_of_instants_fits(tmp_path: Path):
    """Spark 4.2 tells no Arrow type of it without a zone: the start ended in a bare assertion."""
    kind = pa.timestamp("us", "UTC")
    ICEBERG.create(tmp_path / "table", pa.schema([("at", kind), ("all", pa.list_(kind))]))
    instants = StructType().add("at", "timestamp").add("all", ArrayType(TimestampType()))
    assert ICEBERG.sink(tmp_path / "table").columns(instants) == ["`at` AS `at`", "`all` AS `all`"]
    local = StructType().add("at", "timestamp_ntz")
    with pytest.raises(ConfigurationError, match="column at is"):
        ICEBERG.sink(tmp_path / "table").columns(local)


def test_zones_and_wide_offsets_make_no_other_type():
    ours = pa.schema([("at", pa.timestamp("us", "Europe/Berlin")), ("l", pa.list_(pa.string()))])
    theirs = pa.schema([("at", pa.timestamp("us", "UTC")), ("l", pa.large_list(pa.large_string()))])
    assert misfit(ours, theirs) is None
    assert misfit(pa.schema([("at", pa.timestamp("us"))]), theirs) is not None


def test_each_manifest_is_made_durable_once_also_those_of_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """It was done for all of them, in each batch."""
    synced: list[str] = []
    sync = iceberg._sync

    def spied(path: str) -> None:
        synced.append(path)
        sync(path)

    monkeypatch.setattr(iceberg, "_sync", spied)
    participant = stage.participant()
    for number in range(3):
        writer = stage.sink.opened(9, 0, transactional=False)
        writer.write(batch(100 + number))
        writer.prepare("0" * 32)
        work = stage.prepare(number)
        stage.decide(work, batch=number)
        assert participant.commit([work]) == {work.identity: Outcome.COMMITTED}
    with closing(KIND.catalog(stage.table)) as catalog:
        table = catalog.load_table("db.rows")
        snapshot = table.current_snapshot()
        assert snapshot is not None
        manifests = [each.manifest_path for each in snapshot.manifests(table.io)]
    assert len(manifests) == 6
    assert all(synced.count(each) == 1 for each in manifests)
