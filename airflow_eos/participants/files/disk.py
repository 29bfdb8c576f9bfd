"""What files as a participant ask of a disk: safe names, and no answer from an error."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.store import CheckpointStore
from airflow_eos.errors import ConfigurationError
from airflow_eos.protocol.work import is_key

if TYPE_CHECKING:
    from pathlib import Path

MARK = "mark"


def work_folder(folder: Path, name: str) -> Path:
    """Where tasks prepare."""
    return folder / "_eos" / name / "work"


def make_durable(file: Path) -> None:
    """The file and its name survive a power cut."""
    sync(file)
    sync(file.parent)


def kept_in(folder: Path, name: str) -> CheckpointStore:
    """Where the mark, the owner and the notes are kept."""
    return CheckpointStore.open(work_folder(folder, name).parent)


def mark_of(kept: CheckpointStore) -> str | None:
    """The random id of the name in its folder; None where there is none."""
    found = kept.get(MARK)
    return None if found is None else found.decode("ascii", errors="replace")


def listed(folder: Path) -> list[tuple[str, int]]:
    """The files of a folder: name, and when it was written last (ms since the epoch)."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # ended meanwhile
                found.append((entry.name, entry.stat().st_mtime_ns // 1_000_000))
    return found


def is_there(file: Path) -> bool:
    """Unlike ``Path.exists``, an error is no answer."""
    try:
        file.stat()
    except FileNotFoundError:
        return False
    return True


def remove(file: Path) -> bool:
    """Whether it was there."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def checked(key: str) -> str:
    """Return ``key`` if a file may be called so (ConfigurationError)."""
    if not is_key(key):
        raise ConfigurationError(f"{key!r} is no key of a file: expected letters, digits and ._-")
    return key


def sync(path: Path) -> None:
    """Until the disk has it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
