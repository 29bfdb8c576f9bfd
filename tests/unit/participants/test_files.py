"""Files as a participant: each verb repeated, raced and interrupted."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import pytest

from airflow_eos.checkpoint import Decision, Verdict
from airflow_eos.checkpoint.locations import tail_of
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    OwnershipError,
    StoreError,
)
from airflow_eos.kinds.files.folder import detail, files_of, works_of
from airflow_eos.kinds.files.participant import FilesParticipant, made
from airflow_eos.kinds.files.place import Bucket, Disk, opened
from airflow_eos.participants import connect
from airflow_eos.protocol.decision import Outcome, PreparedWork, WorkIdentity
from airflow_eos.protocol.participant import Member
from tests.support.owners import owner_at, require_at

pytestmark = pytest.mark.unit


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """The folder of data, on a disk with other folders."""
    folder = tmp_path / "disk" / "out"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def files(tmp_path: Path) -> FilesParticipant:
    return made(tmp_path, "orders")


def work_folder(folder: Path) -> Path:
    return Disk(folder)._at(works_of("orders"))


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
    place = opened(tmp_path)
    [file] = files_of(work)
    assert place.publish([(file.prepared, file.visible)]) == [True], "by us before"
    (tmp_path / "0-0-a.parquet").unlink()
    other.rename(tmp_path / "0-0-a.parquet")
    with pytest.raises(StoreError, match="move it elsewhere"):
        place.publish([(file.prepared, file.visible)])


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
    really = Disk.sizes

    def committed_meanwhile(disk: Disk, paths: list[str]) -> list[int | None]:
        nonlocal looks
        looks += 1
        if looks == 2:
            made(tmp_path, "orders").commit([work])
        return really(disk, paths)

    monkeypatch.setattr(Disk, "sizes", committed_meanwhile)
    assert files.outcome([work]) == {work.identity: Outcome.COMMITTED}


def test_where_the_disk_is_not_mounted_nothing_is_concluded(files, tmp_path):
    """The whole batch would be replayed into another disk."""
    work = prepare(tmp_path)
    files.commit([work])
    tmp_path.parent.rename(tmp_path.parent.with_name("unmounted"))
    require_nothing_concluded(files, work)
    assert made(tmp_path, "orders").members != files.members, "claim() refuses it by its mark"


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
        opened(folder, {"aws_region": "eu"})


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
    return Decision(
        batch_id=7,
        attempt=1,
        verdict=Verdict.COMMIT,
        offsets="v1\n{}\n{}",
        decided_by="driver",
        decided_at_ms=0,
        nonce=nonce * 32,
    )


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
    bucket = Bucket("s3://lake/out", {"aws_region": "eu-west-1"})
    names: set[str] = set()

    def won(name: str, *_: object) -> bool:
        with lock:
            return not (name in names or names.add(name))

    def delete(_names: object) -> None:
        raise StoreError("deleting: AccessDenied")

    lock = Lock()
    monkeypatch.setattr(bucket, "_copy", lambda _source, target: won(target))
    monkeypatch.setattr(
        bucket, "beside", SimpleNamespace(put=lambda *_: None, create=won, delete=delete)
    )
    with pytest.raises(StoreError, match="AccessDenied"):
        bucket.check("orders")
