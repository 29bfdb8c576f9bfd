"""A folder on a disk that driver, executors and recovery share: safe names, synced.

What is prepared lies beside it, under the name that :func:`~.layout.beside` gives.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from airflow_eos.checkpoint.backend import StoredObject, is_hidden
from airflow_eos.checkpoint.locations import sync
from airflow_eos.checkpoint.store import CheckpointStore
from airflow_eos.errors import ConfigurationError, Remedy, StoreError
from airflow_eos.failpoints import failpoint
from airflow_eos.kinds.files.layout import KEPT, beside, works_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXPECTED = {
    errno.ENOSPC: "Make room there: what is promised stays promised.",
    errno.EDQUOT: "Raise the quota, or make room: what is promised stays promised.",
    errno.EMFILE: "A task opens a file for each partition: raise 'ulimit -n', or repartition.",
    errno.ENAMETOOLONG: "A value of partition_by is longer than a name may be there: shorten it.",
    errno.EEXIST: "What is in the way is no file of this pipeline: move it elsewhere.",
    errno.ENOTDIR: "What is in the way is no folder of this pipeline: move it elsewhere.",
}
_NOTHING = ".there-is-no-such-file"
_OTHERWISE = "Driver, tasks and recovery must be one user that may write there."


class Disk:
    """See :class:`~airflow_eos.kinds.files.place.DataFolder`.

    Args:
        root: the folder of data.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        there = root.resolve()  # what a link leads to: only on its own disk can names be moved
        if not there.name:
            raise ConfigurationError(
                f"{root} is the root of a disk, and what is not decided is kept beside the folder.",
                Remedy(change=f"give a folder in it, as {there / 'data'}"),
            )
        self._beside = there.parent / beside(there.name)
        self.address = str(root)
        self.url = f"file://{quote(self.address)}"
        self.store = CheckpointStore.open(root)
        self.beside = CheckpointStore.open(self._beside)

    def names(self) -> list[str]:
        """What lies in it."""
        with self.refusing("listing the folder"):
            return _names(self._root)

    def kept(self, name: str) -> CheckpointStore:
        """A folder of its own."""
        return CheckpointStore.open(self._beside / name)

    def check(self, name: str) -> None:
        """Make the folder, and that of work beside it; a link is created once, by itself."""
        folder = self._at(works_of(name))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except PermissionError as error:
            raise ConfigurationError(
                f"{self._beside} cannot be made: {error}. What is not decided is kept beside the "
                f"folder {self._root}, since some readers take whatever is in it for data.",
                Remedy(change=f"let the app's user write to {self._beside.parent}", start=True),
                Remedy(change=f"give a folder in {self._root}", start=True),
            ) from error
        with self.refusing("making the folder of work"):
            self._root.mkdir(parents=True, exist_ok=True)
            for each in (folder, *self._above(folder), self._root, self._beside.parent):
                sync(each)
        self.require()

    def require(self) -> None:
        """Both folders are there, and on one disk."""
        with self.refusing("looking for the folder"):
            try:
                is_one = self._root.stat().st_dev == self._beside.stat().st_dev
            except FileNotFoundError as error:
                raise StoreError(
                    f"{error.filename} is not there. Is the disk mounted here? Nothing was "
                    "concluded from files that are not there."
                ) from error
            try:
                (self._beside / _NOTHING).rename(self._root / _NOTHING)
            except FileNotFoundError:  # there is no such file, which is looked for last
                pass
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                is_one = False
        if not is_one:
            raise ConfigurationError(
                f"{self._root} is a disk of its own, and what is not decided is kept beside it, in "
                f"{self._beside}: no file can be moved from there without a copy.",
                Remedy(change=f"give a folder in it, as {self._root / 'data'}", start=True),
            )

    def create(self, path: str) -> BinaryIO:
        """The prepared file itself."""
        file = self._at(path)
        with self.refusing("making a file"):
            file.parent.mkdir(parents=True, exist_ok=True)
            return file.open("xb")

    def keep(self, path: str, file: BinaryIO) -> None:
        """Until the disk has it, name and all."""
        with self.refusing("syncing a file"):
            with file:
                os.fsync(file.fileno())
            for folder in self._above(self._at(path)):
                sync(folder)

    def discard(self, path: str, file: BinaryIO) -> None:
        """Remove it, and folders that are empty then."""
        file.close()
        self.remove([path])

    def read(self, path: str) -> bytes:
        """The file ``path``."""
        with self.refusing("reading a file"):
            return (self._at(path)).read_bytes()

    def publish(self, moves: Sequence[tuple[str, str]]) -> list[bool]:
        """Give each prepared file its name, by a link: it refuses to replace what is there."""
        published = []
        with self.refusing("publishing files"):
            for prepared, visible in moves:
                published.append(self._link(self._at(prepared), self._at(visible)))
                if published[-1]:
                    failpoint("settled-some")
        return published

    def settle(self, paths: Iterable[str]) -> None:
        """Sync the folders of visible files."""
        with self.refusing("syncing a folder"):
            for folder in {each for path in paths for each in self._above(self._at(path))}:
                sync(folder)

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Unlike ``Path.exists``, an error is no answer."""
        with self.refusing("looking for files"):
            return [size_of(self._at(path)) for path in paths]

    def remove(self, paths: Sequence[str]) -> bool:
        """Whether any was there; folders that are empty then go too."""
        with self.refusing("removing files"):
            removed = [remove(self._at(path)) for path in paths]
            for path in paths:
                self._remove_empty((self._at(path)).parent)
        return any(removed)

    def listed(self, folder: str) -> dict[str, list[StoredObject]]:
        """By the name of what lies in ``folder``, hidden ones left out: itself, or all below it."""
        with self.refusing("listing prepared files"):
            found: dict[str, list[StoredObject]] = {}
            for name in _names(self._at(folder)):
                if not is_hidden(name):
                    found[name] = self.below(f"{folder}/{name}")
            return found

    def below(self, path: str) -> list[StoredObject]:
        """The file, or all files below the folder."""
        at = self._at(path)
        with self.refusing("listing prepared files"):
            files = [Path(top) / name for top, _, names in os.walk(at) for name in names]
            return [
                entry
                for file in files or [at]
                for entry in _entry(file, f"{path}/{file.relative_to(at).as_posix()}")
            ]

    @contextlib.contextmanager
    def refusing(self, doing: str) -> Iterator[None]:
        """An error of the disk is no answer (StoreError)."""
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"The disk refused while {doing} in {self._root}: {error}. "
                f"{_EXPECTED.get(error.errno or 0, _OTHERWISE)} Nothing was guessed; try again."
            ) from error

    def _link(self, prepared: Path, visible: Path) -> bool:
        with contextlib.suppress(FileNotFoundError):  # the prepared one, or a folder meanwhile
            self._make(visible.parent)
            try:
                visible.hardlink_to(prepared)
            except FileExistsError:  # by us before, or by another process
                if size_of(visible) != prepared.stat().st_size:
                    raise
            return True
        return False

    def _make(self, folder: Path) -> None:
        """Never the root: where it is not there, the disk is not."""
        if folder != self._root:
            self._make(folder.parent)
            folder.mkdir(exist_ok=True)

    def _at(self, path: str) -> Path:
        first, _, rest = path.partition("/")
        return self._beside / rest if first == KEPT else self._root / path

    def _above(self, path: Path) -> list[Path]:
        """Its folders, up to the root or to what is beside it."""
        base = self._beside if path.is_relative_to(self._beside) else self._root
        return [base / each for each in path.relative_to(base).parents]

    def _remove_empty(self, folder: Path) -> None:
        while self._beside in folder.parents and folder.name != "work":
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone
                return
            folder = folder.parent


def _entry(file: Path, path: str) -> list[StoredObject]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # ended meanwhile
        found = file.stat()
        if not file.is_dir():
            at_ms = found.st_mtime_ns // 1_000_000
            return [StoredObject(path.removesuffix("/."), file.name, found.st_size, at_ms)]
    return []


def size_of(file: Path) -> int | None:
    """None where it is not there, or is no file."""
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def remove(file: Path) -> bool:
    """Whether it was there."""
    try:
        file.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        return [entry.name for entry in entries]
    return []
