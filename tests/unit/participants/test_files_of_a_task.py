"""Several files as one work: published in part, by two at once, lost in part; and names of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from airflow_eos.errors import CheckpointFormatError, StoreError, TransactionError
from airflow_eos.kinds.files.folder import (
    beside,
    detail,
    escape,
    files_of,
    partition,
    prepared_name,
    visible_of,
    works_of,
)
from airflow_eos.kinds.files import participant
from airflow_eos.kinds.files.participant import FilesParticipant, made
from airflow_eos.kinds.files.place import Disk
from airflow_eos.kinds.files.sink import FileSink, ReadFiles
from airflow_eos.protocol.decision import Outcome, PreparedWork

DAYS = ("day=a", "day=b", "day=c")


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """The folder of data, on a disk with other folders."""
    folder = tmp_path / "disk" / "out"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def files(tmp_path: Path) -> FilesParticipant:
    return made(tmp_path, "orders")


def prepare(folder: Path, key: str = "0-0-a", days: tuple[str, ...] = DAYS) -> PreparedWork:
    for day in days:
        path = prepared(folder, day, key)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"{}\n")
    return work_of(key, detail("json", dict.fromkeys(days, 3)))


def prepared(folder: Path, day: str, key: str = "0-0-a") -> Path:
    return Disk(folder)._at(prepared_name(day, "orders", key, "json"))


def work_of(key: str, told: dict[str, object]) -> PreparedWork:
    return PreparedWork("files", "orders", key, 1, "0" * 32, 0, None, told)


def seen(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob("day=*/*"))


def all_of(key: str = "0-0-a") -> list[str]:
    return [f"{day}/{key}.json" for day in DAYS]


def publish(folder: Path, day: str, key: str = "0-0-a") -> None:
    """What a commit that was killed had done."""
    (folder / day).mkdir()
    (folder / day / f"{key}.json").hardlink_to(prepared(folder, day, key))


def test_nothing_is_seen_before_the_commit_and_all_partitions_after(files, tmp_path):
    work = prepare(tmp_path)
    assert seen(tmp_path) == []
    assert files.outcome([work]) == {work.identity: Outcome.OPEN}
    (found,) = files.open()
    assert (found.key, sorted(found.places)) == (
        "0-0-a",
        [f"{tmp_path}/{path}" for path in all_of()],
    )
    assert files.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(tmp_path) == all_of()
    assert files.open() == ()
    assert list(Disk(tmp_path)._at(works_of("orders")).iterdir()) == [], (
        "the folders go with the files"
    )


def test_a_partly_published_batch_is_open_and_another_process_ends_it(files, tmp_path):
    work = prepare(tmp_path)
    publish(tmp_path, "day=b")
    other = participant.connect(files.members[0], None)
    assert other.outcome([work]) == {work.identity: Outcome.OPEN}
    assert [each.key for each in other.open()] == ["0-0-a"]
    assert other.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(tmp_path) == all_of()


def test_killed_before_the_last_prepared_file_went_it_is_committed_and_not_open(files, tmp_path):
    work = prepare(tmp_path)
    for day in DAYS:
        publish(tmp_path, day)
    prepared(tmp_path, "day=a").unlink()
    assert files.outcome([work]) == {work.identity: Outcome.COMMITTED}
    assert files.open() == ()
    assert files.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(tmp_path) == all_of()


def test_two_processes_that_publish_at_once_publish_once(files, tmp_path):
    works = [prepare(tmp_path, f"{task}-0-a") for task in range(20)]
    start = threading.Barrier(4)

    def commit(_: int) -> set[Outcome]:
        mine = participant.connect(files.members[0], None)
        start.wait()
        return set(mine.commit(works).values())

    with ThreadPoolExecutor(4) as pool:
        assert set().union(*pool.map(commit, range(4))) == {Outcome.COMMITTED}
    assert seen(tmp_path) == sorted(path for work in works for path in all_of(work.key))


def test_a_zombie_publishes_nothing_once_its_work_has_ended(files, tmp_path):
    """Readers have compacted the files away since: neither the batch nor its rows come back."""
    work = prepare(tmp_path)
    files.commit([work])
    for path in seen(tmp_path):
        (tmp_path / path).unlink()
    assert participant.connect(files.members[0], None).commit([work]) == {work.identity: Outcome.UNKNOWN}
    assert seen(tmp_path) == []


def test_where_a_part_is_visible_and_the_rest_is_lost_a_person_is_asked(files, tmp_path):
    """Neither a replay of it all nor going on would be right."""
    work = prepare(tmp_path)
    publish(tmp_path, "day=b")
    files.abort([work.identity])
    assert files.outcome([work]) == {work.identity: Outcome.UNKNOWN}
    assert files.commit([work]) == {work.identity: Outcome.UNKNOWN}
    assert seen(tmp_path) == ["day=b/0-0-a.json"]


def test_where_a_prepared_file_is_lost_the_others_are_not_published_and_a_person_is_asked(
    files, tmp_path
):
    """It may as well have been published, and taken away, by a commit that was killed after it."""
    work, whole = prepare(tmp_path), prepare(tmp_path, "1-0-b")
    prepared(tmp_path, "day=b").unlink()
    assert files.outcome([work]) == {work.identity: Outcome.UNKNOWN}
    assert files.commit([work, whole]) == {
        work.identity: Outcome.UNKNOWN,
        whole.identity: Outcome.COMMITTED,
    }
    assert seen(tmp_path) == all_of("1-0-b")
    assert [each.key for each in files.open()] == ["0-0-a"], "what is promised is never removed"


def test_an_abort_removes_all_of_it_and_nothing_of_others(files, tmp_path):
    work, other = prepare(tmp_path), prepare(tmp_path, "0-0-ab")
    assert files.abort([work.identity]) == {work.identity: True}
    assert files.outcome([work, other]) == {
        work.identity: Outcome.UNKNOWN,
        other.identity: Outcome.OPEN,
    }
    assert files.commit([work]) == {work.identity: Outcome.UNKNOWN}


@pytest.mark.parametrize(
    "told",
    [
        {"end": "json", "partitions": {"..": 1}},
        {"end": "json", "partitions": {"../day=a": 1}},
        {"end": "json", "partitions": {"day=a/..": 1}},
        {"end": "json", "partitions": {"/day=a": 1}},
        {"end": "json", "partitions": {"day=a/": 1}},
        {"end": "json", "partitions": {".day=a": 1}},
        {"end": "json", "partitions": {"day=a": -1}},
        {"end": "json", "partitions": {"day=a": "1"}},
        {"end": "json", "partitions": ["day=a"]},
        {"end": "/../x", "partitions": {"": 1}},
        {"end": None, "partitions": {"": 1}},
        {"bytes": 4},
    ],
)
def test_a_decision_never_leads_out_of_the_folder(files, told):
    for asked in (files.check, files.commit, files.outcome):
        with pytest.raises(CheckpointFormatError, match="newer release"):
            asked([work_of("0-0-a", told)])


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        ("2026-11-23", "day=2026-11-23"),
        (None, "day=__HIVE_DEFAULT_PARTITION__"),
        ("", "day=__HIVE_DEFAULT_PARTITION__"),
        ("a/b=c:d", "day=a%2Fb%3Dc%3Ad"),
        ("100%", "day=100%25"),
        ("ä b", "day=ä b"),
        ("[a]\n{b}", "day=%5Ba%5D%0A%7Bb}"),
    ],
)
def test_partitions_are_named_as_spark_names_them(value, folder):
    """Compared with Spark itself in the integration tests."""
    assert partition(["day"], [value]) == folder
    (file,) = files_of(work_of("k", detail("json", {folder: 1})))
    assert file.visible == f"{folder}/k.json"


def test_a_column_s_own_name_is_escaped_too():
    assert partition(["a/b", "c"], ["x", None]) == "a%2Fb=x/c=__HIVE_DEFAULT_PARTITION__"
    assert escape("a^b'") == "a%5Eb%27"


def test_a_disk_that_is_full_says_so_and_nothing_is_concluded(files, tmp_path, monkeypatch):
    work = prepare(tmp_path)

    def full(*_given: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StoreError, match="No space left"):
        files.commit([work])
    monkeypatch.undo()
    assert files.outcome([work]) == {work.identity: Outcome.OPEN}
    assert files.commit([work]) == {work.identity: Outcome.COMMITTED}


def test_a_commit_never_makes_the_folder_of_a_disk_that_is_not_there(tmp_path):
    place = Disk(tmp_path / "mount")
    assert place.publish([("_eos/a", "day=a/b"), ("_eos/a", "b")]) == [False, False]
    assert not (tmp_path / "mount").exists()


@pytest.mark.parametrize("end", ["parquet", "json.gz"])
@pytest.mark.parametrize("folder", ["", "day=a", "day=a/shop=b"])
def test_a_prepared_file_tells_the_name_that_it_is_going_to_have(folder, end):
    """And has none of its own by which a reader of everything would take it for data."""
    (file,) = files_of(work_of("0-0-a", detail(end, {folder: 1})))
    assert visible_of(file.prepared, "orders", "0-0-a") == file.visible
    assert "." not in file.prepared.rpartition("/")[2]


def test_folders_have_each_their_own_beside_them():
    """Spark reads a folder whose name begins with an underscore where it has a ``=``."""
    names = [beside(name) for name in ("out", "day=1", "day-1", "day~1", "day~=1")]
    assert len(set(names)) == len(names)
    assert all(name.startswith("_") and "=" not in name for name in names)


@pytest.mark.parametrize("there", [0, 2, 3, 4])
def test_files_with_another_count_than_they_were_delivered_with_are_refused(tmp_path, there):
    """As after a job that has compacted them under their names: which rows are left is not told."""
    (tmp_path / "0-0-a.json").write_bytes(b"{}\n" * there)
    work = replace(work_of("0-0-a", detail("json", {"": 9})), rows=3)
    encoded = pa.RecordBatch.from_pydict({"work": [msgspec.json.encode(work)]})
    read = ReadFiles(FileSink(str(tmp_path), format="json"))([encoded])
    if there == 3:
        assert sum(len(rows) for rows in read) == 3
        return
    with pytest.raises(TransactionError, match=f"delivered 3 rows, but its files have {there}"):
        list(read)


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_task_that_fails_after_its_files_are_prepared_ends_with_its_own_error(tmp_path, form):
    """Spark is told what failed, and not that a file was closed twice; what was prepared goes."""
    sink = FileSink(str(tmp_path), form)
    rows = {"__eos_line": ["{}"]} if form == "json" else {"amount": [1]}
    writer = sink.opened(0, 0)
    writer.write(pa.RecordBatch.from_pydict(rows))
    assert writer.prepare("0" * 32) is not None
    writer.abort()
    assert [each for each in tmp_path.parent.rglob("0-0-*") if each.is_file()] == []


WRITES = """
import os, signal
import pyarrow as pa
from airflow_eos.sinks import FileSink

sink = FileSink(os.environ["FOLDER"], "json", storage_options={"aws_region": "eu"})
writer = sink.opened(0, 0)
rows = pa.RecordBatch.from_pydict({"__eos_line": ["a row of somebody"] * 2_000_000})
for _ in range(2):
    writer.write(rows)
assert any(path.endswith("(deleted)") for path in map(os.readlink, (
    f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")
    if os.path.islink(f"/proc/self/fd/{each}")
))), "the rows are in a file without a name"
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_of_a_bucket_leaves_no_rows_on_its_machine(tmp_path):
    """For ever: the next task may run elsewhere, and nobody else may read them."""
    done = subprocess.run(
        [sys.executable, "-c", WRITES],
        env={**os.environ, "TMPDIR": str(tmp_path), "FOLDER": "s3://lake/out"},
        stderr=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
