"""A power cut keeps what was synced and nothing else: no answer may rest on more than that."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, Decision, DecisionLog, Verdict
from airflow_eos.core.checkpoint.backend import cut_path, decision_path
from airflow_eos.core.checkpoint.cuts import CutLog
from airflow_eos.core.checkpoint.locations import tail_of
from airflow_eos.core.checkpoint.rulings import read_rulings, resolve
from airflow_eos.core.delivery.batch import Attempts
from airflow_eos.core.protocol.cut import Cut
from airflow_eos.core.protocol.decision import Outcome, WorkIdentity, encode
from airflow_eos.errors import StoreError
from airflow_eos.kinds.files.storage import StagedFolder
from tests.support.authority import OFFSETS, authority_of

PATH = "eos/decisions/7/1.json"


class Disk:
    """The real disk, and a record of what of it would outlive a power cut at this instant.

    A file's content does as it was when the file was synced, a name as its folder was synced. A
    name may reach the disk earlier, by itself: ``torn`` has names given to content not yet synced.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self.torn: list[str] = []
        for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
            self._keep(folder)
        self._wrap(monkeypatch, "fsync", self._synced)
        self._wrap(monkeypatch, "fdatasync", self._synced)
        for naming in ("link", "rename", "replace"):
            self._wrap(monkeypatch, naming, self._named)

    @staticmethod
    def _wrap(monkeypatch: pytest.MonkeyPatch, name: str, seen: Callable[..., None]) -> None:
        real = getattr(os, name)

        def wrapped(*args: Any, **kwargs: Any) -> None:
            seen(*args)
            real(*args, **kwargs)

        monkeypatch.setattr(os, name, wrapped)

    def _synced(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if path.is_dir():
            self._keep(path)
        else:
            self._contents[path.stat().st_ino] = path.read_bytes()

    def _keep(self, folder: Path) -> None:
        names = {entry.name: entry.inode() for entry in os.scandir(folder)}
        self._names[folder.stat().st_ino] = names

    def _named(self, source: str | Path, target: str | Path) -> None:
        if self._contents.get(Path(source).stat().st_ino) != Path(source).read_bytes():
            self.torn.append(str(target))

    def after_a_power_cut(self, path: Path) -> bytes | None:
        """Content of the file once power is back; None when it is not found any more."""
        inode: int | None = self.root.stat().st_ino
        for name in path.relative_to(self.root).parts:
            inode = None if inode is None else self._names.get(inode, {}).get(name)
        return None if inode is None else self._contents.get(inode, b"")


@pytest.fixture
def root(tmp_path) -> Path:
    """A checkpoint that has been there for long."""
    folder: Path = tmp_path / "query"
    folder.mkdir()
    return folder


@pytest.fixture
def disk(tmp_path, root, monkeypatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


@pytest.fixture
def store(root, disk) -> CheckpointStore:
    return CheckpointStore.open(root)


def unsynced(path: Path, data: bytes) -> None:
    """What another process has written a moment ago; it has not come to its sync."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_a_decision_that_was_created_outlives_a_power_cut(store, disk, root):
    assert store.create(PATH, b"commit") is True
    assert disk.after_a_power_cut(root / PATH) == b"commit"


def test_the_first_object_of_a_new_checkpoint_outlives_a_power_cut(disk, tmp_path):
    """Its folder and those above it are new, too: with one of them everything would be gone."""
    new = tmp_path / "pipelines" / "orders"
    assert CheckpointStore.open(new).create("eos/pipeline.json", b"1") is True
    assert disk.after_a_power_cut(new / "eos/pipeline.json") == b"1"


def test_no_name_is_given_to_a_decision_before_its_content_is_on_the_disk(store, disk):
    store.create(PATH, b"commit")
    store.put("eos/driver.json", b"1")
    store.put("eos/driver.json", b"2")
    assert disk.torn == [], "a power cut could leave it there, empty"


def test_a_cut_waits_for_no_disk_and_is_written_again(store, disk, root):
    """A sync is milliseconds of each batch; without the cut Spark runs the batch again."""
    log = CutLog(store)
    cut = Cut(batch_id=7, pipeline=log.pipeline, incomplete=None, positions={})
    log.record(cut)
    assert log.of_batch(7) == cut
    assert disk.after_a_power_cut(root / cut_path(7)) is None
    (root / cut_path(7)).unlink()
    log.record(cut)
    assert log.of_batch(7) == cut


def test_a_file_outlives_a_power_cut_when_it_is_kept_and_its_name_when_it_is_settled(
    tmp_path, disk
):
    """As a task prepares it, and as a commit makes it visible before the prepared one goes."""
    folder = StagedFolder(tmp_path / "data")
    folder.check("orders")
    prepared, visible = "_eos/orders/work/0-0-a/day=a/json", "day=a/0-0-a.json"
    file = folder.begin(prepared)
    file.write(b"a row")
    assert folder.keep(prepared, file) == (5, tail_of(b"a row"))
    at = tmp_path / "_eos.data" / prepared.removeprefix("_eos/")
    assert disk.after_a_power_cut(at) == b"a row"
    assert folder.publish([(prepared, visible)]) == [True]
    folder.settle([visible])
    assert disk.after_a_power_cut(tmp_path / "data" / visible) == b"a row"


def test_an_object_that_was_replaced_outlives_a_power_cut(store, disk, root):
    store.put("eos/driver.json", b"1")
    store.put("eos/driver.json", b"2")
    assert disk.after_a_power_cut(root / "eos/driver.json") == b"2"


def test_what_a_decision_rests_on_outlives_a_power_cut_before_the_decision_is(store, disk, root):
    """Spark syncs none of its files; with one of them empty nobody could keep the promise."""
    decisions = DecisionLog(store)
    attempts = Attempts(decisions, authority_of(store, decisions), "test")
    record = decisions.record
    lost: list[Any] = []

    def recorded(decision: Decision) -> bool:
        if decision.verdict is Verdict.COMMIT:
            lost.extend(p for p in files if disk.after_a_power_cut(root / p) != files[p])
        return record(decision)

    decisions.record = recorded  # type: ignore[method-assign]
    files = {
        "metadata": b'{"id":"1"}',
        ".metadata.crc": b"sum",
        "sources/0/0": b"\0v1",
        "offsets/0": OFFSETS.encode(),
        "offsets/.0.crc": b"sum",
    }
    later = {"commits/0": b"v1", "sources/0/1": b"v1", "offsets/1": OFFSETS.encode()}
    for batch_id, new in enumerate((files, later)):
        files |= new
        for path, data in new.items():
            unsynced(root / path, data)
        attempt = len(attempts.begin(batch_id)) + 1
        assert isinstance(attempts.promise(batch_id, attempt, ()), Decision)
        assert lost == []


def test_the_decision_of_another_that_was_in_the_way_outlives_a_power_cut(store, disk, root):
    """The loser aborts its transactions and stops: that must stay right."""
    unsynced(root / PATH, b"theirs")
    assert disk.after_a_power_cut(root / PATH) is None
    assert store.create(PATH, b"ours") is False
    assert disk.after_a_power_cut(root / PATH) == b"theirs"


def test_a_decision_that_is_found_outlives_a_power_cut(store, disk, root, make_decision):
    """Whoever reads it commits its transactions, which no power cut takes back."""
    found = [make_decision(7, attempt) for attempt in (1, 2)]
    for decision in found:
        unsynced(root / decision_path(7, decision.attempt), encode(decision))
    assert list(DecisionLog(store).of_batch(7)) == found
    for decision in found:
        file = root / decision_path(7, decision.attempt)
        assert disk.after_a_power_cut(file) == encode(decision)


def test_a_ruling_that_is_found_outlives_a_power_cut(store, disk, root, tmp_path):
    transaction = WorkIdentity("kafka", "sink", "etl-0-0-7-3")
    elsewhere = CheckpointStore.open(tmp_path / "elsewhere")
    resolve(elsewhere, transaction, Outcome.COMMITTED)
    [ruling] = (tmp_path / "elsewhere/eos/rulings").iterdir()
    copied = root / "eos/rulings" / ruling.name
    unsynced(copied, ruling.read_bytes())
    assert read_rulings(store, [transaction]) == {transaction: Outcome.COMMITTED}
    assert disk.after_a_power_cut(copied) == ruling.read_bytes()


def test_a_disk_that_cannot_sync_has_not_decided(store, monkeypatch):
    """The system may have dropped what it was asked to keep."""
    monkeypatch.setattr("airflow_eos.core.checkpoint.store._PAUSES_S", (0.0,))

    def failing(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StoreError, match="not known whether it was written"):
        store.create(PATH, b"commit")


# --- order of syncs -------------------------------------------------------------------------------
# What is acted upon survives a power cut: it is synced before it has its name, and when read.
#
# A power cut cannot be had here. What can be seen is the order of the calls that survive one: the
# content of a file before the file has its name, then each folder from its own up to the
# checkpoint.


ORDERED = "eos/decisions/0/1.json"
TRANSACTION = WorkIdentity("kafka", "sink", "etl-0-0-7-0")


class OrderedDisk:
    """Which inodes were synced, and whether ``target`` had its name by then."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.synced: list[tuple[int, bool]] = []
        self._fsync = os.fsync

    def fsync(self, handle: int) -> None:
        self._fsync(handle)
        self.synced.append((os.fstat(handle).st_ino, self.target.exists()))

    def before_its_name(self) -> bool:
        """The content was synced while nobody could see it."""
        return (self.target.stat().st_ino, False) in self.synced

    def by_now(self, *paths: Path) -> list[str]:
        """Those of ``paths`` that were not synced since the target has its name."""
        known = {inode for inode, named in self.synced if named}
        return [path.name for path in paths if path.stat().st_ino not in known]

    def folders(self, root: Path) -> list[Path]:
        """From the target's own folder up to the checkpoint."""
        above = [folder for folder in self.target.parents if folder.is_relative_to(root)]
        assert root in above
        return above


@pytest.fixture
def ordered_root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def ordered_disk(ordered_root: Path, monkeypatch: pytest.MonkeyPatch) -> OrderedDisk:
    disk = OrderedDisk(ordered_root / ORDERED)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    return disk


@pytest.fixture
def ordered_store(ordered_root: Path) -> CheckpointStore:
    return CheckpointStore.open(ordered_root)


def written_by_another(path: Path, content: bytes) -> None:
    """It has its name, and who wrote it has not synced it yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_a_decision_is_on_the_disk_before_it_can_be_seen(ordered_root, ordered_store, ordered_disk):
    assert ordered_store.create(ORDERED, b"decided")
    assert ordered_disk.before_its_name(), "an empty decision could stand there after a power cut"


def test_the_folders_of_a_decision_are_on_the_disk_when_it_stands(
    ordered_root, ordered_store, ordered_disk
):
    assert ordered_store.create(ORDERED, b"decided")
    assert ordered_disk.by_now(*ordered_disk.folders(ordered_root)) == []


def test_the_decision_of_another_process_is_synced_before_ours_gives_way(
    ordered_root, ordered_store, ordered_disk
):
    written_by_another(ordered_disk.target, b"theirs")
    assert ordered_store.create(ORDERED, b"ours") is False
    assert ordered_disk.by_now(ordered_disk.target, *ordered_disk.folders(ordered_root)) == []


def test_a_decision_that_is_read_is_synced_before_it_is_followed(
    ordered_root, ordered_store, ordered_disk, make_decision
):
    written_by_another(ordered_disk.target, encode(make_decision(0)))
    assert len(DecisionLog(ordered_store).of_batch(0)) == 1
    assert ordered_disk.by_now(ordered_disk.target, *ordered_disk.folders(ordered_root)) == []


def test_a_ruling_that_is_read_is_synced_before_it_is_followed(
    ordered_root, ordered_store, ordered_disk
):
    resolve(ordered_store, TRANSACTION, Outcome.COMMITTED)
    ordered_disk.target = ordered_root / "eos/rulings/etl-0-0-7-0.json"
    ordered_disk.synced.clear()
    assert read_rulings(ordered_store, [TRANSACTION]) == {TRANSACTION: Outcome.COMMITTED}
    assert ordered_disk.by_now(ordered_disk.target, *ordered_disk.folders(ordered_root)) == []
