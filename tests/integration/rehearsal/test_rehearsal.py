"""A new version of an app evaluates delivered batches into nothing, and its rows are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.core.checkpoint.rehearsal import REHEARSAL, REPORT, CheckpointCopy, RehearsalReport
from airflow_eos.errors import ConfigurationError
from airflow_eos.local import EmbeddedKafka
from airflow_eos.sinks import FileSink, KafkaSink, Output
from airflow_eos.sources import ArrowKafkaSource
from tests.integration.hazards.spark_job import Job
from tests.integration.policy.test_state_store import configured
from tests.support.topics import read_messages, read_topic


class Rehearsed(Job):
    """A pipeline whose batches have at most ``limit`` rows, and rehearsals beside it."""

    environment: pytest.MonkeyPatch
    limit = 100
    keep = ""
    _count = 0

    def rows(self) -> DataFrame:
        return self.frame(maxOffsetsPerTrigger=str(self.limit))

    def counts(self, add: int = 0) -> DataFrame:
        counted = self.rows().groupBy("key").count()
        return counted.select("key", (F.col("count") + add).cast("string").alias("value"))

    def rehearse(
        self, df: DataFrame | ArrowKafkaSource, batches: int = 20, **changes: Any
    ) -> RehearsalReport:
        """As the command does it, but in this process."""
        with pytest.raises(SystemExit) as ended:
            self.begin(df, batches, **changes)
        assert ended.value.code == 0
        report = CheckpointStore.open(self.scratch).read(REPORT, RehearsalReport)
        assert report is not None
        return report

    def begin(self, df: DataFrame | ArrowKafkaSource, batches: int = 20, **changes: Any) -> None:
        """The same to its end, whichever that is."""
        self._count += 1
        told: dict[str, Any] = {"checkpoint": self.checkpoint, "scratch": self.scratch}
        told |= {"batches": batches, "keep": self.keep}
        with self.environment.context() as started:
            started.setenv(REHEARSAL, msgspec.json.encode(told).decode())
            self.deliver(df=df, **changes)

    @property
    def scratch(self) -> str:
        return str(self.folder / f"scratch-{self._count}")


@pytest.fixture
def job(
    spark: SparkSession, kafka_broker: EmbeddedKafka, tmp_path: Path, monkeypatch
) -> Iterator[Rehearsed]:
    made = Rehearsed(kafka_broker, tmp_path)
    made.spark, made.environment = spark, monkeypatch
    yield made
    for query in spark.streams.active:
        query.stop()


def content(folder: str) -> dict[str, str]:
    """Every file of a folder, hidden ones too, by what is in it and when it was written."""
    return {
        str(path.relative_to(folder)): f"{hashlib.sha256(path.read_bytes()).hexdigest()} "
        f"{path.stat().st_mtime_ns}"
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def refusing(door: str) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError(f"a rehearsal has no use for {door}()")

    return refuse


def test_the_same_app_gives_the_same_rows_and_leaves_no_trace(
    job: Rehearsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.feed(250)
    job.deliver(df=job.rows())
    before, had = content(job.checkpoint), sorted(job.visible())
    for door in ("connect", "opened"):
        monkeypatch.setattr(KafkaSink, door, refusing(door))
    report = job.rehearse(job.rows())
    assert (report.exit_status, report.error) == (0, "")
    assert [(each.batch, each.verdict) for each in report.compared] == [
        (number, "same") for number in range(3)
    ]
    assert sum(each.rehearsed or 0 for each in report.compared) == 250
    assert content(job.checkpoint) == before
    # Tasks run in processes of their own: what they write is in the log, readers have it or not.
    written = read_topic(job.bootstrap, f"{job.name}-out", isolation="read_uncommitted")
    assert sorted(written) == sorted(job.visible()) == had


@pytest.mark.long
def test_a_version_that_would_read_other_topics_is_not_the_same(job: Rehearsed) -> None:
    """The offsets of a delivered batch name the topics that the old version reads, and no other."""
    job.feed(50)
    job.deliver(df=job.rows())
    name = f"{job.name}-in"
    job.broker.create_topic(f"{name}-2", 1)
    common = {"kafka.bootstrap.servers": job.bootstrap, "startingOffsets": "earliest"}

    def reading(**options: str) -> RehearsalReport:
        given = {each.replace("__", "."): value for each, value in options.items()}
        source = job.spark.readStream.format("kafka").options(**(common | given))
        return job.rehearse(source.load().select("key", "value"))

    def told(report: RehearsalReport) -> tuple[str, str]:
        return report.verdict, " ".join(each.why for each in report.compared if not each.output)

    assert told(reading(subscribe=name)) == ("same", "")
    faster = {"maxOffsetsPerTrigger": "7", "kafka__max.poll.records": "100"}
    assert told(reading(subscribe=name, **faster)) == ("same", "")
    elsewhere = job.bootstrap.replace("127.0.0.1", "localhost")
    assert told(reading(subscribe=name, kafka__bootstrap__servers=elsewhere)) == ("same", "")
    for options, names in (
        ({"subscribe": f"{name},{name}-2"}, f"{name}-2"),
        ({"subscribePattern": f"{name}.*"}, "subscribepattern is"),
        ({"subscribe": name, "kafka__isolation.level": "read_committed"}, "read_committed"),
        ({"subscribe": name, "failOnDataLoss": "false"}, "failondataloss is false"),
    ):
        verdict, why = told(reading(**options))
        assert (verdict, names in why) == ("differs", True), why
    verdict, why = told(reading(subscribe=name, startingOffsets="latest"))
    assert (verdict, "startingoffsets is latest" in why) == ("not known", True)


@pytest.mark.long
def test_what_an_arrow_source_reads_is_compared_as_that_of_spark(job: Rehearsed) -> None:
    job.feed(20)
    name = f"{job.name}-in"
    job.broker.create_topic(f"{name}-2", 1)
    one = ArrowKafkaSource(job.bootstrap, name).select("key", "value")
    job.deliver(df=one)
    assert job.rehearse(one).verdict == "same"
    report = job.rehearse(replace(one, topics=[name, f"{name}-2"], committed_only=False))
    assert report.verdict == "differs"
    assert {f"{name}-2" in each.why for each in report.compared if not each.output} == {True, False}


def test_rows_are_kept_in_an_empty_topic_and_in_no_other(job: Rehearsed) -> None:
    job.feed(250)
    job.deliver(df=job.rows())
    had = sorted(job.visible())
    job.broker.create_topic(f"{job.name}-kept", 2)
    job.keep = f"{job.name}-kept"
    changed = job.rows().withColumn("value", F.upper(F.col("value").cast("string")))
    report = job.rehearse(changed, batches=2)
    assert report.exit_status == 1
    kept = read_messages(job.bootstrap, job.keep)
    assert len(kept) == sum(each.rehearsed or 0 for each in report.compared) == 150
    assert {dict(each.headers())["eos-batch"] for each in kept} == {b"1", b"2"}
    assert {each.value().decode() for each in kept} <= {value.upper() for _, value in job.expected}
    assert sorted(job.visible()) == had
    for full in (job.keep, f"{job.name}-out"):
        job.keep = full
        with pytest.raises(ConfigurationError, match="Expected an empty topic"):
            job.begin(changed)
    assert sorted(job.visible()) == had


@pytest.mark.proof
def test_a_changed_app_is_told_by_key(job: Rehearsed) -> None:
    job.feed(200)
    job.deliver(df=job.rows())
    had = sorted(job.visible())
    rows = job.rows().withColumn(
        "value",
        F.when(F.col("key").cast("string").eqNullSafe("k7"), F.lit(b"other")).otherwise(
            F.col("value")
        ),
    )
    more = rows.where("key != 'k8'").withColumn(
        "key",
        F.when(F.col("key").cast("string").eqNullSafe("k9"), F.lit(b"nobody")).otherwise(
            F.col("key")
        ),
    )
    report = job.rehearse(more, batches=1)
    [found] = report.compared
    assert report.exit_status == 1
    assert (found.batch, found.verdict, found.delivered) == (1, "differs", 100)
    difference = found.difference
    assert difference is not None
    assert (difference.changed, difference.missing, difference.new) == (2, 4, 2)
    changed = difference.examples[0]
    assert (changed.what, changed.key, changed.rehearsed) == ("changed", "k7", "value=other")
    assert changed.delivered.startswith(f"value={job.name}:")
    assert sorted(job.visible()) == had


@pytest.mark.proof
def test_outputs_are_compared_each_and_one_that_is_gone_or_new_is_told(job: Rehearsed) -> None:
    def to(prefix: str, topic: str = "") -> KafkaSink:
        topic = topic or f"{job.name}-out"
        return replace(job.sink, topic=topic, transactional_id_prefix=f"{job.name}-{prefix}")

    job.feed(100)
    old: Any = [Output(name, to(name), rows=["key", "value"]) for name in ("kept", "gone", "moved")]
    job.deliver(old, df=job.rows())
    moved = Output("moved", to("moved", f"{job.name}-in"), rows=["key", "value"])
    new = [old[0], Output("new", to("new"), rows=["key", "value"]), moved]
    found = {each.output: each for each in job.rehearse(job.rows(), sink=new).compared}
    assert {name: each.verdict for name, each in found.items()} == {
        "kept": "same",
        "gone": "differs",
        "new": "differs",
        "moved": "differs",
    }
    assert (found["gone"].delivered, found["gone"].rehearsed) == (100, 0)
    assert found["gone"].difference.missing == found["new"].difference.new == 100
    assert "would go to" in found["moved"].why
    assert len(job.visible()) == 300


@pytest.mark.proof
@pytest.mark.parametrize("store", ["default", pytest.param("rocksdb", marks=pytest.mark.proof)])
def test_a_stateful_app_goes_on_from_the_state_at_that_batch(job: Rehearsed, store: str) -> None:
    with configured(job) if store == "rocksdb" else nullcontext():
        job.feed(500, keys=20)
        job.deliver(df=job.counts(), output_mode="update")
        before = content(job.checkpoint)
        same = job.rehearse(job.counts(), batches=3, output_mode="update")
        other = job.rehearse(job.counts(add=1), batches=2, output_mode="update")
    assert [(each.batch, each.verdict) for each in same.compared] == [
        (2, "same"),
        (3, "same"),
        (4, "same"),
    ]
    assert other.exit_status == 1
    assert [each.difference.changed for each in other.compared] == [20, 20]
    assert content(job.checkpoint) == before


@pytest.mark.proof
def test_windows_close_by_the_watermark_that_the_new_version_makes(job: Rehearsed) -> None:
    def windows(delay: str) -> DataFrame:
        at = F.timestamp_seconds(F.split(F.col("value").cast("string"), ":")[1].cast("long"))
        timed = job.rows().withColumn("at", at).withWatermark("at", delay)
        counted = timed.groupBy(F.window("at", "20 seconds")).count()
        return counted.select(
            F.col("window.start").cast("string").alias("key"),
            F.col("count").cast("string").alias("value"),
        )

    job.feed(500)
    job.deliver(df=windows("5 seconds"))
    same = job.rehearse(windows("5 seconds"))
    assert same.exit_status == 0, same
    assert sum(each.rehearsed or 0 for each in same.compared) == len(job.visible()) > 0
    later = job.rehearse(windows("90 seconds"))
    assert later.exit_status == 1
    assert sum(each.difference.missing for each in later.compared if each.difference) > 0


def test_an_app_that_would_start_elsewhere_is_refused(job: Rehearsed, tmp_path: Path) -> None:
    job.feed(20)
    job.deliver(df=job.rows())
    other = str(tmp_path / "other")
    with pytest.raises(ConfigurationError, match="would start on"):
        job.rehearse(job.rows(), checkpoint_location=other)
    assert not Path(other).exists()


def test_a_batch_whose_input_is_gone_is_not_known_and_the_next_one_is_compared(
    job: Rehearsed,
) -> None:
    job.feed(200)
    job.deliver(df=job.rows())
    ends = read_state(CheckpointStore.open(job.checkpoint)).sources[0].start or {}
    admin = AdminClient({"bootstrap.servers": job.bootstrap})
    gone = [
        TopicPartition(topic, partition, offset)
        for topic, partitions in ends.items()
        for partition, offset in partitions.items()
    ]
    for answer in admin.delete_records(gone).values():
        answer.result(30)
    report = job.rehearse(job.rows())
    assert [(each.batch, each.verdict) for each in report.compared] == [
        (0, "not known"),
        (1, "same"),
    ]
    assert "not in its log any more" in report.compared[0].why
    assert report.exit_status == 3


def test_state_that_is_gone_is_no_failure_of_the_new_version(job: Rehearsed) -> None:
    job.feed(300, keys=20)
    job.deliver(df=job.counts(), output_mode="update")
    for each in Path(job.checkpoint, "state").rglob("2.delta"):
        each.unlink()
    report = job.rehearse(job.counts(), batches=1, output_mode="update")
    [found] = report.compared
    assert (found.batch, found.verdict, report.exit_status) == (2, "not known", 3)
    assert "files of the state are gone" in found.why


def test_input_that_is_compacted_proves_nothing_of_rows_that_are_fewer_or_counted(
    job: Rehearsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are gone are missing of no version, and a count lacks them in its value."""
    compact(job)
    job.feed(200, keys=20)
    job.deliver(df=job.counts(), output_mode="update")
    begun: list[int] = []
    begin = CheckpointCopy.begin

    def watched(copy: CheckpointCopy, batch: int) -> None:
        begun.append(batch)
        begin(copy, batch)

    monkeypatch.setattr(CheckpointCopy, "begin", watched)
    counted = job.rehearse(job.counts(add=1), output_mode="update")
    assert [each.verdict for each in counted.compared] == ["not known", "not known"]
    assert begun == [0, 1], "the state of the first one lacks rows, or not: nobody knows"
    assert "is compacted" in counted.compared[0].why
    assert counted.exit_status == 3
    assert job.rehearse(job.counts(), output_mode="update").exit_status == 0


@pytest.mark.proof
def test_of_compacted_input_other_rows_differ_and_fewer_are_not_known(job: Rehearsed) -> None:
    compact(job)
    job.feed(100)
    job.deliver(df=job.rows())
    [fewer] = job.rehearse(job.rows().where("key != 'k8'")).compared
    assert (fewer.verdict, fewer.difference) == ("not known", None)
    other = job.rows().withColumn("value", F.upper(F.col("value").cast("string")))
    assert job.rehearse(other).exit_status == 1


def compact(job: Rehearsed) -> None:
    resource = ConfigResource("TOPIC", f"{job.name}-in")
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource.add_incremental_config(entry)
    admin = AdminClient({"bootstrap.servers": job.bootstrap})
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(30)


def test_columns_of_files_that_are_others_are_never_the_same(
    job: Rehearsed, tmp_path: Path
) -> None:
    """By Spark's hash a column has no name; brought into one type 1.5 is 1; [] is not null."""

    def to(name: str = "length", length: str = "double", many: str = "array()") -> Any:
        rows = [
            "cast(value AS string) AS value",
            f"cast(length(value) + 0.5 AS {length}) AS {name}",
            f"cast({many} AS array<int>) AS `m``a.ny`",
            "1 AS more",
            "if(length(value) > 0, null, current_timestamp()) AS timestamp",
        ]
        return [Output("files", FileSink(str(tmp_path / "out")), rows=rows)]

    job.feed(20)
    job.deliver(to(), df=job.rows())
    told = {
        "same": to(),
        "its columns are others: length is double, and would be gone": to(name="size"),
        "length is double, and would be int": to(length="int"),
        "changed": to(many="null"),
    }
    for said, sink in told.items():
        [found] = job.rehearse(job.rows(), sink=sink).compared
        assert found.verdict == ("same" if said == "same" else "differs"), said
        assert said in found.why or said in {"same", "changed"}
    assert found.difference is not None
    assert (found.difference.missing, found.difference.new) == (20, 20)


def test_an_output_without_a_row_is_not_the_same_where_the_other_version_has_none(
    job: Rehearsed,
) -> None:
    """A start of it would be refused: other outputs take part than in the checkpoint."""

    def to(name: str, where: str) -> Output:
        sink = replace(job.sink, transactional_id_prefix=f"{job.name}-{name}")
        rows = f"if({where}, struct(key, value), null)"
        return Output(name, sink, rows=rows)

    job.feed(20)
    job.deliver([to("all", "true"), to("none", "false")], df=job.rows())
    report = job.rehearse(job.rows(), sink=[to("all", "true"), to("other", "false")])
    found = {each.output: (each.verdict, each.why) for each in report.compared}
    assert found == {
        "all": ("same", ""),
        "none": ("differs", "the new version has no such output"),
        "other": ("differs", "the old version has no such output"),
    }


@pytest.mark.proof
def test_a_version_that_fails_is_told_with_the_batch(job: Rehearsed) -> None:
    job.feed(200)
    job.deliver(df=job.rows())
    fails = job.rows().withColumn(
        "value",
        F.when(
            F.col("key").cast("string").eqNullSafe("k49"), F.raise_error(F.lit("no k49"))
        ).otherwise("x"),
    )
    report = job.rehearse(fails, batches=1)
    assert report.exit_status == 2
    assert report.error.startswith("batch 1: ")
