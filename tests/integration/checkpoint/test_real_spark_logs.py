"""The stand-ins for Spark's offset and commit logs are no kinder than Spark's own classes.

Each test does the same steps to both, and wants the same answers and the same files. The one of
``tests/model`` leaves things out, and says which: it does the steps that are left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pyspark
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, OffsetLog
from airflow_eos.core.checkpoint.locations import LocalFiles
from airflow_eos.core.checkpoint.mending import beside, damage
from airflow_eos.core.delivery.policy import CheckpointPolicy
from airflow_eos.core.delivery.spark_session import MANAGER, QuerySettings, quick_logs
from airflow_eos.local.jars import java_program
from tests.chaos import spark_loop as spark_files
from tests.chaos.journal import Journal
from tests.chaos.processes import wait_until
from tests.chaos.spark_data import Offset, SparkError
from tests.chaos.spark_loop import MetadataLog, MicroBatches, read_timestamp_ms
from tests.model import spark as spark_of_the_model

SOURCE = Path(__file__).parents[2] / "java" / "checkpoint" / "PausedFileSystem.java"
JARS = Path(pyspark.__file__).parent / "jars"
LOSES = "SparkConcurrentModificationException"
PAUSED = {
    "fs.AbstractFileSystem.file.impl": "PausedFileSystem",
    "fs.file.impl": "PausedFileSystem$Disk",
    "fs.file.impl.disable.cache": "true",
}
"""For either manager of Spark's logs."""

FILES = 6
RETAINED = 2
OPTIONS = {
    "spark.sql.streaming.minBatchesToRetain": str(RETAINED),
    "spark.sql.streaming.asyncLogPurge.enabled": "false",  # in its turn, to be compared
}

Log = Any
Steps = Callable[[Callable[[], Log], Path], list[Any]]


def content(number: int) -> str:
    """A commit whose watermark tells who wrote it."""
    return f'v1\n{{"nextBatchWatermarkMs":{number}}}'


@dataclass
class SparkLog:
    """``CommitLog``, which adds nothing to ``HDFSMetadataLog`` but how an entry is written."""

    spark: SparkSession
    folder: Path

    def __post_init__(self) -> None:
        classes = self.spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing
        self._log = classes.CommitLog(self.spark._jsparkSession, str(self.folder), False)
        self._metadata = classes.CommitMetadata

    def add(self, batch: int, text: str) -> bool:
        try:
            return bool(self._log.add(batch, self._metadata.apply(text.partition("\n")[2])))
        except Exception as error:
            if LOSES in str(error):
                raise SparkError(LOSES) from error
            raise

    def latest(self) -> int | None:
        found = self._log.getLatestBatchId()
        return int(found.get()) if found.isDefined() else None

    def listed(self) -> list[int]:
        return list(self._log.listBatchesOnDisk())

    def purge(self, before: int) -> None:
        self._log.purge(before)

    def get(self, batch: int) -> str | None:
        found = self._log.get(batch)
        return content(found.get().nextBatchWatermarkMs()) if found.isDefined() else None


@dataclass
class ModelLog:
    """The model's log, on a disk."""

    folder: Path
    objects: Any = None

    def __post_init__(self) -> None:
        checkpoint = self.folder.parent
        self._log = spark_of_the_model.MetadataLog(
            CheckpointStore.open(checkpoint),
            self.objects or LocalFiles(checkpoint),
            self.folder.name,
        )

    def add(self, batch: int, text: str) -> bool:
        return self._log.add(batch, text.encode())

    def latest(self) -> int | None:
        return self._log.latest()

    def purge(self, before: int) -> None:
        self._log.purge(before)

    def get(self, batch: int) -> str | None:
        data = self._log.get(batch)
        return None if data is None else data.decode()


@pytest.fixture(params=["as Spark chooses", "without processes"])
def manager(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Who writes the logs on a disk: see :func:`quick_logs`."""
    if request.param == "as Spark chooses":
        yield
        return
    with quick_logs(spark, str(tmp_path)):
        assert "FileSystemBased" in str(spark.conf.get(MANAGER))
        yield


def files(folder: Path) -> dict[str, str]:
    """What is there to be read; checksums and temporary files are hidden."""
    return {f.name: f.read_text() for f in folder.iterdir() if f.is_file() and f.name[0] != "."}


def adds_twice(open_log: Callable[[], Log], _folder: Path) -> list[Any]:
    first, second = open_log(), open_log()
    return [
        first.latest(),
        first.add(0, content(1)),
        first.add(0, content(2)),
        second.add(0, content(3)),
        second.latest(),
    ]


def adds_again_after_a_purge(open_log: Callable[[], Log], folder: Path) -> list[Any]:
    awake, sleeper = open_log(), open_log()
    told: list[Any] = [log.add(n, content(n)) for n in range(2) for log in (awake, sleeper)]
    told += [awake.add(n, content(n)) for n in range(2, 7)]
    awake.purge(5)
    told += [sleeper.add(1, content(9)), sleeper.add(2, content(9)), sleeper.add(5, content(9))]
    return [*told, files(folder), sleeper.latest(), open_log().latest(), open_log().get(2)]


def leaves_what_came_below_a_purge(open_log: Callable[[], Log], folder: Path) -> list[Any]:
    """Up to three numbers are purged without listing; more are looked for."""
    awake, sleeper = open_log(), open_log()
    told: list[Any] = [awake.add(n, content(n)) for n in range(12)]
    awake.purge(5)
    told.append(sleeper.add(2, content(99)))
    for before in (6, 8, 11):
        awake.purge(before)
        told.append(sorted(files(folder)))
    awake.purge(15)
    return [*told, sorted(files(folder)), awake.latest()]


def remembers_what_it_added(open_log: Callable[[], Log], folder: Path) -> list[Any]:
    """The two latest that it added itself, whatever became of the files."""
    log = open_log()
    told: list[Any] = [log.add(n, content(n)) for n in range(4)]
    for file in list(folder.iterdir()):
        file.unlink()
    told += [log.latest(), log.get(3), log.get(1), log.add(3, content(9)), log.add(1, content(9))]
    (folder / "7").write_text(content(7))
    told += [log.latest(), log.get(7), log.get(2)]
    return [*told, sorted(files(folder))]


def takes_every_number_for_a_batch(open_log: Callable[[], Log], folder: Path) -> list[Any]:
    log = open_log()
    told: list[Any] = [log.add(n, content(n)) for n in range(2)]
    for name in (".9.crc", ".8.0b5e.tmp", "6.tmp", "x", "-1", "007"):
        (folder / name).write_text(content(5))
    return [*told, log.listed(), open_log().latest()]


@pytest.mark.long
@pytest.mark.parametrize(
    "steps",
    [
        adds_twice,
        adds_again_after_a_purge,
        leaves_what_came_below_a_purge,
        remembers_what_it_added,
        takes_every_number_for_a_batch,
    ],
)
@pytest.mark.usefixtures("manager")
def test_the_stand_in_answers_as_spark(spark: SparkSession, tmp_path: Path, steps: Steps) -> None:
    real, played = tmp_path / "real", tmp_path / "played"
    of_spark = steps(lambda: SparkLog(spark, real), real)
    assert steps(lambda: MetadataLog(played), played) == of_spark
    assert files(played) == files(real)


@pytest.mark.parametrize("steps", [adds_twice, adds_again_after_a_purge])
@pytest.mark.usefixtures("manager")
def test_the_model_answers_as_spark(spark: SparkSession, tmp_path: Path, steps: Steps) -> None:
    real, played = tmp_path / "real", tmp_path / "played"
    of_spark = steps(lambda: SparkLog(spark, real), real)
    assert steps(lambda: ModelLog(played), played) == of_spark
    assert files(played) == files(real)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    jars = sorted(JARS.glob("hadoop-client-*.jar"))
    subprocess.run(
        [
            str(Path(java_program()).with_name("javac")),
            *("-cp", os.pathsep.join(map(str, jars))),
            *("-d", str(folder), str(SOURCE)),
        ],
        check=True,
        timeout=300,
    )
    return folder


@pytest.fixture
def pauses(spark: SparkSession, classes: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder that holds up whoever opens a log from now on; see PausedFileSystem."""
    jvm: Any = spark._jvm
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    loader, before = (
        configuration.getClassLoader(),
        {each: configuration.get(each) for each in PAUSED},
    )
    urls = spark.sparkContext._gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.io.File(str(classes)).toURI().toURL()
    folder = tmp_path / "pauses"
    folder.mkdir()
    configuration.setClassLoader(jvm.java.net.URLClassLoader(urls, loader))
    for name, value in {**PAUSED, "paused.folder": str(folder)}.items():
        configuration.set(name, value)
    yield folder
    for name, was in {**before, "paused.folder": None}.items():
        if was is None:
            configuration.unset(name)
        else:
            configuration.set(name, was)
    configuration.setClassLoader(loader)


@pytest.mark.parametrize(
    ("step", "place", "answer"),
    [("create", "0-looked", SparkError), ("rename", "0-renaming", True)],
    ids=["between two looks, the later one loses", "after both looks, both win"],
)
@pytest.mark.usefixtures("manager")
def test_two_that_add_at_once(
    spark: SparkSession,
    tmp_path: Path,
    pauses: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    place: str,
    answer: object,
) -> None:
    """One is held up in its add, and the other adds the same number meanwhile."""
    real, played = tmp_path / "real" / "0", tmp_path / "played" / "0"
    slow, fast = SparkLog(spark, real), SparkLog(spark, real)
    told: list[object] = []
    (pauses / step).touch()
    adding = threading.Thread(target=lambda: told.append(outcome(slow)))
    adding.start()
    assert wait_until((pauses / "held").exists, 60)
    assert fast.add(1, content(2))
    (pauses / "held").unlink()
    adding.join(120)
    assert told == [answer]

    played_slow, played_fast = MetadataLog(played), MetadataLog(played)

    def meanwhile(name: str) -> None:
        if name == place:
            monkeypatch.undo()
            assert played_fast.add(1, content(2))

    monkeypatch.setattr(spark_files, "failpoint", meanwhile)
    assert outcome(played_slow) == answer
    assert files(played) == files(real)
    if answer is True:  # the model has one look, so there both always add
        assert files(of_the_model(tmp_path / "model" / "0")) == files(real)
    left = [sum(f.name.endswith(".tmp") for f in folder.iterdir()) for folder in (played, real)]
    assert left[0] == left[1]


@pytest.mark.parametrize(
    ("location", "users"),
    [
        ("s3a://bucket/folder", None),
        ("hdfs://namenode/folder", None),
        ("/data/folder", "theirs.Own"),
    ],
)
def test_logs_that_are_on_no_disk_or_that_somebody_chose_are_left_alone(
    spark: SparkSession, location: str, users: str | None
) -> None:
    if users is not None:
        spark.conf.set(MANAGER, users)
    try:
        with quick_logs(spark, location):
            assert spark.conf.get(MANAGER, None) == users
        assert spark.conf.get(MANAGER, None) == users
    finally:
        spark.conf.unset(MANAGER)


def test_a_query_of_ours_writes_its_logs_so_and_no_other_query_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    def ours(frame: DataFrame) -> StreamingQuery:
        policy, location = CheckpointPolicy(), str(tmp_path / "ours")
        settings = QuerySettings(location, None, {"availableNow": True}, policy, "append", None)
        return settings.started(frame, lambda _rows, _batch: None)

    def theirs(frame: DataFrame) -> StreamingQuery:
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "theirs"))
        return writer.format("noop").trigger(availableNow=True).start()

    rows = spark.readStream.format("rate").load()
    managers = []
    for start in (ours, theirs):
        query = start(rows)
        try:
            running = query._jsq.streamingQuery()
            logs = (running.offsetLog(), running.commitLog())
            managers += [each.fileManager().getClass().getSimpleName() for each in logs]
        finally:
            query.stop()
    expected = ["FileSystemBased", "FileSystemBased", "FileContextBased", "FileContextBased"]
    assert managers == [f"{each}CheckpointFileManager" for each in expected]


def test_both_logs_are_made_while_the_setting_stands(spark: SparkSession, tmp_path: Path) -> None:
    """Else the query's thread makes them, by the setting that it finds when it comes to that."""
    seen: list[Any] = []

    def made() -> None:
        seen.append(spark.conf.get(MANAGER, None))

    running = SimpleNamespace(offsetLog=made, commitLog=made)
    query: Any = SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: running))
    with quick_logs(spark, str(tmp_path)) as make_logs:
        make_logs(query)
    assert len(seen) == 2
    assert all("FileSystemBased" in str(each) for each in seen)


WRITER = """
import os, sys
from py4j.protocol import Py4JError
from pyspark.java_gateway import launch_gateway

folder, kind, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
gateway = launch_gateway()
hadoop = gateway.jvm.org.apache.hadoop
managers = gateway.jvm.org.apache.spark.sql.execution.streaming.checkpointing
make = getattr(managers, kind + "BasedCheckpointFileManager")
manager = make(hadoop.fs.Path(folder), hadoop.conf.Configuration())
print(gateway.proc.pid, flush=True)
for number in range(first, first + 10_000):
    stream = manager.createAtomic(hadoop.fs.Path(folder, str(number)), False)
    stream.write(b"%07d\\n" % number * 40_000)
    stream.close()
    print(number, flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["FileContext", "FileSystem"])
def test_a_jvm_that_is_killed_while_it_writes_leaves_an_entry_whole_or_not_at_all(
    tmp_path: Path, kind: str
) -> None:
    """With either manager; and the next driver goes on where it stood."""
    folder, first = tmp_path / "offsets", 0
    folder.mkdir()
    for killed_in in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), kind, str(first)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as writer:
            assert writer.stdout is not None
            jvm = int(writer.stdout.readline())
            while int(writer.stdout.readline()) < first + 3:
                pass
            time.sleep(killed_in * 0.002)
            os.kill(jvm, signal.SIGKILL)
        there = sorted(int(each.name) for each in folder.iterdir() if each.name.isdecimal())
        assert there == list(range(there[-1] + 1)), "in order, without a gap"
        assert there[-1] >= first + 3
        for number in range(first, there[-1] + 1):
            assert (folder / str(number)).read_bytes() == b"%07d\n" % number * 40_000
        first = there[-1] + 1


def of_the_model(folder: Path) -> Path:
    """Its log, once two have looked and then both have added."""
    fast, objects = ModelLog(folder), LocalFiles(folder.parent)

    def put(path: str, file: bytes, *, mode: Literal["create", "overwrite"]) -> None:
        assert fast.add(1, content(2))
        objects.put(path, file, mode=mode)

    assert outcome(ModelLog(folder, SimpleNamespace(put=put)))
    return folder


def outcome(log: Log) -> object:
    try:
        return log.add(1, content(1))
    except SparkError:
        return SparkError


def in_the_logs(checkpoint: Path) -> tuple[list[str], list[str]]:
    """The numbers in ``offsets`` and in ``commits``."""
    offsets, commits = (sorted(files(checkpoint / log)) for log in ("offsets", "commits"))
    return offsets, commits


@dataclass
class RealQuery:
    """A query over small files, one a batch; its logs as they are whenever a batch runs."""

    spark: SparkSession
    folder: Path
    seen: list[tuple[int, tuple[list[str], list[str]]]] = field(default_factory=list)
    evaluated_at_ms: dict[int, list[int]] = field(default_factory=dict)

    def run(self, stop_in: int | None = None) -> None:
        checkpoint = self.folder / "checkpoint"

        def deliver(df: DataFrame, batch: int) -> None:
            self.seen.append((batch, in_the_logs(checkpoint)))
            [at] = df.select((F.unix_millis("at")).alias("at")).distinct().collect()
            self.evaluated_at_ms.setdefault(batch, []).append(at["at"])
            if batch == stop_in:
                raise RuntimeError("killed in the middle of a batch")

        rows = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "in"))
        query = (
            rows.select("value", F.current_timestamp().alias("at"))
            .writeStream.foreachBatch(deliver)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        with suppress(StreamingQueryException):
            query.awaitTermination()


@dataclass(frozen=True)
class OneByOne:
    """A source of one partition: a row a batch, as ``maxFilesPerTrigger`` 1 gives a file."""

    rows: int

    def initial(self) -> Offset:
        return {"in": {"0": 0}}

    def latest(self, start: Offset) -> Offset:
        return {"in": {"0": min(self.rows, start["in"]["0"] + 1)}}


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Iterator[RealQuery]:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
    for name, value in OPTIONS.items():
        spark.conf.set(name, value)
    yield RealQuery(spark, tmp_path)
    for name in OPTIONS:
        spark.conf.unset(name)


@pytest.mark.long
def test_a_query_purges_and_starts_again_as_spark_does(query: RealQuery, tmp_path: Path) -> None:
    """What the logs hold while each batch runs, in two runs, the first killed in its batch 4."""
    query.run(stop_in=4)
    query.run()
    played = tmp_path / "played"
    played.mkdir()
    journal = Journal(played / "history.jsonl", "played")
    seen = []
    for killed_in in (4, None):
        batches = MicroBatches(played, OneByOne(FILES), journal, retained=RETAINED)
        batch = batches.resume() or batches.plan()
        while batch is not None:
            seen.append((batch.number, in_the_logs(played)))
            if batch.number == killed_in:
                break
            batches.commit(batch)
            batch = batches.plan()
    assert [number for number, _ in seen] == [0, 1, 2, 3, 4, 4, 5]
    assert query.seen == seen


@pytest.mark.long
def test_a_batch_that_runs_again_keeps_its_time(query: RealQuery, tmp_path: Path) -> None:
    query.run(stop_in=2)
    planned = (tmp_path / "checkpoint" / "offsets" / "2").read_text()
    query.run()
    assert query.evaluated_at_ms[2] == [read_timestamp_ms(planned)] * 2
    assert len(query.evaluated_at_ms[3]) == 1

    played = tmp_path / "played"
    played.mkdir()
    journal = Journal(played / "history.jsonl", "played")
    first = MicroBatches(played, OneByOne(9), journal)
    assert first.resume() is None
    planned_first = first.plan()
    again = MicroBatches(played, OneByOne(9), journal)
    assert again.resume() == planned_first
    assert again.evaluated_at(0) == first.evaluated_at(0)


def by_hadoop(spark: SparkSession, path: Path) -> tuple[Any, Any]:
    """Hadoop's file system of a path, as Spark reads and writes its ``metadata``, and the path."""
    there = spark._jvm.org.apache.hadoop.fs.Path(str(path))
    return there.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), there


def read_by_hadoop(spark: SparkSession, path: Path) -> bytes | None:
    """None where Hadoop refuses, or gives nothing."""
    files, there = by_hadoop(spark, path)
    try:
        return (
            bytes(spark._jvm.org.apache.commons.io.IOUtils.toByteArray(files.open(there))) or None
        )
    except Py4JJavaError:
        return None


@pytest.mark.parametrize(
    "damaged",
    [lambda _: b"", lambda whole: whole[:8], lambda whole: bytes(len(whole))],
    ids=["empty", "cut off", "NULs"],
)
def test_spark_reads_what_stands_beside_a_damaged_sum_once_that_is_gone(
    spark: SparkSession, tmp_path: Path, damaged: Callable[[bytes], bytes]
) -> None:
    """Before, it may have read nothing: Hadoop believes a sum that is cut off."""
    store = CheckpointStore.open(tmp_path)
    store.put("offsets/0", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n{"in":{"0":1}}')
    written = {
        "metadata": b'{"id":"5c2ef85f-bbaa-4e24-9e8b-8d1f1c8f6a10"}',
        "commits/0": content(7).encode(),
    }
    for name, data in written.items():
        files, there = by_hadoop(spark, tmp_path / name)
        out = files.create(there)
        out.write(data)
        out.close()
    assert damage(store, DecisionLog(store)) == (), "our sums are Hadoop's"
    for name, data in written.items():
        sums = tmp_path / beside(name)
        sums.write_bytes(damaged(sums.read_bytes()))
        assert read_by_hadoop(spark, tmp_path / name) in (data, None)
    OffsetLog(store, DecisionLog(store)).repair()
    for name, data in written.items():
        assert read_by_hadoop(spark, tmp_path / name) == data
