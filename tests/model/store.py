"""obstore's ``MemoryStore`` with a stop before every request, watched by the judge.

Or a disk, which syncs what we write, and nothing that Spark writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from obstore.store import MemoryStore

from airflow_eos.core.checkpoint import CheckpointStore
from tests.model.choices import Chance
from tests.model.judge import Judge
from tests.model.scheduler import external


def no_answer() -> Exception:
    return OSError("no answer")


class SteppedStore:
    """See :class:`airflow_eos.core.checkpoint.backend.Backend`."""

    def __init__(self, judge: Judge) -> None:
        self._objects = MemoryStore()
        self._judge = judge
        self._unsynced: set[str] = set()

    def put(self, path: str, file: bytes, *, mode: Literal["create", "overwrite"]) -> object:
        return self._step("put", path, lambda: self._put(path, file, mode))

    def get(self, path: str) -> Any:
        return self._step("get", path, lambda: self._objects.get(path))

    def head(self, path: str) -> Any:
        return self._step("head", path, lambda: self._objects.head(path))

    def list_with_delimiter(self, prefix: str) -> Any:
        return self._step("list", prefix, lambda: self._objects.list_with_delimiter(prefix))

    def delete(self, paths: str) -> None:
        self._step("delete", paths, lambda: self._delete(paths))

    def copy(self) -> dict[str, bytes]:
        """Everything, as a person copies a folder."""
        paths = [str(meta["path"]) for page in self._objects.list() for meta in page]
        return {path: bytes(self._objects.get(path).bytes()) for path in paths}

    def put_back(self, copy: dict[str, bytes]) -> None:
        """In place, under whoever is alive."""
        for path in self.copy():
            self._objects.delete(path)
        for path, data in copy.items():
            self._objects.put(path, data)
        self._judge.put_back(copy)

    def put_unsynced(self, path: str, file: bytes) -> None:
        """As Spark does: a power cut may take it."""
        self.put(path, file, mode="overwrite")
        self._unsynced.add(path)

    def sync(self, path: str) -> None:
        self._step("sync", path, lambda: self._unsynced.discard(path))

    def power_cut(self, chance: Chance) -> None:
        """What was not synced is there, cut off, empty, full of NULs or not at all."""
        copy = self.copy()
        whole = dict(copy)
        for path in sorted(self._unsynced & copy.keys()):
            data = copy[path]
            left = chance.choice(
                (data, data[: chance.randrange(len(data))], bytes(len(data)), None)
            )
            self._judge.note(f"{path} is {'gone' if left is None else left!r}")
            if left is None:
                del copy[path]
            else:
                copy[path] = left
            if left != data:
                del whole[path]
        self._unsynced.clear()
        self.put_back(copy)
        self._judge.put_back(whole)

    def _step(self, verb: str, path: str, operation: Callable[[], Any]) -> Any:
        parts = path.split("/")
        kind = parts[1] if parts[0] == "eos" and len(parts) > 1 else parts[0]
        return external(f"{verb} {kind}", operation, no_answer)

    def _put(self, path: str, file: bytes, mode: Literal["create", "overwrite"]) -> object:
        try:
            before: bytes | None = bytes(self._objects.get(path).bytes())
        except FileNotFoundError:
            before = None
        result = self._objects.put(path, file, mode=mode)
        self._unsynced.discard(path)
        self._judge.written(path, before, file)
        return result

    def _delete(self, path: str) -> None:
        self._objects.delete(path)
        self._judge.deleted(path)


class SparksFiles:
    """What Spark writes, of which it syncs nothing."""

    def __init__(self, objects: SteppedStore) -> None:
        self._objects = objects

    def put(self, path: str, file: bytes, *, mode: Literal["overwrite"]) -> None:
        assert mode == "overwrite"
        self._objects.put_unsynced(path, file)


class DiskStore(CheckpointStore):
    """A checkpoint on a disk, as far as :mod:`airflow_eos.core.checkpoint.offsets` knows disks."""

    def __init__(self, objects: SteppedStore, location: str) -> None:
        super().__init__(objects, location)
        self._disk = objects

    @property
    def is_on_a_disk(self) -> bool:
        return True

    def make_durable(self, *paths: str) -> None:
        for path in paths:
            try:
                self._disk.sync(path)
            except OSError as error:
                raise self._failed("syncing", path, error) from error
