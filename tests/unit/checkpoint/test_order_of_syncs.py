"""What is acted upon survives a power cut: it is synced before it has its name, and when read.

A power cut cannot be had here. What can be seen is the order of the calls that survive one: the
content of a file before the file has its name, then each folder from its own up to the checkpoint.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_eos.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.checkpoint.rulings import read_rulings, resolve
from airflow_eos.protocol.decision import Outcome, WorkIdentity, encode

PATH = "eos/decisions/0/1.json"
TRANSACTION = WorkIdentity("kafka", "sink", "etl-0-0-7-0")


class Disk:
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
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(root / PATH)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    return disk


@pytest.fixture
def store(root: Path) -> CheckpointStore:
    return CheckpointStore.open(root)


def written_by_another(path: Path, content: bytes) -> None:
    """It has its name, and who wrote it has not synced it yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_a_decision_is_on_the_disk_before_it_can_be_seen(root, store, disk):
    assert store.create(PATH, b"decided")
    assert disk.before_its_name(), "an empty decision could stand there after a power cut"


def test_the_folders_of_a_decision_are_on_the_disk_when_it_stands(root, store, disk):
    assert store.create(PATH, b"decided")
    assert disk.by_now(*disk.folders(root)) == []


def test_the_decision_of_another_process_is_synced_before_ours_gives_way(root, store, disk):
    written_by_another(disk.target, b"theirs")
    assert store.create(PATH, b"ours") is False
    assert disk.by_now(disk.target, *disk.folders(root)) == []


def test_a_decision_that_is_read_is_synced_before_it_is_followed(root, store, disk, make_decision):
    written_by_another(disk.target, encode(make_decision(0)))
    assert len(DecisionLog(store).of_batch(0)) == 1
    assert disk.by_now(disk.target, *disk.folders(root)) == []


def test_a_ruling_that_is_read_is_synced_before_it_is_followed(root, store, disk):
    resolve(store, TRANSACTION, Outcome.COMMITTED)
    disk.target = root / "eos/rulings/etl-0-0-7-0.json"
    disk.synced.clear()
    assert read_rulings(store, [TRANSACTION]) == {TRANSACTION: Outcome.COMMITTED}
    assert disk.by_now(disk.target, *disk.folders(root)) == []
