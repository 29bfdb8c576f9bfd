"""What readers make of a cut; the systems themselves are in ``tests/integration/cuts``."""

from __future__ import annotations

import gzip
import os
import shutil
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_eos import cuts
from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.cuts import CutLog
from airflow_eos.core.protocol.cut import stamp_of
from airflow_eos.errors import CheckpointError, CheckpointFormatError, ConfigurationError
from tests.support.settled_logs import SettledLogs

PIPELINE = "a" * 32


def cut(batch: int, **places: tuple[str, dict[str, Any] | None, int]) -> cuts.Cut:
    positions = {name: cuts.Position(kind, since, at) for name, (kind, at, since) in places.items()}
    return cuts.Cut(batch_id=batch, pipeline="", incomplete=None, positions=positions)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """With the cuts of batches 3 to 5, an hour apart."""
    store = CheckpointStore.open(tmp_path / "ck")
    for batch in (3, 4, 5):
        CutLog(store).record(cut(batch))
        hour = datetime(2026, 11, 28, batch, tzinfo=UTC).timestamp()
        os.utime(tmp_path / "ck" / "eos" / "cuts" / f"{batch}.json", (hour, hour))
    return str(tmp_path / "ck")


def test_a_damaged_newest_cut_is_passed_over_and_refused_where_it_is_meant(checkpoint: str) -> None:
    Path(checkpoint, "eos", "cuts", "5.json").write_bytes(b"\0" * 200)
    assert cuts.latest(checkpoint).batch_id == 4
    with pytest.raises(CheckpointFormatError):
        cuts.at(checkpoint, 5)


def test_a_cut_is_found_by_batch_and_by_time(checkpoint: str) -> None:
    assert cuts.latest(checkpoint).batch_id == 5
    assert cuts.at(checkpoint, 3).batch_id == 3
    four = datetime(2026, 11, 28, 4, tzinfo=UTC)
    assert cuts.as_of(checkpoint, four).batch_id == 4
    assert cuts.as_of(checkpoint, four - timedelta(seconds=1)).batch_id == 3
    with pytest.raises(CheckpointError, match="batches 3 to 5"):
        cuts.as_of(checkpoint, four - timedelta(hours=2))
    with pytest.raises(CheckpointError, match="batch 2"):
        cuts.at(checkpoint, 2)
    with pytest.raises(ConfigurationError, match="zone"):
        cuts.as_of(checkpoint, datetime(2026, 11, 28))  # noqa: DTZ001


def test_who_asks_for_what_was_pruned_or_in_another_place_is_not_told_to_wait_alone(
    checkpoint: str, tmp_path: Path
) -> None:
    """Nothing that he waits for brings it."""
    oldest = min(CutLog(CheckpointStore.open(checkpoint)).listed())
    Path(checkpoint, "eos", "cuts", f"{oldest}.json").unlink()
    with pytest.raises(CheckpointError, match="Take one of these") as pruned:
        cuts.at(checkpoint, oldest)
    with pytest.raises(CheckpointError, match="Give the checkpointLocation") as elsewhere:
        cuts.latest(str(tmp_path / "chekpoint"))
    assert [len(each.value.remedies) for each in (pruned, elsewhere)] == [2, 2]


def test_an_event_carries_the_cut_and_one_of_an_older_release_none(checkpoint: str) -> None:
    extra = {"key": "p/0-5", "cut": cuts.latest(checkpoint).as_json()}
    assert cuts.from_event(msgspec.json.decode(msgspec.json.encode(extra))) == cuts.latest(
        checkpoint
    )
    for none in ({"key": "p/0-9"}, {"key": "p/0-9", "cut": None}):
        with pytest.raises(CheckpointError, match="p/0-9 carries no cut"):
            cuts.from_event(none)


def test_an_output_without_a_place_says_why_and_a_wrong_name_what_there_is() -> None:
    found = cut(7, totals=("upsert", None, 0), empty=("files", {}, 2))
    with pytest.raises(CheckpointError, match="'totals'"):
        cuts.files(
            msgspec.structs.replace(
                found,
                positions={
                    "totals": cuts.Position("files", 0, None, "it keeps its newest state alone")
                },
            ),
            "totals",
        )
    with pytest.raises(CheckpointError, match="no row was delivered there since batch 2"):
        cuts.files(found, "empty")
    with pytest.raises(ConfigurationError, match=r"totals \(upsert\)"):
        cuts.condition(found, "totals")
    with pytest.raises(ConfigurationError, match="found totals"):
        cuts.condition(found, "nobody")


def test_offsets_are_numbers_by_partition() -> None:
    place = {"out": {"id": "a", "ends": {"0": 4, "1": 0}}}
    assert cuts.offsets(cut(7, sink=("kafka", place, 0)), "sink") == {"out": {0: 4, 1: 0}}


def test_a_condition_is_quoted_and_leaves_others_in() -> None:
    stamp = stamp_of(PIPELINE, 7)
    place = {"table": "t", "column": 'eos"batch', "stamp": stamp}
    said = cuts.condition(cut(7, sink=("postgres", place, 0)), "sink")
    last = (stamp // 10**12 + 1) * 10**12
    assert said == (
        f'("eos""batch" IS NULL OR "eos""batch" < {stamp + 1} OR "eos""batch" >= {last})'
    )
    assert cuts.condition(cut(7, sink=("mysql", place, 0)), "sink").startswith('(`eos"batch` IS')


def test_files_of_later_batches_are_left_out_and_those_of_others_are_in(tmp_path: Path) -> None:
    end = "-0-0-" + "0" * 32 + ".parquet"
    ours = [f"day=1/{stamp_of(PIPELINE, 7)}{end}", f"day=2/{stamp_of(PIPELINE, 8)}{end}"]
    others = [f"{stamp_of('b' * 32, 99)}{end}", f"0-0-{'0' * 32}.parquet", "of-spark.parquet"]
    for name in (*ours, *others, "_SUCCESS", ".hidden.parquet", "_delta_log/0.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    place = {"folder": str(tmp_path), "publish": "listing", "stamp": stamp_of(PIPELINE, 7)}
    found = cuts.files(cut(7, sink=("files", place, 0)), "sink")
    assert found == sorted(f"{tmp_path}/{name}" for name in (ours[0], *others))


def test_files_of_json_are_read_as_such_and_no_file_at_all_is_said(tmp_path: Path) -> None:
    place = {"folder": str(tmp_path), "publish": "listing", "stamp": stamp_of(PIPELINE, 7)}
    found = cut(7, sink=("files", place, 0))
    for read in (cuts.dataset, partial(cuts.spark_frame, spark=MagicMock())):
        with pytest.raises(CheckpointError, match="'sink' has no file in cut 7"):
            read(found, "sink")
    name = f"{stamp_of(PIPELINE, 7)}-0-0-{'0' * 32}.json.gz"
    (tmp_path / name).write_bytes(gzip.compress(b'{"a": 1}\n'))
    assert cuts.dataset(found, "sink").to_table().to_pydict() == {"a": [1]}


def test_a_delta_table_made_again_gives_no_other_rows_for_those_of_a_cut(tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    write_deltalake(table, pa.table({"a": [1]}))
    place = {"table": table, "id": str(DeltaTable(table).metadata().id), "version": 0}
    found = cut(7, sink=("delta", place, 0))
    assert cuts.dataset(found, "sink").to_table().to_pydict() == {"a": [1]}
    shutil.rmtree(table)
    write_deltalake(table, pa.table({"a": [999]}))
    with pytest.raises(CheckpointError, match="was made again since cut 7"):
        cuts.dataset(found, "sink")


# --- Cuts of several pipelines --------------------------------------------------------------------

MINUTES_15 = 900_000


def pipeline(folder: Path, batches: int, step_ms: int, cuts_from: int = 0) -> str:
    """Whose batch N moved the watermark to N steps, and has a cut."""
    logs = SettledLogs(folder, watermark_step_ms=step_ms)
    logs.settle(batches)
    for batch in range(cuts_from, batches):
        CutLog(CheckpointStore.open(folder)).record(
            msgspec.structs.replace(
                cut(batch), pipeline=CutLog(CheckpointStore.open(folder)).pipeline
            )
        )
    return str(folder)


def hour(number: int) -> datetime:
    return datetime.fromtimestamp(number * 3600, UTC)


@pytest.fixture
def quick(tmp_path: Path) -> str:
    """Complete: hour 4 at batch 16, hour 5 at batch 20."""
    return pipeline(tmp_path / "quick", 23, MINUTES_15)


@pytest.fixture
def slow(tmp_path: Path) -> str:
    """Complete: hour 3 at batch 9, hour 4 at batch 12."""
    return pipeline(tmp_path / "slow", 14, 20 * 60_000)


def test_several_pipelines_are_cut_at_the_newest_hour_that_all_have(quick: str, slow: str) -> None:
    """Each at its first cut with that hour: whoever asks later gets the same rows."""
    both = cuts.cut_of([quick, slow])
    assert both.until == hour(4)
    assert {each: its.batch_id for each, its in both.cuts.items()} == {quick: 16, slow: 12}
    older = cuts.cut_of([quick, slow], as_of=hour(3) + timedelta(minutes=59))
    assert older.until == hour(3)
    assert [its.batch_id for its in older.cuts.values()] == [12, 9]
    assert cuts.cut_of([quick]).cuts[quick].batch_id == 20


def test_a_cut_whose_batch_spark_has_not_committed_yet_is_not_asked_for_hours(slow: str) -> None:
    newest = Path(slow, "commits", "13")
    newest.unlink()
    assert cuts.cut_of([slow]).cuts[slow].batch_id == 12
    for number in range(13):
        Path(slow, "eos", "cuts", f"{number}.json").unlink()
    with pytest.raises(CheckpointError, match="of a settled batch"):
        cuts.cut_of([slow])


def test_a_damaged_or_missing_cut_of_several_gives_way_to_the_next(quick: str, slow: str) -> None:
    Path(quick, "eos", "cuts", "16.json").write_bytes(b"\0" * 9)
    Path(slow, "eos", "cuts", "12.json").unlink()
    found = cuts.cut_of([quick, slow]).cuts
    assert (found[quick].batch_id, found[slow].batch_id) == (17, 13)


def test_cuts_of_purged_batches_are_passed_over(quick: str) -> None:
    """Their watermarks are gone with Spark's logs, and nobody guesses them."""
    for number in range(19):
        for name in ("offsets", "commits"):
            Path(quick, name, str(number)).unlink()
    assert cuts.cut_of([quick], as_of=hour(4)).cuts[quick].batch_id == 19


def test_a_pipeline_without_watermark_or_cut_is_named(quick: str, tmp_path: Path) -> None:
    timeless = pipeline(tmp_path / "timeless", 3, 0)
    with pytest.raises(CheckpointError, match="timeless knows of no complete hour at batch 2"):
        cuts.cut_of([quick, timeless])
    with pytest.raises(CheckpointError, match="bare has no whole cut"):
        cuts.cut_of([quick, pipeline(tmp_path / "bare", 3, MINUTES_15, cuts_from=3)])
    with pytest.raises(ConfigurationError, match="checkpoints"):
        cuts.cut_of([])
    with pytest.raises(ConfigurationError, match="zone"):
        cuts.cut_of([quick], as_of=datetime(2026, 11, 28))  # noqa: DTZ001


def test_a_delta_table_that_has_the_version_no_more_is_said(tmp_path: Path) -> None:
    """It was made again with fewer versions, or is not there at all."""
    table = str(tmp_path / "table")
    found = cut(5, sink=("delta", {"table": table, "version": 3, "id": "x"}, 0))
    with pytest.raises(CheckpointError, match=r"version 3 of .*not there any more"):
        cuts.dataset(found, "sink")
    write_deltalake(table, pa.table({"a": [1]}))
    with pytest.raises(CheckpointError, match=r"version 3 of .*not there any more"):
        cuts.dataset(found, "sink")


def test_an_iceberg_table_that_has_the_snapshot_no_more_is_said(tmp_path: Path) -> None:
    """Rewritten it has it; expired, made again and renamed it has not."""
    from pyiceberg.catalog.sql import SqlCatalog

    where = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    catalog = SqlCatalog("local", **where)
    catalog.create_namespace("db")
    table = catalog.create_table("db.rows", pa.schema([("a", pa.int64())]))
    table.append(pa.table({"a": [1]}))
    snapshot = table.metadata.current_snapshot_id
    assert snapshot is not None
    found = cut(5, sink=("iceberg", {"table": "db.rows", "snapshot": snapshot}, 0))
    with pytest.raises(ConfigurationError, match="expected catalog="):
        cuts.dataset(found, "sink")
    table.overwrite(pa.table({"a": [2]}))
    assert cuts.dataset(found, "sink", catalog=catalog).to_table().to_pydict() == {"a": [1]}
    table.maintenance.expire_snapshots().by_id(snapshot).commit()
    with pytest.raises(CheckpointError, match=f"snapshot {snapshot} of db.rows.*expired"):
        cuts.dataset(found, "sink", catalog=catalog)
    catalog.rename_table("db.rows", "db.others")
    with pytest.raises(CheckpointError, match=r"not there any more .*db\.rows"):
        cuts.dataset(found, "sink", catalog=catalog)
    catalog.close()
