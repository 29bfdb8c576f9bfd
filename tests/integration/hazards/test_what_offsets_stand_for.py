"""A number that stands for files is promised with these files, and no start takes others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, InputPartition, SimpleDataSourceStreamReader
from structlog.testing import capture_logs

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.core.checkpoint.rehearsal import REHEARSAL, REPORT, RehearsalReport
from airflow_eos.errors import ContinuityError
from airflow_eos.ops.rehearsal import sentence
from airflow_eos.sinks import FileSink, Output, start_exactly_once


class Folders:
    """A pipeline from one folder of JSON lines to another, a file a batch."""

    def __init__(self, spark: SparkSession, at: Path) -> None:
        self.spark, self.at = spark, at
        self.log = at / "ck" / "sources" / "0"
        self.rehearsed = 0

    def feed(self, *names: str, folder: str = "in") -> None:
        (self.at / folder).mkdir(exist_ok=True)
        for name in names:
            path = self.at / folder / f"{name}.json"
            path.with_suffix(".part").write_text(json.dumps({"value": name}) + "\n")
            path.with_suffix(".part").rename(path)

    def rows(self, folder: str = "in", **options: str) -> DataFrame:
        source = self.spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
        return (
            source.option("pathGlobFilter", "*.json").options(**options).json(str(self.at / folder))
        )

    def run(self, rows: DataFrame | None = None, **changes: Any) -> None:
        sink = Output("rows", FileSink(str(self.at / "out"), "json", name="rows"))
        given = {"trigger": {"availableNow": True}, "checkpoint_location": str(self.at / "ck")}
        query = start_exactly_once(
            self.rows() if rows is None else rows, [sink], **(given | changes)
        )
        assert query.awaitTermination(300)

    def rehearse(self, rows: DataFrame, monkeypatch: pytest.MonkeyPatch) -> RehearsalReport:
        self.rehearsed += 1
        scratch = str(self.at / f"scratch-{self.rehearsed}")
        told = {"checkpoint": str(self.at / "ck"), "scratch": scratch, "batches": 20}
        with monkeypatch.context() as started:
            started.setenv(REHEARSAL, msgspec.json.encode(told).decode())
            with pytest.raises(SystemExit):
                self.run(rows)
        report = CheckpointStore.open(scratch).read(REPORT, RehearsalReport)
        assert report is not None
        return report

    def visible(self) -> list[str]:
        files = [path for path in (self.at / "out").rglob("*.json") if "_" not in path.parts[-2]]
        return sorted(json.loads(e)["value"] for path in files for e in path.open())


@pytest.fixture
def folders(spark: SparkSession, tmp_path: Path) -> Iterator[Folders]:
    yield Folders(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


def replaced(path: Path, old: str, new: str) -> str:
    """Replace an entry as a driver does that slept before its rename; return what stood there."""
    before = path.read_text()
    assert old in before
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    path.write_text(before.replace(old, new))
    return before


def test_a_late_rename_in_a_file_sources_log_delivers_no_row_twice_and_hides_none(folders) -> None:
    folders.feed("a", "b%20 ü", "c")
    folders.run()
    newest = folders.log / "2"
    written = newest.read_text()
    taken = next(name for name in ("a", "b%2520%20ü", "c") if f"/{name}.json" in written)
    folders.feed("d")
    before = replaced(newest, f"/{taken}.json", "/d.json")
    with pytest.raises(ContinuityError, match="sources/0/2 does not name the files") as refused:
        folders.run()
    assert folders.visible() == ["a", "b%20 ü", "c"]
    assert "copy of the checkpoint" in str(refused.value)
    newest.write_text(before)
    folders.run()
    assert folders.visible() == ["a", "b%20 ü", "c", "d"]


@pytest.mark.parametrize("place", ["decided", "prepared"])
def test_a_batch_in_flight_is_read_from_the_files_that_were_promised(
    folders, die_at: Callable[[str], None], place
) -> None:
    """What nobody has promised is read as the log has it now: both are right."""
    folders.feed("a")
    die_at(place)
    with pytest.raises(Exception, match=place):
        folders.run()
    die_at("")
    folders.feed("b")
    before = replaced(folders.log / "0", "/a.json", "/b.json")
    if place == "decided":
        with pytest.raises(ContinuityError, match="sources/0/0 does not name"):
            folders.run()
        (folders.log / "0").write_text(before)
    folders.run()
    assert folders.visible() == ["a", "b"]


def test_what_spark_compacts_and_removes_is_no_fault(folders) -> None:
    log = "spark.sql.streaming.fileSource.log"
    settings = {f"{log}.compactInterval": "2", f"{log}.cleanupDelay": "0"}
    for name, value in settings.items():
        folders.spark.conf.set(name, value)
    try:
        for names in ("ab", "cd", "e"):
            folders.feed(*names)
            folders.run()
        assert {"1.compact", "3.compact"} & {path.name for path in folders.log.iterdir()}
        assert folders.visible() == list("abcde")
        newest = max(folders.log.glob("*.compact"), key=lambda path: int(path.stem))
        replaced(newest, '"batchId":3', '"batchId":2')
        with pytest.raises(ContinuityError, match=r"sources/0/3 does not name"):
            folders.run()
    finally:
        for name in settings:
            folders.spark.conf.unset(name)


def test_a_rate_that_would_compute_other_rows_is_refused(folders) -> None:
    def rate(rows: int) -> DataFrame:
        source = folders.spark.readStream.format("rate").option("rowsPerSecond", rows)
        found: DataFrame = source.load().selectExpr("cast(value AS string) AS value")
        return found

    def start(rows: int) -> Any:
        sink = [Output("rows", FileSink(str(folders.at / "out"), "json", name="rows"))]
        return start_exactly_once(rate(rows), sink, checkpoint_location=str(folders.at / "ck"))

    query = start(5)
    query.processAllAvailable()
    query.drain()
    assert query.awaitTermination(300)
    with pytest.raises(ContinuityError, match="rows are computed from these"):
        start(50)
    replaced(folders.log / "0", "v1\n1", "v1\n2")
    with pytest.raises(ContinuityError, match="sources/0/0 is not what batch"):
        start(5)


class Numbers(DataSource):
    """A user's source: which rows an offset stands for is known to itself alone."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "value string"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:  # noqa: ARG002, N802
        most = int(self.options.get("most", "2"))

        class Reader(SimpleDataSourceStreamReader):
            def initialOffset(self) -> dict[str, int]:  # noqa: N802
                return {"at": 0}

            def read(self, start: dict[str, int]) -> tuple[Any, dict[str, int]]:
                return self.readBetweenOffsets(start, {"at": most}), {"at": most}

            def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Any:  # noqa: N802
                return iter([(str(each),) for each in range(start["at"], end["at"])])

            def partitions(self, *_: Any) -> list[InputPartition]:
                return []

        return Reader()


def test_a_users_source_is_named_as_one_that_is_taken_at_its_word(folders, monkeypatch) -> None:
    folders.spark.dataSource.register(Numbers)

    def rows(most: int) -> DataFrame:
        found: DataFrame = folders.spark.readStream.format("numbers").option("most", most).load()
        return found

    with capture_logs() as said:
        folders.run(rows(2))
    [named] = [each for each in said if each["event"] == "offsets_are_taken_at_their_word"]
    assert named["source"] == "numbers"
    assert folders.visible() == ["0", "1"]
    assert folders.rehearse(rows(2), monkeypatch).verdict == "same"
    report = folders.rehearse(rows(3), monkeypatch)
    assert report.verdict == "differs"
    assert "most is sha256" in report.compared[0].why


@pytest.mark.parametrize(
    ("folder", "options", "verdict", "says"),
    [
        ("in*", {}, "differs", "path is"),
        ("in_2", {}, "failed", "path is"),  # Spark reads no planned file of another folder
        ("in", {"pathGlobFilter": "*.*"}, "differs", "pathglobfilter is *.*, and was *.json"),
        ("in", {"recursiveFileLookup": "true"}, "differs", "recursivefilelookup is true"),
        ("in", {"maxFilesPerTrigger": "3"}, "same", ""),
    ],
)
def test_a_version_that_would_read_other_files_is_not_the_same(
    folders, monkeypatch, folder, options, verdict, says
) -> None:
    """The files of a batch that was delivered cannot show it: they are those of then."""
    folders.feed("a", "b")
    folders.feed("c", folder="in_2")
    folders.run()
    report = folders.rehearse(folders.rows(folder, **options), monkeypatch)
    assert report.verdict == verdict
    assert says in " ".join(each.why for each in report.compared)
    assert ("READS OTHER INPUT" in sentence(report)) == (verdict == "differs")


def test_a_decision_holds_a_digest_and_no_list(folders) -> None:
    folders.feed(*(f"a-long-name-of-a-file-{number:04}" for number in range(400)))
    folders.run(folders.rows(maxFilesPerTrigger="400"))
    [*_, decided] = DecisionLog(CheckpointStore.open(str(folders.at / "ck"))).of_batch(0)
    [read] = decided.read
    assert (read.name, len(read.holds)) == ("json", 32)
    assert len(msgspec.json.encode(read)) < 1000
