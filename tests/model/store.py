"""obstore's ``MemoryStore`` with a stop before every request, watched by the judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from obstore.store import MemoryStore

from tests.model.judge import Judge
from tests.model.scheduler import external


def no_answer() -> Exception:
    return OSError("no answer")


class SteppedStore:
    """See :class:`airflow_eos.checkpoint.backend.Backend`."""

    def __init__(self, judge: Judge) -> None:
        self._objects = MemoryStore()
        self._judge = judge

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
        self._judge.written(path, before, file)
        return result

    def _delete(self, path: str) -> None:
        self._objects.delete(path)
        self._judge.deleted(path)
