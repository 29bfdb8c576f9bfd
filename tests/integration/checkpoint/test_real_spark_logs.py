"""The chaos suite's stand-in for Spark's offset and commit logs is no kinder than Spark's classes.

Each test does the same steps to both, and wants the same answers and the same files.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from airflow_eos.local.java import java_program
from tests.chaos import spark_files
from tests.chaos.processes import wait_until
from tests.chaos.spark_files import MetadataLog, SparkError

pytestmark = pytest.mark.integration

SOURCE = Path(__file__).parents[2] / "java" / "checkpoint" / "PausedFileSystem.java"
JARS = Path(pyspark.__file__).parent / "jars"
LOSES = "SparkConcurrentModificationException"
FILE_SYSTEM = "fs.AbstractFileSystem.file.impl"

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
def test_the_stand_in_answers_as_spark(spark: SparkSession, tmp_path: Path, steps: Steps) -> None:
    real, played = tmp_path / "real", tmp_path / "played"
    of_spark = steps(lambda: SparkLog(spark, real), real)
    assert steps(lambda: MetadataLog(played), played) == of_spark
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
        timeout=120,
    )
    return folder


@pytest.fixture
def pauses(spark: SparkSession, classes: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder that holds up whoever opens a log from now on; see PausedFileSystem."""
    jvm: Any = spark._jvm
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    before = configuration.getClassLoader(), configuration.get(FILE_SYSTEM)
    urls = spark.sparkContext._gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.io.File(str(classes)).toURI().toURL()
    folder = tmp_path / "pauses"
    folder.mkdir()
    configuration.setClassLoader(jvm.java.net.URLClassLoader(urls, before[0]))
    configuration.set(FILE_SYSTEM, "PausedFileSystem")
    configuration.set("paused.folder", str(folder))
    yield folder
    configuration.set(FILE_SYSTEM, before[1])
    configuration.unset("paused.folder")
    configuration.setClassLoader(before[0])


@pytest.mark.parametrize(
    ("step", "place", "answer"),
    [("create", "0-looked", SparkError), ("rename", "0-renaming", True)],
    ids=["between two looks, the later one loses", "after both looks, both win"],
)
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
    adding.join(60)
    assert told == [answer]

    played_slow, played_fast = MetadataLog(played), MetadataLog(played)

    def meanwhile(name: str) -> None:
        if name == place:
            monkeypatch.undo()
            assert played_fast.add(1, content(2))

    monkeypatch.setattr(spark_files, "failpoint", meanwhile)
    assert outcome(played_slow) == answer
    assert files(played) == files(real)
    left = [sum(f.name.endswith(".tmp") for f in folder.iterdir()) for folder in (played, real)]
    assert left[0] == left[1]


def outcome(log: Log) -> object:
    try:
        return log.add(1, content(1))
    except SparkError:
        return SparkError
