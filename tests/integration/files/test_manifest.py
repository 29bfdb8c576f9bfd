"""Whole batches by Spark's own log: read by Spark, compacted as Spark does, seen at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.core.delivery.outputs import OneSink
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.errors import StoreError
from airflow_eos.kinds.files.folder import WorkFile, files_of
from airflow_eos.kinds.files.manifest import LOG, ManifestLog, ManifestOutcome
from airflow_eos.kinds.files.storage import folder_at
from airflow_eos.sinks import FileSink
from tests.integration.files.staged import claimed
from tests.support.pipelines import commit_of


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    sink = FileSink(str(tmp_path / "out ä"), "parquet", ["day"], publish="manifest")
    store = CheckpointStore.open(tmp_path / "checkpoint")
    claimed(store)
    return sink.bound(store)


def decide(sink: FileSink, works: Sequence[PreparedWork], batch: int, attempt: int = 1) -> None:
    assert sink.store is not None
    decision = commit_of(batch, *works, attempt=attempt)
    assert DecisionLog(sink.store).record(decision)


def prepare(spark: SparkSession, sink: FileSink, batch: int, attempt: int = 1) -> Any:
    """Two tasks, with rows of two days that want to be escaped."""
    rows = spark.range(100 * batch, 100 * batch + 100, 1, 2).selectExpr(
        "id", "IF(id % 2 = 0, 'a:b/ö 100%', NULL) AS day"
    )
    one = OneSink(sink)
    works = [report.work for report in one.prepare(one.rows(rows))]
    decide(sink, works, batch, attempt)  # type: ignore[arg-type]
    return works


def seen(spark: SparkSession, sink: FileSink) -> list[int]:
    rows = spark.read.schema("id long, day string").parquet(sink.folder)
    assert {day for (day,) in rows.select("day").distinct().collect()} <= {None, "a:b/ö 100%"}
    return sorted(number for (number,) in rows.select("id").collect())


def entries(sink: FileSink) -> list[str]:
    names = (path.name for path in (Path(sink.folder) / LOG).iterdir())
    return sorted((n for n in names if n[0] != "."), key=lambda n: int(n.partition(".")[0]))


@pytest.mark.proof
def test_spark_reads_each_batch_as_a_whole_through_every_compaction(spark, sink):
    participant = sink.connect(timedelta())
    assert seen(spark, sink) == []
    for batch in range(32):
        works = prepare(spark, sink, batch)
        if batch % 8 == 0:
            assert seen(spark, sink) == list(range(100 * batch)), "prepared is not seen"
        assert set(participant.commit(works).values()) == {Outcome.COMMITTED}
        if batch % 4 == 0 or batch > 28:
            assert seen(spark, sink) == list(range(100 * batch + 100))
    kept = ["19.compact", *map(str, range(20, 29)), "29.compact", "30", "31", "32"]
    assert entries(sink) == kept
    assert participant.open() == ()


@pytest.mark.proof
def test_spark_streams_from_the_folder_as_from_its_own(spark, sink, tmp_path):
    participant = sink.connect(timedelta())
    for batch in range(12):
        participant.commit(prepare(spark, sink, batch))
    prepare(spark, sink, 12)
    query = (
        spark.readStream.schema("id long, day string")
        .parquet(sink.folder)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "copied"))
    )
    assert query.awaitTermination(300)
    assert spark.read.parquet(str(tmp_path / "copied")).count() == 1200


@pytest.mark.proof
def test_a_reader_sees_all_of_a_batch_or_nothing(spark, sink):
    participant = sink.connect(timedelta())
    looks: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            looks.append(len(seen(spark, sink)))

    participant.commit(prepare(spark, sink, 0))
    reader = threading.Thread(target=look)
    reader.start()
    for batch in range(1, 13):
        participant.commit(prepare(spark, sink, batch))
    over.set()
    reader.join()
    assert looks
    assert {found % 100 for found in looks} == {0}
    assert looks == sorted(looks)


@pytest.mark.proof
def test_spark_s_own_sink_s_folder_is_refused(spark, sink, tmp_path):
    """And its form is the one that we write."""
    spark.range(10).write.parquet(str(tmp_path / "in"))
    query = (
        spark.readStream.schema("id long")
        .parquet(str(tmp_path / "in"))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start(sink.folder)
    )
    assert query.awaitTermination(300)
    theirs = (Path(sink.folder) / LOG / "0").read_text().splitlines()
    with pytest.raises(Exception, match="written by Spark's own sink: a log has one writer"):
        sink.connect(timedelta())
    log = ManifestLog(folder_at(sink.folder), "sink", "mark")
    ours = log._line("day=a/k.parquet", 3, 0, is_folder=False)
    assert theirs[0] == "v1"
    assert msgspec.json.decode(theirs[1]).keys() == msgspec.json.decode(ours).keys()


@pytest.mark.proof
def test_where_a_file_is_gone_the_whole_batch_is_lost_for_good_and_written_again(spark, sink):
    participant = sink.connect(timedelta())
    works = prepare(spark, sink, 0)
    sink.storage().remove([file.prepared for file in files_of(works[0])])
    assert set(participant.commit(works).values()) == {Outcome.ABORTED}
    assert set(sink.connect(timedelta()).outcome(works).values()) == {Outcome.ABORTED}
    assert participant.open() == (), "what was left of it is removed"
    assert not list(Path(sink.folder).rglob("*.parquet"))
    again = prepare(spark, sink, 0, attempt=2)
    assert set(participant.commit(again).values()) == {Outcome.COMMITTED}
    assert set(participant.outcome(works).values()) == {Outcome.ABORTED}
    assert seen(spark, sink) == list(range(100))


@pytest.mark.proof
def test_a_zombie_s_entry_below_a_compaction_is_seen_by_nobody(spark, sink):
    """It looked before twenty batches; the number that it creates was free again."""
    participant = sink.connect(timedelta())
    old = prepare(spark, sink, 0)
    log = ManifestLog(folder_at(sink.folder), "sink", participant.members[0].address["mark"])
    looked = log.look()
    participant.commit(old)
    for batch in range(1, 22):
        participant.commit(prepare(spark, sink, batch))
    before = seen(spark, sink)
    files = [WorkFile("", "day=x/late.parquet", 1)]
    us = claimed(sink.store)
    settled = ManifestOutcome(0, 1, is_committed=True, pipeline=us.id, at_ms=0)
    assert log.append(looked, files, settled), "the number was free"
    assert seen(spark, sink) == before == list(range(2200))
    assert log.names_any_of(["late"]) == set()
    assert log.look().witnessed(21, 1, us) is Outcome.COMMITTED
    assert log.look().witnessed(0, 1, us) is Outcome.UNKNOWN, "below the floor"
    works = prepare(spark, sink, 22)
    participant.commit(works)
    assert seen(spark, sink) == list(range(2300))


@pytest.mark.proof
def test_rows_that_nothing_decides_survive_a_compaction(spark, sink):
    """At least once: each task adds an entry, and looks whether it is read."""
    sink.connect(timedelta())
    rows = spark.range(0, 1200, 1, 12).selectExpr("id", "CAST(NULL AS STRING) AS day")
    one = OneSink(sink, guarantee="at_least_once")
    one.prepare(one.rows(rows))
    assert seen(spark, sink) == list(range(1200))


@pytest.mark.proof
def test_rows_that_nothing_decides_start_in_a_fresh_folder(spark, sink):
    """Nothing connects for them: the first task would find its own file, and no log."""
    rows = spark.range(0, 200, 1, 2).selectExpr("id", "CAST(NULL AS STRING) AS day")
    one = OneSink(sink, guarantee="at_least_once")
    one.check(spark)
    one.prepare(one.rows(rows))
    assert seen(spark, sink) == list(range(200))


def test_a_log_that_lacks_an_entry_or_is_of_another_version_concludes_nothing(spark, sink):
    participant = sink.connect(timedelta())
    works = prepare(spark, sink, 0)
    newest = Path(sink.folder) / LOG / entries(sink)[-1]
    data = newest.read_bytes()
    newest.write_bytes(data.replace(b"v1", b"v9", 1))
    with pytest.raises(StoreError, match="another version of Spark"):
        participant.commit(works)
    newest.write_bytes(data)
    assert set(participant.commit(works).values()) == {Outcome.COMMITTED}
    newest.unlink()
    with pytest.raises(StoreError, match="lacks entries"):
        participant._log.names_any_of(["x"])
