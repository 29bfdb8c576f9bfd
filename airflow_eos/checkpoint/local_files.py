"""A checkpoint on a local disk: writes that survive a power cut, reads that survive a fork.

Why not obstore's LocalStore: it creates atomically but never syncs, so after a power cut a
decision that was already acted upon could be gone, or stand there empty; and its threads do not
exist in a forked child, where the first request then hangs for ever (measured, 0.12.1), while
Airflow's workers and Spark's are forked. So a write goes to a hidden file, is synced, gets its
name by ``link`` (create) or ``rename`` (overwrite), and then the folders are synced up to the
checkpoint's root, and those above it that are new. A reader never sees half an object.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from datetime import UTC, datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

from obstore.exceptions import AlreadyExistsError

from airflow_eos.checkpoint.backend import Content

if TYPE_CHECKING:
    from pathlib import Path


class LocalFiles:
    """What a store asks of its backend, on the folder ``root``, which may not exist yet.

    The folder is made by the first write only: looking at a mistyped path leaves nothing behind.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, file: bytes, *, mode: Literal["create", "overwrite"]) -> object:
        """Write the whole object or nothing; on return it survives a power cut.

        Raises:
            AlreadyExistsError: ``mode`` is create and the object is there.
            OSError: the disk refused.
        """
        target = self.root / path
        new = list(takewhile(lambda it: not it.exists(), (self.root, *self.root.parents)))
        target.parent.mkdir(parents=True, exist_ok=True)
        # Not the target's name with more to it: that may be as long as a name can be.
        staged = target.parent / f".{uuid.uuid4().hex}.tmp"
        try:
            with staged.open("xb") as out:
                out.write(file)
                out.flush()
                os.fsync(out.fileno())
            if mode == "create":
                # link, unlike rename, refuses to replace what is there.
                target.hardlink_to(staged)
            else:
                staged.replace(target)
        except FileExistsError as error:
            raise AlreadyExistsError(f"{path} already exists") from error
        finally:
            staged.unlink(missing_ok=True)
        self.sync_folders(path)
        for folder in new:
            _sync_folder(folder.parent)
        return None

    def get(self, path: str) -> Content:
        """Read the object; FileNotFoundError when absent or a folder."""
        try:
            return Content((self.root / path).read_bytes())
        except (IsADirectoryError, NotADirectoryError) as error:
            raise FileNotFoundError(path) from error

    def head(self, path: str) -> dict[str, Any]:
        """Size and time of the object; FileNotFoundError when absent or a folder."""
        try:
            found = (self.root / path).stat()
        except NotADirectoryError as error:
            raise FileNotFoundError(path) from error
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(path)
        return _meta(path, found)

    def list_with_delimiter(self, prefix: str) -> dict[str, Any]:
        """Objects and folders directly under ``prefix``; FileNotFoundError when there is none."""
        objects: list[dict[str, Any]] = []
        folders: list[str] = []
        with os.scandir(self.root / prefix) as entries:
            for entry in entries:
                path = f"{prefix}/{entry.name}"
                if entry.is_dir():
                    folders.append(path)
                    continue
                with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                    objects.append(_meta(path, entry.stat()))
        return {"common_prefixes": folders, "objects": objects}

    def delete(self, paths: str) -> None:
        """Delete one object; FileNotFoundError when absent."""
        (self.root / paths).unlink()

    def exists(self) -> bool:
        """Whether there is a folder already."""
        return self.root.exists()

    def remove_folder(self, prefix: str) -> None:
        """Remove the folder if it is empty; object stores have no folders, disks do."""
        with contextlib.suppress(OSError):
            (self.root / prefix).rmdir()

    def sync(self, *paths: str) -> None:
        """Make objects durable that another process may just have written, not yet synced.

        With the sum that Hadoop writes beside each of its files, without which it reads none.
        """
        for path in paths:
            folder, _, name = path.rpartition("/")
            for file in (self.root / path, self.root / folder / f".{name}.crc"):
                with contextlib.suppress(FileNotFoundError), file.open("rb") as written:
                    os.fsync(written.fileno())
        self.sync_folders(*paths)

    def sync_folders(self, *paths: str) -> None:
        """Sync every folder from the objects' own up to the root: any of them may be new."""
        folders = {up for path in paths for up in (self.root / path).parents}
        for folder in sorted(folders - set(self.root.parents), reverse=True):  # the deepest first
            with contextlib.suppress(FileNotFoundError):
                _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _meta(path: str, found: os.stat_result) -> dict[str, Any]:
    modified = datetime.fromtimestamp(found.st_mtime, UTC)
    return {"path": path, "size": found.st_size, "last_modified": modified}
