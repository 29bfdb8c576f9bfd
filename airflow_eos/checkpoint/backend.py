"""What a store asks of obstore, small enough that a test can stand in for it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable


class StoredObject(NamedTuple):
    """One object: its path in the checkpoint, its name, bytes, and milliseconds since the epoch."""

    path: str
    name: str
    size: int
    modified_at_ms: int


class Content(bytes):
    """An object that was read whole, in the form of obstore's ``GetResult``."""

    def bytes(self) -> bytes:
        """The object."""
        return self


class Backend(Protocol):
    """The part of an obstore store that is used; any obstore store fits."""

    def put(self, path: str, file: bytes, *, mode: Literal["create", "overwrite"]) -> object:
        """Write; AlreadyExistsError when mode is create and the object is there."""

    def get(self, path: str) -> Any:
        """Read; FileNotFoundError when absent."""

    def head(self, path: str) -> Any:
        """Look; FileNotFoundError when absent."""

    def list_with_delimiter(self, prefix: str) -> Any:
        """List one level."""

    def delete(self, paths: str) -> None:
        """Delete one object; may raise FileNotFoundError when absent."""


@runtime_checkable
class Foldered(Backend, Protocol):
    """A backend that has folders: what is empty stays there, and may lie in a disk's cache."""

    def exists(self) -> bool:
        """Whether there is a folder of the checkpoint already."""

    def remove_folder(self, prefix: str) -> None:
        """Remove the folder if it is empty."""

    def sync(self, *paths: str) -> None:
        """Make objects durable that another process may just have written."""


def stored_object(meta: Any) -> StoredObject:
    """Obstore's ``ObjectMeta`` as ours."""
    path = str(meta["path"])
    modified_at_ms = int(meta["last_modified"].timestamp() * 1000)
    return StoredObject(path, path.rpartition("/")[2], int(meta["size"]), modified_at_ms)
