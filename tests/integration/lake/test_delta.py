"""What is Delta's own: what it is refused for, and what its maintenance does to witnesses."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType

from airflow_eos.core.checkpoint import PipelineIdentity, claim
from airflow_eos.core.delivery.batch import require_decidable
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.kinds.delta import participant as participant_module
from airflow_eos.kinds.delta.participant import (
    DeltaFolder,
    DeltaLog,
    computed,
    connect,
    misfit,
)
from airflow_eos.kinds.delta.sink import DeltaSink
from airflow_eos.kinds.lake.files import TableFiles
from tests.integration.lake.kinds import KINDS
from tests.integration.lake.stage import SCHEMA, Stage, answer
from tests.support.pipelines import owner_at

FORGETS = {"delta.setTransactionRetentionDuration": "interval 1 days"}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(KINDS["delta"], tmp_path).made()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t.alter.add_constraint({"positive": "value > 0"}), "constraints"),
        (lambda t: t.alter.set_table_properties(FORGETS), "forget what was committed"),
    ],
)
def test_a_table_that_is_not_plain_any_more_is_refused_and_nothing_dropped(stage, change, why):
    work = stage.promised(1)
    running = stage.participant()
    change(DeltaTable(stage.table))
    for asked in (stage.participant, lambda: running.commit([work])):
        with pytest.raises(ConfigurationError, match=why):
            asked()
    assert stage.file(work).exists()
    assert stage.values().total() == 0


def asking(stage: Stage, *features: str, writer: int = 7, reader: int = 1) -> None:
    """Another writer has changed what the table asks of its writers, and of new readers."""
    protocol: dict[str, object] = {"minReaderVersion": reader, "minWriterVersion": writer}
    if reader == 3:
        protocol |= {"readerFeatures": features}
    if writer == 7:
        protocol |= {"writerFeatures": features}
    version = stage.kind.commits(stage.table) + 1
    log = stage.table / "_delta_log" / f"{version:020d}.json"
    log.write_text(json.dumps({"protocol": protocol}))


@pytest.mark.parametrize(
    "feature", ["domainMetadata", "rowTracking", "allowColumnDefaults", "of the future", 6]
)
def test_a_table_that_the_library_cannot_write_is_refused_before_the_first_row(stage, feature):
    """It can be opened and read: only the commit of what was decided failed, for ever."""
    work = stage.promised(1)
    running = stage.participant()
    given = {"writer": feature} if feature == 6 else {}
    asking(stage, *([] if given else [feature]), **given)
    for asked in (stage.participant, lambda: running.commit([work])):
        with pytest.raises(ConfigurationError, match="what deltalake cannot write"):
            asked()
    assert stage.file(work).exists(), "nothing of it is dropped"


@pytest.mark.parametrize(
    ("feature", "why"),
    [("catalogManaged", "managed by its catalog"), ("of the future", "deltalake cannot read")],
)
def test_a_table_that_the_library_will_never_open_is_not_tried_again(stage, feature, why):
    work = stage.promised(1)
    running = stage.participant()
    asking(stage, feature, reader=3)
    for asked in (stage.participant, lambda: running.commit([work])):
        with pytest.raises(ConfigurationError, match=f"{why} .*or deliver into another table"):
            asked()
    assert stage.file(work).exists(), "nothing of it is dropped"


def test_a_table_whose_features_the_library_can_write_is_taken(stage):
    asking(stage, "appendOnly", "invariants", "changeDataFeed")
    work = stage.promised(1)
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}


def test_a_table_whose_columns_were_changed_asks_a_person_and_nothing_is_dropped(stage: Stage):
    work = stage.promised(1)
    other = pa.table({"key": [1]})
    write_deltalake(stage.table, other, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(ConfigurationError, match=r"was changed since .* no column value"):
        stage.participant().commit([work])
    assert stage.participant().outcome([work]) == {work.identity: Outcome.OPEN}
    assert stage.file(work).exists()
    empty = SCHEMA.empty_table()
    write_deltalake(stage.table, empty, mode="overwrite", schema_mode="overwrite")
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert stage.values() == {1: 1}


def test_the_witness_outlives_compaction_checkpoints_and_the_log(stage: Stage):
    works = []
    for batch in range(4):
        works.append(stage.prepare(batch))
        stage.decide(works[-1], batch=batch)
        stage.participant().commit(works[-1:])
    table = DeltaTable(stage.table)
    table.optimize.compact()
    table.create_checkpoint()
    for name in (stage.table / "_delta_log").glob("0000000000000000000[0-4].json"):
        name.unlink()
    table = DeltaTable(stage.table)
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert stage.data_files() & {work.key for work in works} == set()
    assert stage.participant().outcome(works[-1:]) == {works[-1].identity: Outcome.COMMITTED}
    assert stage.participant().commit(works[-1:]) == {works[-1].identity: Outcome.COMMITTED}
    assert stage.values() == dict.fromkeys(range(4), 1)


def test_the_table_does_not_grow_with_the_age_of_the_pipeline(stage: Stage):
    for batch in range(3):
        stage.delivered(batch, batch=batch)
    table = DeltaTable(stage.table)
    table.create_checkpoint()
    (checkpoint,) = (stage.table / "_delta_log").glob("*.checkpoint.parquet")
    written = [row["appId"] for row in pq.read_table(checkpoint)["txn"].to_pylist() if row]
    assert len(list(filter(None, written))) == 1


def test_a_vacuum_that_takes_a_promised_file_is_a_replay_and_no_silence(stage: Stage):
    work = stage.promised(1)
    stage.participant().claim(owner_at("/a"))
    table = DeltaTable(stage.table)
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert not stage.file(work).exists()
    assert list((stage.table / "_eos").rglob("owner")), "who owns the name is spared"
    assert stage.participant().commit([work]) == {work.identity: Outcome.ABORTED}
    again = stage.prepare(1)
    stage.decide(again, attempt=2)
    stage.participant().commit([work, again])
    assert stage.values() == {1: 1}


def test_a_file_that_goes_while_it_is_committed_is_not_passed_over(stage: Stage, monkeypatch):
    work = stage.promised(1)
    participant = stage.participant()
    view = type(participant._table.look())
    append = view.append

    def cleaned(self, *given):
        append(self, *given)
        stage.file(work).unlink()

    monkeypatch.setattr(view, "append", cleaned)
    with pytest.raises(StoreError, match="names 1 files that are not there"):
        participant.commit([work])


def test_a_table_made_anew_is_another_one(stage: Stage):
    work = stage.promised(1)
    participant = stage.participant()
    (member,) = participant.members
    shutil.rmtree(stage.table / "_delta_log")
    stage.kind.create(stage.table)
    for asked in (
        lambda: participant.outcome([work]),
        lambda: connect(member, None, timeout_s=1, store=stage.store),
    ):
        with pytest.raises(StoreError, match="is not the table of this pipeline"):
            asked()


def test_it_is_reached_by_what_the_checkpoint_says_alone(stage: Stage):
    (member,) = stage.participant().members
    assert connect(member, None, timeout_s=1, store=stage.store).members == (member,)
    with pytest.raises(ConfigurationError, match="give the checkpoint"):
        connect(member, None, timeout_s=1)
    with pytest.raises(ConfigurationError, match="has no table"):
        connect(Member("orders", "delta", {}), None, timeout_s=1, store=stage.store)


@pytest.mark.parametrize(
    "uri", ["table", "s3://bucket/table?key=secret", "~/table", "ftp://me:secret@host/table"]
)
def test_a_table_elsewhere_is_refused_without_its_secrets(uri: str):
    with pytest.raises((ConfigurationError, StoreError), match=r"[Ee]xpected a") as refused:
        DeltaSink(uri, application_id="etl")
    assert "secret" not in str(refused.value)


def struct(*fields, **metadata):
    return {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}
            for name, kind, nullable in fields
        ],
    }


def test_columns_fit_by_name_and_type():
    table = struct(("key", "string", False), ("value", "long", True))
    assert misfit(struct(("value", "long", True), ("key", "string", False)), table) is None
    assert misfit(struct(("key", "string", False)), table) is None
    assert "NOT NULL" in str(misfit(struct(("key", "string", True)), table))
    assert "NOT NULL" in str(misfit(struct(("value", "long", True)), table))
    assert "value is integer, and long" in str(
        misfit(struct(("key", "string", False), ("value", "integer", True)), table)
    )
    assert "no column other" in str(misfit(struct(("other", "long", True)), table))
    of = {"type": "array", "elementType": "long"}
    nested = struct(("a", of | {"containsNull": True}, True))
    assert misfit(struct(("a", of | {"containsNull": False}, True)), nested) is None


def test_what_may_be_null_within_does_not_fit_what_may_not():
    """It was appended, and no reader could read the table any more."""

    def table(*, nullable: bool):
        inner = struct(("b", "long", nullable))
        many = {"type": "array", "elementType": inner, "containsNull": True}
        return struct(("a", many, True))

    strict, loose = table(nullable=False), table(nullable=True)
    assert "a may be null within" in str(misfit(loose, strict))
    assert misfit(strict, loose) is None
    of = {"type": "map", "keyType": "string", "valueType": "long"}
    strict, loose = (
        struct(("m", of | {"valueContainsNull": each}, True)) for each in (False, True)
    )
    assert "m may be null within" in str(misfit(loose, strict))


def test_computed_columns_are_found_at_any_depth():
    inner = struct(("b", "long", True), **{"delta.generationExpression": "1"})
    outer = struct(("a", {"type": "array", "elementType": inner, "containsNull": True}, True))
    assert computed(outer) == ["a.b"]
    short = struct(("s", "string", True), __CHAR_VARCHAR_TYPE_STRING="varchar(5)")
    assert computed(short) == ["s"], "no reader would find a longer text"


def test_an_instant_is_one_whatever_the_zone_of_the_session(tmp_path: Path):
    zoned = pa.schema([("at", pa.timestamp("us", "Europe/Berlin"))])
    DeltaTable.create(
        str(tmp_path / "table"), schema=pa.schema([("at", pa.timestamp("us", "UTC"))])
    )
    stage = Stage(KINDS["delta"], tmp_path)
    at = datetime(2026, 11, 23, 1, tzinfo=UTC)
    members = stage.participant().members
    claim(
        stage.store,
        PipelineIdentity(id="a", participants=members, created_at_ms=0, created_by="test"),
    )
    writer = stage.sink.opened(0, 0)
    writer.write(pa.RecordBatch.from_pydict({"at": [at]}, schema=zoned))
    work = writer.prepare("0" * 32)
    stage.decide(work)
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert stage.kind.rows(stage.table)["at"].to_pylist() == [at]


def test_a_table_that_is_changed_while_a_query_runs_is_refused_before_the_next_promise(
    stage: Stage,
):
    """The next batch asks the table, and not what was true when the query began."""
    rows = StructType([StructField("key", StringType()), StructField("value", LongType())])
    sink = stage.sink
    sink.columns(rows)
    stage.delivered(1)
    sink.columns(rows)
    other = pa.table({"key": [1]})
    write_deltalake(stage.table, other, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(ConfigurationError, match="no column value"):
        sink.columns(rows)
    shutil.rmtree(stage.table)
    KINDS["delta"].create(stage.table)
    sink.columns(rows)


def test_constraints_that_are_added_while_a_query_runs_are_refused_before_the_next_promise(
    stage: Stage,
):
    rows = StructType([StructField("key", StringType()), StructField("value", LongType())])
    sink = stage.sink
    sink.columns(rows)
    DeltaTable(stage.table).alter.add_constraint({"positive": "value > 0"})
    with pytest.raises(ConfigurationError, match="constraints"):
        sink.columns(rows)


def test_a_table_that_is_changed_while_tasks_write_is_refused_before_the_promise(stage: Stage):
    """Once promised, its rows held the pipeline up: the table does not take them any more."""
    work, participant = stage.prepare(1), stage.participant()
    require_decidable(participant, [work])
    DeltaTable(stage.table).alter.add_constraint({"positive": "value > 0"})
    with pytest.raises(ConfigurationError, match="constraints"):
        require_decidable(participant, [work])
    other = pa.table({"key": [1], "value": [1]})
    DeltaTable(stage.table).alter.drop_constraint("positive")
    write_deltalake(stage.table, other, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(ConfigurationError, match="column key is string, and long in the table"):
        require_decidable(participant, [work])
    shutil.rmtree(stage.table)
    KINDS["delta"].create(stage.table)
    with pytest.raises(StoreError, match="is not the table of this pipeline"):
        require_decidable(participant, [work])


def opens(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Count how often a log is read from its beginning."""
    found: list[Any] = []
    whole = participant_module.loaded_table

    def spied(folder: DeltaFolder) -> DeltaTable:
        found.append(folder)
        return whole(folder)

    monkeypatch.setattr(participant_module, "loaded_table", spied)
    return found


def test_a_batch_reads_no_more_of_the_log_than_what_is_new(stage: Stage, monkeypatch):
    """Each batch read all of it twice, in a bucket a request for each commit."""
    rows = StructType([StructField("key", StringType()), StructField("value", LongType())])
    sink, participant, opened = stage.sink, stage.participant(), opens(monkeypatch)
    read, asked = (
        calls(monkeypatch, "update_incremental"),
        calls(monkeypatch, "transaction_version"),
    )
    for number in range(5):
        if number == 2:
            opened.clear()
            read.clear()
            asked.clear()
        sink.columns(rows)
        work = stage.prepare(number)
        participant.require_decidable([work])
        stage.decide(work, batch=number)
        assert participant.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert opened == []
    assert len(read) == len(asked) == 3, "once a batch, after its commit"
    assert stage.values() == dict.fromkeys(range(5), 1)


def calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Count the calls of a method of the library's table."""
    found: list[str] = []
    real = getattr(DeltaTable, name)

    def spied(table: DeltaTable, *given: Any) -> Any:
        found.append(name)
        return real(table, *given)

    monkeypatch.setattr(DeltaTable, name, spied)
    return found


def test_a_witness_of_another_driver_is_seen_after_one_of_ours(stage: Stage):
    """The witness is known from the commit before; by now the log has a newer one."""
    participant, first = stage.participant(), stage.promised(1)
    assert participant.commit([first]) == {first.identity: Outcome.COMMITTED}
    second = stage.prepare(2)
    participant.require_decidable([second])
    stage.decide(second, batch=1)
    child = stage.start("commit", key=second.key, batch=1)
    assert answer(child) == {Outcome.COMMITTED}
    assert participant.commit([second]) == {second.identity: Outcome.COMMITTED}
    assert stage.values() == {1: 1, 2: 1}


def test_a_look_stays_as_it_was_while_others_look(stage: Stage):
    """A commit on it would go by a version that nobody had checked."""
    table = DeltaLog(
        DeltaFolder.of(str(stage.table), None), str(DeltaTable(stage.table).metadata().id)
    )
    before = table.look()
    write_deltalake(stage.table, pa.table({"key": ["k1"], "value": [1]}), mode="append")
    assert [table.look().snapshot_address, before.snapshot_address] == [
        {"version": 1},
        {"version": 0},
    ]


def test_a_table_made_anew_with_as_many_commits_is_another_one(stage: Stage):
    participant = stage.participant()
    work = stage.prepare(1)
    participant.require_decidable([work])
    participant._looked = None  # as after a commit
    shutil.rmtree(stage.table)
    KINDS["delta"].create(stage.table)
    for value in (1, 2):
        write_deltalake(stage.table, pa.table({"key": ["k"], "value": [value]}), mode="append")
    with pytest.raises(StoreError, match="is not the table of this pipeline"):
        participant.require_decidable([work])


def test_each_commit_is_made_durable_once(stage: Stage, monkeypatch):
    synced: list[str] = []
    sync = TableFiles.sync

    def spied(files: TableFiles, paths: Sequence[str]) -> None:
        synced.extend(paths)
        sync(files, paths)

    monkeypatch.setattr(TableFiles, "sync", spied)
    participant = stage.participant()
    for number in range(4):
        work = stage.prepare(number)
        stage.decide(work, batch=number)
        write_deltalake(stage.table, pa.table({"key": ["k"], "value": [9]}), mode="append")
        participant.commit([work])
    told = Counter(synced)
    commits = [f"_delta_log/{version:020d}.json" for version in range(1, 9)]
    assert all(told[each] in {1, 2} for each in commits), "the last one again, with what is new"


def test_a_checkpoint_of_the_log_is_made_durable_once(stage: Stage, monkeypatch):
    """It stands for the commits before it, and another writer has not synced it."""
    synced: list[str] = []
    monkeypatch.setattr(TableFiles, "sync", lambda _, paths: synced.extend(paths))
    participant = stage.participant()
    for number in range(4):
        work = stage.prepare(number)
        stage.decide(work, batch=number)
        participant.commit([work])
        if number == 1:
            DeltaTable(stage.table).create_checkpoint()
            synced.clear()
    assert sorted(synced) == [
        f"_delta_log/{2:020d}.checkpoint.parquet",
        f"_delta_log/{3:020d}.json",
        f"_delta_log/{4:020d}.json",
        "_delta_log/_last_checkpoint",
    ]


NAMED = "delta.columnMapping.physicalName"
MAPPED = {NAMED: "col-"}


def declare(
    stage: Stage, feature: str, configuration: dict[str, str], column: dict[str, Any]
) -> None:
    """Another writer has switched a feature on."""
    reads = feature in {"columnMapping", "deletionVectors", "typeWidening"}
    protocol = {"minReaderVersion": 3 if reads else 1, "minWriterVersion": 7}
    named = {"readerFeatures": [feature] if reads else None, "writerFeatures": [feature]}
    table = DeltaTable(stage.table)
    fields = json.loads(table.schema().to_json())
    for number, field in enumerate(fields["fields"]):
        both = {name: f"{each}{number}" if name == NAMED else each for name, each in column.items()}
        field["metadata"] = both | ({"delta.columnMapping.id": number} if NAMED in column else {})
    metadata = {
        "id": str(table.metadata().id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(fields),
        "partitionColumns": [],
        "configuration": configuration,
    }
    said = protocol | {name: each for name, each in named.items() if each}
    log = stage.table / "_delta_log" / f"{table.version() + 1:020d}.json"
    log.write_text("\n".join(map(json.dumps, [{"protocol": said}, {"metaData": metadata}])))


@pytest.mark.parametrize(
    ("feature", "configuration", "column", "why"),
    [
        ("columnMapping", {"delta.columnMapping.mode": "name"}, MAPPED, "mode = name"),
        ("columnMapping", {"delta.columnMapping.mode": "id"}, MAPPED, "mode = id"),
        ("generatedColumns", {}, {"delta.generationExpression": "1"}, "compute or check"),
        ("identityColumns", {}, {"delta.identity.start": 1}, "compute or check"),
        ("inCommitTimestamp", {"delta.enableInCommitTimestamps": "true"}, {}, "cannot write"),
        ("checkConstraints", {"delta.constraints.c": "value > 0"}, {}, "constraints"),
        ("typeWidening", {"delta.enableTypeWidening": "true"}, {}, "cannot write"),
    ],
)
def test_a_feature_that_only_its_writers_keep_is_refused_by_name_before_the_promise(
    stage: Stage, feature: str, configuration: dict[str, str], column: dict[str, Any], why: str
):
    """Readers would take rows for others, or find a commit without what each commit must have."""
    participant, work = stage.participant(), stage.prepare(1)
    declare(stage, feature, configuration, column)
    for asked in (stage.participant, lambda: participant.require_decidable([work])):
        with pytest.raises(ConfigurationError, match=why):
            asked()


def test_rows_are_appended_to_a_table_with_deletion_vectors(stage: Stage):
    declare(stage, "deletionVectors", {"delta.enableDeletionVectors": "true"}, {})
    work = stage.prepare(1)
    stage.decide(work)
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    (added,) = [
        json.loads(line)["add"]
        for line in (stage.table / "_delta_log" / f"{2:020d}.json").read_text().splitlines()
        if line.startswith('{"add"')
    ]
    assert added.get("deletionVector") is None
    assert DeltaTable(stage.table).file_uris() == [str(stage.table / added["path"])]
