"""Files as a participant, one or several of a task: each verb repeated, raced and interrupted."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from obstore.exceptions import AlreadyExistsError

from airflow_eos.core.checkpoint import Decision
from airflow_eos.core.checkpoint.locations import Guarded, tail_of
from airflow_eos.core.participants import connect
from airflow_eos.core.protocol.decision import Outcome, PreparedWork, WorkIdentity
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    OwnershipError,
    StoreError,
    TransactionError,
)
from airflow_eos.kinds.files import participant
from airflow_eos.kinds.files.folder import (
    detail,
    escape,
    files_of,
    partition,
    prepared_name,
    visible_of,
)
from airflow_eos.kinds.files.names import beside, works_of
from airflow_eos.kinds.files.participant import FilesParticipant, made
from airflow_eos.kinds.files.sink import LINE_COLUMN, FileSink, ReadFiles, file_writer
from airflow_eos.kinds.files.storage import StagedFolder
from tests.support.pipelines import commit_of, owner_at, require_at


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """The folder of data, on a disk with other folders."""
    folder = tmp_path / "disk" / "out"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def files(tmp_path: Path) -> FilesParticipant:
    return made(tmp_path, "orders")


def at(folder: Path, path: str) -> Path:
    storage = StagedFolder(folder)
    assert storage.disk is not None
    return storage.disk / storage._at(path)


def work_folder(folder: Path) -> Path:
    return at(folder, works_of("orders"))


def prepare(folder: Path, key: str = "0-0-a") -> PreparedWork:
    (work_folder(folder) / key).mkdir()
    (work_folder(folder) / key / "parquet").write_bytes(b"rows")
    told = detail("parquet", {"": 4}, {"": tail_of(b"rows")})
    return PreparedWork("files", "orders", key, 1, "0" * 32, 0, None, told)


def seen(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("*.parquet"))


def test_nothing_is_seen_before_the_commit_and_all_of_it_after(files, tmp_path):
    works = [prepare(tmp_path, "0-0-a"), prepare(tmp_path, "1-0-b")]
    assert seen(tmp_path) == []
    assert [each.key for each in files.open()] == ["0-0-a", "1-0-b"]
    assert files.outcome(works) == {work.identity: Outcome.OPEN for work in works}
    assert files.commit(works) == {work.identity: Outcome.COMMITTED for work in works}
    assert seen(tmp_path) == ["0-0-a.parquet", "1-0-b.parquet"]
    assert files.open() == ()


def test_a_commit_again_changes_nothing_twice(files, tmp_path):
    work = prepare(tmp_path)
    files.commit([work])
    (tmp_path / "0-0-a.parquet").write_bytes(b"seen")
    assert made(tmp_path, "orders").commit([work]) == {work.identity: Outcome.COMMITTED}
    assert (tmp_path / "0-0-a.parquet").read_bytes() == b"seen"


@pytest.mark.parametrize(
    "left",
    [b"", b"ro", b"rows, and more", b"sows", b"\0" * 4],
    ids=["empty", "cut off", "longer", "of another batch", "NULs"],
)
def test_a_prepared_file_that_is_not_whole_is_never_shown_nor_called_committed(
    files, tmp_path, left
):
    """A disk that was copied back: one row of the batch was never to be read, and nobody knew."""
    damaged, well = prepare(tmp_path, "0-0-a"), prepare(tmp_path, "1-0-b")
    (work_folder(tmp_path) / "0-0-a" / "parquet").write_bytes(left)
    became = {damaged.identity: Outcome.UNKNOWN, well.identity: Outcome.COMMITTED}
    assert files.commit([damaged, well]) == became
    assert seen(tmp_path) == ["1-0-b.parquet"]
    assert files.outcome([damaged, well]) == became


def test_a_visible_file_that_is_not_whole_is_no_witness(files, tmp_path):
    work = prepare(tmp_path)
    files.commit([work])
    (tmp_path / "0-0-a.parquet").write_bytes(b"ro")
    assert files.outcome([work]) == {work.identity: Outcome.UNKNOWN}
    assert files.commit([work]) == {work.identity: Outcome.UNKNOWN}


@pytest.mark.parametrize("left", [b"", b"\0" * 32, b"0" * 31], ids=["empty", "NULs", "cut off"])
def test_a_mark_that_is_damaged_is_nobodys_folder(files, tmp_path, left):
    """Of two disks whose marks are empty each would pass for the other."""
    del files
    (work_folder(tmp_path).parent / "mark").write_bytes(left)
    with pytest.raises(StoreError, match="not known") as refused:
        made(tmp_path, "orders")
    assert "eos/pipeline.json" in refused.value.remedies[0].change


def test_a_strangers_file_of_the_same_name_is_in_the_way_and_says_so(files, tmp_path):
    work = prepare(tmp_path)
    (tmp_path / "0-0-a.parquet").write_bytes(b"another's rows")
    with pytest.raises(StoreError, match="move it elsewhere"):
        files.commit([work])
    (tmp_path / "0-0-a.parquet").unlink()
    assert files.commit([work]) == {work.identity: Outcome.COMMITTED}


def test_a_strangers_file_of_the_same_name_and_size_is_not_taken_for_ours(files, tmp_path):
    work = prepare(tmp_path)
    (tmp_path / "0-0-a.parquet").hardlink_to(work_folder(tmp_path) / "0-0-a" / "parquet")
    other = tmp_path / "other"
    other.write_bytes(b"sows")
    storage = StagedFolder(tmp_path)
    [file] = files_of(work)
    assert storage.publish([(file.prepared, file.visible)]) == [True], "by us before"
    (tmp_path / "0-0-a.parquet").unlink()
    other.rename(tmp_path / "0-0-a.parquet")
    with pytest.raises(StoreError, match="move it elsewhere"):
        storage.publish([(file.prepared, file.visible)])


def test_killed_between_the_two_names_it_is_committed_and_not_open(files, tmp_path):
    work = prepare(tmp_path)
    (tmp_path / "0-0-a.parquet").hardlink_to(work_folder(tmp_path) / "0-0-a" / "parquet")
    assert files.outcome([work]) == {work.identity: Outcome.COMMITTED}
    assert files.open() == ()
    assert files.commit([work]) == {work.identity: Outcome.COMMITTED}


def test_what_was_aborted_can_never_be_committed(files, tmp_path):
    work = prepare(tmp_path)
    assert files.abort([work.identity]) == {work.identity: True}
    assert files.abort([work.identity]) == {work.identity: False}
    assert files.outcome([work]) == {work.identity: Outcome.UNKNOWN}
    assert files.commit([work]) == {work.identity: Outcome.UNKNOWN}
    assert seen(tmp_path) == []


def test_a_published_file_that_a_reader_has_moved_away_is_neither_there_nor_lost(files, tmp_path):
    """A replay would give its rows twice, and going on would lose those of one never published."""
    work = prepare(tmp_path)
    files.commit([work])
    (tmp_path / "0-0-a.parquet").rename(tmp_path / "taken")
    assert files.outcome([work]) == {work.identity: Outcome.UNKNOWN}
    assert made(tmp_path, "orders").commit([work]) == {work.identity: Outcome.UNKNOWN}


def test_an_abort_takes_nothing_from_readers(files, tmp_path):
    work = prepare(tmp_path)
    files.commit([work])
    assert files.abort([work.identity]) == {work.identity: False}
    assert seen(tmp_path) == ["0-0-a.parquet"]


def test_a_commit_between_two_looks_is_no_abort(files, tmp_path, monkeypatch):
    """The prepared file goes last: whoever has missed the visible one looks for it again."""
    work = prepare(tmp_path)
    looks = 0
    really = StagedFolder.sizes

    def committed_meanwhile(disk: StagedFolder, paths: list[str]) -> list[int | None]:
        nonlocal looks
        looks += 1
        if looks == 2:
            made(tmp_path, "orders").commit([work])
        return really(disk, paths)

    monkeypatch.setattr(StagedFolder, "sizes", committed_meanwhile)
    assert files.outcome([work]) == {work.identity: Outcome.COMMITTED}


def test_where_the_disk_is_not_mounted_nothing_is_concluded(files, tmp_path):
    """The whole batch would be replayed into another disk."""
    work = prepare(tmp_path)
    files.commit([work])
    tmp_path.parent.rename(tmp_path.parent.with_name("unmounted"))
    require_nothing_concluded(files, work)
    assert made(tmp_path, "orders").members != files.members, "claim() refuses it by its mark"


def test_where_another_disk_is_mounted_nothing_is_concluded(files, tmp_path):
    work = prepare(tmp_path)
    shutil.rmtree(work_folder(tmp_path) / work.key)
    (work_folder(tmp_path).parent / "mark").write_text("f" * 32)
    require_nothing_concluded(files, work)


def require_nothing_concluded(files: FilesParticipant, work: PreparedWork) -> None:
    for asked in (
        lambda: files.outcome([work]),
        lambda: files.commit([work]),
        files.open,
        lambda: connect(files.members, {}),
    ):
        with pytest.raises(StoreError, match="Is the disk mounted"):
            asked()


def test_where_the_folder_is_gone_and_not_what_is_beside_it_nothing_is_lost(files, tmp_path):
    visible, prepared = prepare(tmp_path, "0-0-a"), prepare(tmp_path, "1-0-b")
    files.commit([visible])
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    require_nothing_concluded(files, visible)
    assert files.outcome([prepared]) == {prepared.identity: Outcome.OPEN}
    with pytest.raises(StoreError, match="Is the disk mounted"):
        files.commit([prepared])
    moved.rename(tmp_path)
    assert set(files.commit([visible, prepared]).values()) == {Outcome.COMMITTED}


def test_where_what_is_beside_the_folder_is_gone_nothing_is_lost(files, tmp_path):
    visible, prepared = prepare(tmp_path, "0-0-a"), prepare(tmp_path, "1-0-b")
    files.commit([visible])
    moved = work_folder(tmp_path).parents[1].rename(tmp_path.with_name("moved"))
    require_nothing_concluded(files, prepared)
    assert files.outcome([visible]) == {visible.identity: Outcome.COMMITTED}
    moved.rename(tmp_path.with_name("_eos.out"))
    assert set(files.commit([visible, prepared]).values()) == {Outcome.COMMITTED}


def test_a_folder_that_is_a_disk_of_its_own_is_refused_by_name(files, tmp_path, monkeypatch):
    """As a volume that is mounted there: what is prepared beside it could only be copied."""

    def mounted(_from: Path, _to: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(Path, "rename", mounted)
    with pytest.raises(ConfigurationError, match=r"a disk of its own.*out/data"):
        made(tmp_path, "orders")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_where_nothing_can_be_kept_beside_the_folder_it_is_refused_by_name(tmp_path):
    tmp_path.parent.chmod(0o555)
    with pytest.raises(ConfigurationError, match=r"_eos\.out cannot be made"):
        made(tmp_path, "orders")


def test_where_the_parent_refuses_it_is_refused_by_name(tmp_path, monkeypatch):
    def refused(*_given: object, **_named: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(ConfigurationError, match=r"_eos\.out cannot be made") as told:
        made(tmp_path, "orders")
    assert len(told.value.remedies) == 2


@pytest.mark.parametrize("folder", ["/", "s3://lake", "s3://lake/"])
def test_what_has_nothing_beside_it_is_refused_by_name(folder):
    with pytest.raises(ConfigurationError, match="kept beside the folder"):
        StagedFolder(folder, {"aws_region": "eu"})


def test_an_error_of_the_disk_is_no_answer(files, tmp_path, monkeypatch):
    work = prepare(tmp_path)

    def refused(*_given: object) -> None:
        raise PermissionError(1, "not yours")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    monkeypatch.setattr(os, "scandir", refused)
    for asked in (lambda: files.commit([work]), files.open):
        with pytest.raises(StoreError, match="must be one user"):
            asked()


def test_work_of_another_participant_is_refused(files):
    theirs = PreparedWork("files", "totals", "0-0-a", 1, "0" * 32, 0, None, {})
    for asked in (
        lambda: files.check([theirs]),
        lambda: files.commit([theirs]),
        lambda: files.outcome([theirs]),
        lambda: files.abort([theirs.identity]),
    ):
        with pytest.raises(CheckpointFormatError, match="handed to files 'orders'"):
            asked()


@pytest.mark.parametrize("key", ["../x", "a/b", "", "..", "/etc/passwd"])
def test_a_key_never_leaves_the_folder(files, key):
    with pytest.raises(ConfigurationError, match="no key"):
        files.abort([WorkIdentity("files", "orders", key)])


def promised(nonce: str) -> Decision:
    return commit_of(7, nonce=nonce * 32)


def test_the_first_checkpoint_owns_the_name(files, tmp_path):
    files.claim(owner_at("/a"))
    made(tmp_path, "orders").claim(owner_at("/b"))
    require_at(files, "/a")
    with pytest.raises(OwnershipError, match=r"belongs to the checkpoint /a, not to /b.*[Rr]emove"):
        require_at(files, "/b")
    require_at(made(tmp_path, "totals"), "/b")


def test_an_older_copy_of_the_checkpoint_is_refused(files, tmp_path):
    files.claim(owner_at("/a"))
    files.note(promised("a"), owner_at("/a"))
    require_at(files, "/a", 7, b7=(promised("a"),))
    require_at(files, "/a", 8, b7=(promised("a"),))
    with pytest.raises(OwnershipError, match="the decision was lost"):
        require_at(files, "/a", 8)
    with pytest.raises(OwnershipError, match="older copy"):
        require_at(files, "/a", 7, b7=(promised("b"),))
    sleeper = made(tmp_path, "orders")
    late = Decision(**{f: getattr(promised("c"), f) for f in FIELDS} | {"batch_id": 3})
    sleeper.note(late, owner_at("/a"))
    with pytest.raises(OwnershipError, match="decision of batch 7"):
        require_at(files, "/a", 6)


FIELDS = Decision.__struct_fields__


def test_an_owner_that_cannot_be_read_is_never_guessed(files, tmp_path):
    (work_folder(tmp_path).parent / "owner").write_bytes(b"{")
    with pytest.raises(StoreError, match="cannot be read"):
        require_at(files, "/a")


def test_it_is_reached_by_what_the_checkpoint_says_alone(files, tmp_path):
    assert connect(files.members, {}).members == files.members
    with pytest.raises(ConfigurationError, match="no folder"):
        connect([Member("orders", "files", {})], {})


def test_a_kind_that_this_release_does_not_know_is_refused_by_name():
    with pytest.raises(ConfigurationError, match=r"tapes 'orders'.*knows .*files, .*kafka"):
        connect([Member("orders", "tapes", {})], {})


def test_kafka_without_a_connection_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="bootstrap-servers"):
        connect([Member("orders", "kafka", {"transactional_id_prefix": "etl"})], {})


def test_a_bucket_that_lets_nobody_delete_is_refused_before_the_first_row(monkeypatch):
    """Each commit removes what was prepared: its rows were visible, and its batch never over."""
    bucket = StagedFolder("s3://lake/out", {"aws_region": "eu-west-1"})
    names: set[str] = set()

    def won(name: str, *_: object) -> bool:
        with lock:
            is_new = name not in names
            names.add(name)
            return is_new

    def copy(target: str) -> None:
        if not won(target):
            raise AlreadyExistsError(target)

    def delete(_names: object) -> None:
        raise StoreError("deleting: AccessDenied")

    lock = Lock()
    monkeypatch.setattr(Guarded, "copy_if_absent", lambda _bucket, _source, target: copy(target))
    monkeypatch.setattr(
        bucket, "beside", SimpleNamespace(put=lambda *_: None, create=won, delete=delete)
    )
    with pytest.raises(StoreError, match="AccessDenied"):
        bucket.check("orders")


def test_a_file_that_s3_could_not_copy_once_it_is_decided_is_refused_before(monkeypatch):
    """Of 5 GiB at most: decided, its rows would be published by no start."""
    bucket, sent = StagedFolder("s3://lake/out", {"aws_region": "eu-west-1"}), []
    monkeypatch.setattr(Guarded, "upload", lambda _bucket, path, _file: sent.append(path))

    def keep(size: int) -> None:
        file = bucket.begin("_eos/orders/work/0-0-a/parquet")
        file.truncate(size)  # of holes
        bucket.keep("_eos/orders/work/0-0-a/parquet", file)

    keep(5 << 30)
    with pytest.raises(StoreError, match=r"published\. Nothing is promised") as refused:
        keep((5 << 30) + 1)
    assert "let more tasks write" in refused.value.remedies[0].change
    assert len(sent) == 1


# --- files of a task ------------------------------------------------------------------------------
# Several files as one work: published in part, by two at once, lost in part; and names of them.


DAYS = ("day=a", "day=b", "day=c")


def prepare_days(folder: Path, key: str = "0-0-a", days: tuple[str, ...] = DAYS) -> PreparedWork:
    for day in days:
        path = prepared(folder, day, key)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"{}\n")
    return work_of(key, detail("json", dict.fromkeys(days, 3)))


def prepared(folder: Path, day: str, key: str = "0-0-a") -> Path:
    return at(folder, prepared_name(day, "orders", key, "json"))


def work_of(key: str, told: dict[str, object]) -> PreparedWork:
    return PreparedWork("files", "orders", key, 1, "0" * 32, 0, None, told)


def seen_days(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob("day=*/*"))


def all_of(key: str = "0-0-a") -> list[str]:
    return [f"{day}/{key}.json" for day in DAYS]


def publish(folder: Path, day: str, key: str = "0-0-a") -> None:
    """What a commit that was killed had done."""
    (folder / day).mkdir()
    (folder / day / f"{key}.json").hardlink_to(prepared(folder, day, key))


def test_nothing_is_seen_before_the_commit_and_all_partitions_after(files, tmp_path):
    work = prepare_days(tmp_path)
    assert seen_days(tmp_path) == []
    assert files.outcome([work]) == {work.identity: Outcome.OPEN}
    (found,) = files.open()
    assert (found.key, sorted(found.places)) == (
        "0-0-a",
        [f"{tmp_path}/{path}" for path in all_of()],
    )
    assert files.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen_days(tmp_path) == all_of()
    assert files.open() == ()
    assert list(at(tmp_path, works_of("orders")).iterdir()) == [], "the folders go with the files"


def test_a_partly_published_batch_is_open_and_another_process_ends_it(files, tmp_path):
    work = prepare_days(tmp_path)
    publish(tmp_path, "day=b")
    other = participant.connect(files.members[0], None)
    assert other.outcome([work]) == {work.identity: Outcome.OPEN}
    assert [each.key for each in other.open()] == ["0-0-a"]
    assert other.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen_days(tmp_path) == all_of()


def test_work_that_was_moved_in_part_is_not_given_up_as_a_whole(files, tmp_path, monkeypatch):
    """As HDFS publishes, by a rename: what is visible is not among the prepared files any more."""
    work, other = prepare_days(tmp_path), prepare_days(tmp_path, "1-0-b")
    publish(tmp_path, "day=b")
    prepared(tmp_path, "day=b").unlink()
    monkeypatch.setattr(StagedFolder, "moves", True)
    told = files.abandon([work.identity, other.identity])
    assert told == {work.identity: False, other.identity: True}
    assert seen_days(tmp_path) == ["day=b/0-0-a.json"]


def test_killed_before_the_last_prepared_file_went_it_is_committed_and_not_open(files, tmp_path):
    work = prepare_days(tmp_path)
    for day in DAYS:
        publish(tmp_path, day)
    prepared(tmp_path, "day=a").unlink()
    assert files.outcome([work]) == {work.identity: Outcome.COMMITTED}
    assert files.open() == ()
    assert files.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen_days(tmp_path) == all_of()


def test_two_processes_that_publish_at_once_publish_once(files, tmp_path):
    works = [prepare_days(tmp_path, f"{task}-0-a") for task in range(20)]
    start = threading.Barrier(4)

    def commit(_: int) -> set[Outcome]:
        mine = participant.connect(files.members[0], None)
        start.wait()
        return set(mine.commit(works).values())

    with ThreadPoolExecutor(4) as pool:
        assert set().union(*pool.map(commit, range(4))) == {Outcome.COMMITTED}
    assert seen_days(tmp_path) == sorted(path for work in works for path in all_of(work.key))


def test_a_zombie_publishes_nothing_once_its_work_has_ended(files, tmp_path):
    """Readers have compacted the files away since: neither the batch nor its rows come back."""
    work = prepare_days(tmp_path)
    files.commit([work])
    for path in seen_days(tmp_path):
        (tmp_path / path).unlink()
    assert participant.connect(files.members[0], None).commit([work]) == {
        work.identity: Outcome.UNKNOWN
    }
    assert seen_days(tmp_path) == []


def test_where_a_part_is_visible_and_the_rest_is_lost_a_person_is_asked(files, tmp_path):
    """Neither a replay of it all nor going on would be right."""
    work = prepare_days(tmp_path)
    publish(tmp_path, "day=b")
    files.abort([work.identity])
    assert files.outcome([work]) == {work.identity: Outcome.UNKNOWN}
    assert files.commit([work]) == {work.identity: Outcome.UNKNOWN}
    assert seen_days(tmp_path) == ["day=b/0-0-a.json"]


def test_where_a_prepared_file_is_lost_the_others_are_not_published_and_a_person_is_asked(
    files, tmp_path
):
    """It may as well have been published, and taken away, by a commit that was killed after it."""
    work, whole = prepare_days(tmp_path), prepare_days(tmp_path, "1-0-b")
    prepared(tmp_path, "day=b").unlink()
    assert files.outcome([work]) == {work.identity: Outcome.UNKNOWN}
    assert files.commit([work, whole]) == {
        work.identity: Outcome.UNKNOWN,
        whole.identity: Outcome.COMMITTED,
    }
    assert seen_days(tmp_path) == all_of("1-0-b")
    assert [each.key for each in files.open()] == ["0-0-a"], "what is promised is never removed"


def test_an_abort_removes_all_of_it_and_nothing_of_others(files, tmp_path):
    work, other = prepare_days(tmp_path), prepare_days(tmp_path, "0-0-ab")
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
    work = prepare_days(tmp_path)

    def full(*_given: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StoreError, match="No space left"):
        files.commit([work])
    monkeypatch.undo()
    assert files.outcome([work]) == {work.identity: Outcome.OPEN}
    assert files.commit([work]) == {work.identity: Outcome.COMMITTED}


def test_a_commit_never_makes_the_folder_of_a_disk_that_is_not_there(tmp_path):
    storage = StagedFolder(tmp_path / "mount")
    assert storage.publish([("_eos/a", "day=a/b"), ("_eos/a", "b")]) == [False, False]
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


@pytest.mark.parametrize(
    ("form", "compression"),
    [("parquet", "none"), ("parquet", "zstd"), ("json", "none"), ("json", "gzip"), ("json", "bz2")],
)
def test_a_file_that_was_written_stays_open_and_needs_no_descriptor(form, compression):
    """It is made durable afterwards; in pyarrow 20 a file of its own tells none."""
    file = io.BytesIO()
    rows = {LINE_COLUMN: ["{}"]} if form == "json" else {"amount": [1]}
    batch = pa.RecordBatch.from_pydict(rows)
    writer = file_writer(form, file, compression, batch.schema)
    writer.write(batch)
    writer.close()
    written = file.getvalue()
    if form == "parquet":
        assert pq.read_table(io.BytesIO(written)).to_pydict() == rows
    else:
        plain = {"gzip": gzip.decompress, "bz2": bz2.decompress}.get(compression, bytes)
        assert plain(written) == b"{}\n"


WRITES = """
import os, signal
import pyarrow as pa
import pyarrow.parquet as pq
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


def test_prepared_files_that_may_not_be_listed_are_not_none(files, tmp_path, monkeypatch):
    """As where tasks run as another user: what they left open was called nothing, and stayed."""
    work, listed = prepare(tmp_path), os.scandir

    def refusing(path):
        if Path(path).name == work.key:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(StoreError, match="refused while listing prepared files"):
        files.open()
    with pytest.raises(StoreError, match="refused while listing prepared files"):
        files.abort([work.identity])
    monkeypatch.undo()
    assert files.abort([work.identity]) == {work.identity: True}
    assert files.abort([work.identity]) == {work.identity: False}
